//! Redis and Valkey servers for tests, and the smallest client for them.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Server, free_address};

/// For one answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Between two looks at a cluster.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Every server program that is known: those in `IDEMP_E2E_REDIS_SERVERS`, a list as in `PATH`, else the one in
/// `IDEMP_E2E_REDIS_SERVER`.
///
/// # Panics
///
/// When neither is set.
#[must_use]
pub fn redis_programs() -> Vec<PathBuf> {
    if let Some(programs) = std::env::var_os("IDEMP_E2E_REDIS_SERVERS") {
        return std::env::split_paths(&programs).collect();
    }
    let program = std::env::var_os("IDEMP_E2E_REDIS_SERVER").expect("IDEMP_E2E_REDIS_SERVER is set");
    vec![program.into()]
}

/// A server of the test's own on a loopback port. It writes what it takes to a file, so that it has it again after a
/// kill.
#[derive(Debug)]
pub struct Redis {
    server: Server,
}

impl Redis {
    /// Starts the program with further options, such as `["--appendfsync", "always"]`, and waits until it answers.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start(program: &Path, options: &[&str]) -> Self {
        let program = program.to_owned();
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let server = Server::start(
            "redis",
            move |address, data| {
                let mut command = Command::new(&program);
                command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--dir"]);
                command
                    .arg(data)
                    .args(["--save", "", "--appendonly", "yes"])
                    .args(&options);
                command
            },
            // One that wants a password is ready, too; one that loads its data is not.
            |address| match RedisClient::connect(address).and_then(|mut client| client.try_call(&["PING"])) {
                Ok(RedisReply::Status(pong)) => pong == "PONG",
                Ok(RedisReply::Error(error)) => error.starts_with("NOAUTH"),
                _ => false,
            },
        );
        Self { server }
    }

    /// Starts three servers and makes them a cluster.
    ///
    /// # Panics
    ///
    /// When they do not become one within a minute.
    #[must_use]
    pub fn cluster(program: &Path) -> Vec<Self> {
        const SLOTS: usize = 16_384;
        // The bus has a port of its own: the usual one, 10,000 higher, may be none.
        let buses: Vec<String> = (0..3).map(|_| free_address().port().to_string()).collect();
        let start = |bus: &String| {
            Self::start(
                program,
                &[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-node-timeout",
                    "1500",
                    "--cluster-port",
                    bus,
                ],
            )
        };
        let nodes: Vec<Self> = buses.iter().map(start).collect();
        let port = nodes[0].address().port().to_string();
        for (number, node) in nodes.iter().enumerate() {
            let (first, end) = (number * SLOTS / nodes.len(), (number + 1) * SLOTS / nodes.len());
            let mut client = node.client();
            client.call(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()]);
            client.call(&["CLUSTER", "MEET", "127.0.0.1", &port, &buses[0]]);
        }
        let end = Instant::now() + 6 * LIMIT;
        for node in &nodes {
            let ready = |text: &str| text.contains("cluster_state:ok") && text.contains("cluster_known_nodes:3");
            while !matches!(node.client().call(&["CLUSTER", "INFO"]), RedisReply::Text(text) if ready(&text)) {
                assert!(Instant::now() < end, "the cluster does not form");
                thread::sleep(LOOK_EVERY);
            }
        }
        nodes
    }

    /// Where it listens, the same after each start.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Its URL, without a database.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// A connection of the test's own.
    ///
    /// # Panics
    ///
    /// When there is none to be had.
    #[must_use]
    pub fn client(&self) -> RedisClient {
        RedisClient::connect(self.address()).expect("the server takes connections")
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts it once more, with the data that it has written.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start_again(&mut self) {
        self.server.start_again();
    }
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisReply {
    /// A short line, such as `OK`.
    Status(String),
    /// An error: its code and text.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of bytes, with replacement characters where they are not UTF-8.
    Text(String),
    /// Several answers.
    Array(Vec<RedisReply>),
    /// Nothing.
    Nil,
}

impl RedisReply {
    /// The strings of an array of strings.
    ///
    /// # Panics
    ///
    /// When it is something else.
    #[must_use]
    pub fn texts(self) -> Vec<String> {
        let Self::Array(texts) = self else {
            panic!("no array: {self:?}");
        };
        let text = |reply| match reply {
            Self::Text(text) => text,
            other => panic!("no text: {other:?}"),
        };
        texts.into_iter().map(text).collect()
    }
}

/// A connection that speaks RESP2.
pub struct RedisClient {
    stream: BufReader<TcpStream>,
}

impl RedisClient {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If there is no connection within ten seconds.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends one command and waits for its answer, which may be an error.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or there is no answer within ten seconds.
    pub fn try_call(&mut self, words: &[&str]) -> io::Result<RedisReply> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(command.as_bytes())?;
        self.read()
    }

    /// Sends one command and waits for its answer.
    ///
    /// # Panics
    ///
    /// When there is none, or it is an error.
    pub fn call(&mut self, words: &[&str]) -> RedisReply {
        match self.try_call(words).expect("an answer") {
            RedisReply::Error(error) => panic!("{words:?}: {error}"),
            reply => reply,
        }
    }

    /// Every entry of a stream: its id, and its fields with their values.
    ///
    /// # Panics
    ///
    /// When the key holds no stream.
    pub fn entries(&mut self, stream: &str) -> Vec<(String, Vec<(String, String)>)> {
        let RedisReply::Array(entries) = self.call(&["XRANGE", stream, "-", "+"]) else {
            panic!("no list of entries");
        };
        let entry = |entry| match entry {
            RedisReply::Array(mut parts) if parts.len() == 2 => match (parts.remove(0), parts.remove(0)) {
                (RedisReply::Text(id), fields) => {
                    let fields = fields.texts();
                    let pairs = fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
                    (id, pairs.collect())
                }
                other => panic!("no entry: {other:?}"),
            },
            other => panic!("no entry: {other:?}"),
        };
        entries.into_iter().map(entry).collect()
    }

    fn read(&mut self) -> io::Result<RedisReply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(broken)?;
        let number = || rest.parse::<i64>().map_err(|_| broken());
        Ok(match kind {
            "+" => RedisReply::Status(rest.to_owned()),
            "-" => RedisReply::Error(rest.to_owned()),
            ":" => RedisReply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => RedisReply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    RedisReply::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => RedisReply::Nil,
                Ok(count) => RedisReply::Array((0..count).map(|_| self.read()).collect::<Result<_, _>>()?),
            },
            _ => return Err(broken()),
        })
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient").finish_non_exhaustive()
    }
}
