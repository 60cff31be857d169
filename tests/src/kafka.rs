//! Brokers for a test, and a proxy in front of one that loses answers.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Process, Server, free_address};

/// For a broker to format its folder.
const LIMIT: Duration = Duration::from_secs(60);

/// A command that runs a script of `tests/python/` with confluent-kafka.
///
/// # Panics
///
/// When `IDEMP_E2E_KAFKA_PYTHON` is not set.
#[must_use]
pub fn kafka_script(name: &str) -> Command {
    let python = env::var_os("IDEMP_E2E_KAFKA_PYTHON").expect("IDEMP_E2E_KAFKA_PYTHON is set");
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name));
    command
}

/// Makes a topic of one partition, with settings such as `max.message.bytes=20000`.
///
/// # Panics
///
/// When the broker does not make it.
pub fn make_topic(brokers: &str, topic: &str, settings: &[&str]) {
    let mut command = kafka_script("kafka_topic.py");
    command.args([brokers, topic]);
    for setting in settings {
        command.args(["--config", setting]);
    }
    let made = Process::run("kafka_topic.py", &mut command, LIMIT);
    assert!(made.status.success(), "{}", made.stderr);
}

/// A broker of the test's own: Apache Kafka from the jars that `IDEMP_E2E_KAFKA_JARS` names, else the program Tansu that
/// `IDEMP_E2E_KAFKA_TANSU` names.
#[derive(Debug)]
pub struct Kafka {
    server: Server,
    is_apache: bool,
}

impl Kafka {
    /// Starts one node and waits until it answers. `None` if only a broker from outside is known, which a test must not
    /// stop.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        if let Some(jars) = env::var_os("IDEMP_E2E_KAFKA_JARS") {
            let (jars, controller) = (PathBuf::from(jars), free_address());
            let command = move |address, data: &Path| apache(&jars, address, controller, data);
            let server = Server::start("kafka", command, answers);
            return Some(Self {
                server,
                is_apache: true,
            });
        }
        let program = PathBuf::from(env::var_os("IDEMP_E2E_KAFKA_TANSU")?);
        let server = Server::start("tansu", move |address, _| tansu(&program, address), answers);
        Some(Self {
            server,
            is_apache: false,
        })
    }

    /// Where it listens, the same after each start.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Whether it is Apache Kafka.
    #[must_use]
    pub const fn is_apache(&self) -> bool {
        self.is_apache
    }

    /// Kills it. Tansu, which keeps everything in memory, is stopped in its tracks instead: it does not answer.
    ///
    /// # Panics
    ///
    /// When it does not run.
    pub fn take_away(&mut self) {
        if self.is_apache {
            self.server.kill();
        } else {
            self.signal(Signal::STOP);
        }
    }

    /// Starts it once more with its data, or lets it go on.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn bring_back(&mut self) {
        if self.is_apache {
            self.server.start_again();
        } else {
            self.signal(Signal::CONT);
        }
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.server.process().id()).expect("process ids are small");
        let pid = Pid::from_raw(id).expect("process ids are above zero");
        kill_process(pid, signal).expect("an unreaped child can be signalled");
    }
}

/// One KRaft node that is broker and controller, <https://kafka.apache.org/documentation/#kraft>.
fn apache(jars: &Path, address: SocketAddr, controller: SocketAddr, data: &Path) -> Command {
    let java = |heap: &str| {
        let mut command = Command::new("java");
        // A short life: no time is spent on the second compiler.
        command.args([heap, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
        command.arg(jars.join("*"));
        command
    };
    let (settings, logs) = (data.join("server.properties"), data.join("logs"));
    if !logs.exists() {
        let text = format!(
            "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{address},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{address}
inter.broker.listener.name=PLAINTEXT
log.dirs={}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
",
            logs.display()
        );
        fs::write(&settings, text).expect("the data folder takes a file");
        let mut format = java("-Xmx256m");
        format.args(["kafka.tools.StorageTool", "format", "--cluster-id"]);
        format.args(["aWRlbXAtdGVzdHMtMDAwMQ", "--config"]).arg(&settings);
        let formatted = Process::run("kafka format", &mut format, LIMIT);
        assert!(formatted.status.success(), "{}{}", formatted.stdout, formatted.stderr);
    }
    let mut command = java("-Xmx512m");
    command.arg("kafka.Kafka").arg(settings);
    command
}

fn tansu(program: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(program);
    command.args(["broker", "--storage-engine", "memory://tansu/"]);
    command.args(["--listener-url", &format!("tcp://{address}")]);
    command.args(["--advertised-listener-url", &format!("tcp://{address}")]);
    command
}

/// Whether it answers a request for its versions, which it does once it works.
fn answers(address: SocketAddr) -> bool {
    const API_VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];
    let ask = || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(&API_VERSIONS).ok()?;
        frame(&mut stream)
    };
    ask().is_some()
}

