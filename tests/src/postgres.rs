//! A Postgres for a test.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Process, Server};

/// For `initdb`, and for an orderly stop.
const LIMIT: Duration = Duration::from_secs(60);

/// A server of the test's own, from the programs in the folder that `IDEMP_E2E_POSTGRES_BIN` names.
///
/// With root's rights it runs as the user `postgres`, or as `nobody` where there is none: it refuses to run as root.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
}

impl Postgres {
    /// Makes a database cluster, starts its server, and waits until it is ready. `None` if only a server from outside is
    /// known, which a test must not stop.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let programs = PathBuf::from(std::env::var_os("IDEMP_E2E_POSTGRES_BIN")?);
        let server = Server::start(
            "postgres",
            move |address, data| serve(&programs, address, data),
            // It listens only once it takes connections.
            |address| TcpStream::connect(address).is_ok(),
        );
        Some(Self { server })
    }

    /// The address of its database, for the superuser `postgres`, who needs no password.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.server.address())
    }

    /// Where it listens, the same after each start.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Cuts its clients off and stops it.
    ///
    /// # Panics
    ///
    /// When it has not ended within a minute.
    pub fn stop(&mut self) {
        self.server.process().interrupt();
        let end = Instant::now() + LIMIT;
        // The last thing that it does is to remove this file.
        while self.server.data().join("db").join("postmaster.pid").exists() {
            assert!(Instant::now() < end, "postgres does not stop");
            thread::sleep(Duration::from_millis(10));
        }
        self.server.kill();
    }

    /// Starts it once more, with the same data.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start_again(&mut self) {
        self.server.start_again();
    }
}

fn url(address: SocketAddr) -> String {
    format!("postgres://postgres@{address}/postgres")
}

fn serve(programs: &Path, address: SocketAddr, data: &Path) -> Command {
    let db = data.join("db");
    if !db.exists() {
        let owner = owner();
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(data, Some(user), Some(group)).expect("root may give files away");
        }
        let mut initdb = command(&programs.join("initdb"), data);
        initdb
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale"])
            .args(["--no-sync", "--pgdata"])
            .arg(&db);
        let made = Process::run("initdb", &mut initdb, LIMIT);
        assert!(made.status.success(), "{}{}", made.stdout, made.stderr);
    }
    let mut postgres = command(&programs.join("postgres"), data);
    postgres.arg("-D").arg(&db);
    for setting in [
        format!("port={}", address.port()),
        "listen_addresses=127.0.0.1".to_owned(),
        "unix_socket_directories=".to_owned(),
    ] {
        postgres.arg("-c").arg(setting);
    }
    postgres
}

/// A program in a folder that it may enter, as a user who is not root.
fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    if let Some((user, group)) = owner() {
        std::os::unix::process::CommandExt::uid(&mut command, user);
        std::os::unix::process::CommandExt::gid(&mut command, group);
    }
    command
}

/// The user and group in place of root.
fn owner() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").expect("a list of users");
    ["postgres", "nobody"].into_iter().find_map(|name| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map_while(|field| field.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    })
}