/// A proxy before a broker that lets every request through and loses the answers to some writes, together with their
/// connection. Its clients hear of no other address than its own.
#[derive(Debug)]
pub struct LossyProxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    broker: SocketAddr,
    proxy: SocketAddr,
    /// How many answers to writes are still to be lost.
    to_lose: AtomicU64,
    lost: AtomicU64,
    closed: AtomicBool,
}

impl LossyProxy {
    /// Listens on a free port, and loses nothing yet.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    #[must_use]
    pub fn before(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State {
            broker,
            proxy: address,
            to_lose: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.closed.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.serve(client));
            }
        });
        Self { address, state }
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses the next answers to writes: this many, or all if that is [`u64::MAX`]; 0 makes an end of it.
    pub fn lose(&self, answers: u64) {
        self.state.to_lose.store(answers, Ordering::SeqCst);
    }

    /// How many answers were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.state.lost.load(Ordering::SeqCst)
    }
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        // Wakes the listener; an error means that it has ended.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn serve(&self, client: TcpStream) {
        let Ok(broker) = TcpStream::connect(self.broker) else {
            return;
        };
        let writes = Mutex::new(HashSet::new());
        let close = || {
            // An error means that it is closed.
            let _ = client.shutdown(Shutdown::Both);
            let _ = broker.shutdown(Shutdown::Both);
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                self.requests(&client, &broker, &writes);
                close();
            });
            self.answers(&broker, &client, &writes);
            close();
        });
    }

    fn requests(&self, mut from: &TcpStream, mut to: &TcpStream, writes: &Mutex<HashSet<[u8; 4]>>) {
        while let Some(request) = frame(&mut from) {
            // Length, API key (0 is Produce), API version, correlation id.
            if let [_, _, _, _, 0, 0, _, _, a, b, c, d, ..] = request[..] {
                writes.lock().expect("no thread panics").insert([a, b, c, d]);
            }
            if to.write_all(&request).is_err() {
                return;
            }
        }
    }

    fn answers(&self, mut from: &TcpStream, mut to: &TcpStream, writes: &Mutex<HashSet<[u8; 4]>>) {
        while let Some(answer) = frame(&mut from) {
            let is_to_a_write = match answer[..] {
                [_, _, _, _, a, b, c, d, ..] => writes.lock().expect("no thread panics").remove(&[a, b, c, d]),
                _ => false,
            };
            if is_to_a_write && self.is_lost() {
                return;
            }
            if to.write_all(&self.readdressed(answer)).is_err() {
                return;
            }
        }
    }

    fn is_lost(&self) -> bool {
        let one_less = |left: u64| match left {
            0 => None,
            u64::MAX => Some(u64::MAX),
            left => Some(left - 1),
        };
        let is_lost = self
            .to_lose
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok();
        if is_lost {
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
        is_lost
    }

    /// The answer with the proxy's port wherever the broker names itself: host as text, then the port in four bytes.
    fn readdressed(&self, mut answer: Vec<u8>) -> Vec<u8> {
        let named = |address: SocketAddr| {
            let port = u32::from(address.port()).to_be_bytes();
            [address.ip().to_string().as_bytes(), &port].concat()
        };
        let (broker, proxy) = (named(self.broker), named(self.proxy));
        let mut at = 0;
        while let Some(rest) = answer.get_mut(at..at + broker.len()) {
            if rest == broker {
                rest.copy_from_slice(&proxy);
            }
            at += 1;
        }
        answer
    }
}

/// A length of four bytes and as many bytes as it says; `None` at the end of the stream.
fn frame(from: &mut impl Read) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).ok()?;
    let length = u32::from_be_bytes(frame[..].try_into().ok()?);
    frame.resize(4 + usize::try_from(length).ok()?, 0);
    from.read_exact(&mut frame[4..]).ok()?;
    Some(frame)
}
