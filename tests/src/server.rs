//! Real servers that a test starts, stops and starts again.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::{Process, temp_dir};

type MakeCommand = Box<dyn Fn(SocketAddr, &Path) -> Command + Send + Sync>;
type Probe = Box<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// For a server to answer its probe, or to end.
const LIMIT: Duration = Duration::from_secs(60);

/// A server on a free loopback port with a data folder of its own. It is killed when dropped; what it printed is shown
/// if the test panics.
pub struct Server {
    name: &'static str,
    address: SocketAddr,
    data: TempDir,
    command: MakeCommand,
    is_ready: Probe,
    process: Option<Process>,
}

impl Server {
    /// Starts the `command` made for an address and a data folder, and waits until `is_ready`.
    ///
    /// # Panics
    ///
    /// When it does not start, or is not ready within a minute.
    #[must_use]
    pub fn start(
        name: &'static str,
        command: impl Fn(SocketAddr, &Path) -> Command + Send + Sync + 'static,
        is_ready: impl Fn(SocketAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        let mut server = Self {
            name,
            address: free_address(),
            data: temp_dir(),
            command: Box::new(command),
            is_ready: Box::new(is_ready),
            process: None,
        };
        server.start_again();
        server
    }

    /// Where it listens, the same after each start.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its data folder, which stays over a stop.
    #[must_use]
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Kills it with SIGKILL. Nothing happens if it does not run.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Ends it with SIGTERM and waits. Nothing happens if it does not run.
    ///
    /// # Panics
    ///
    /// When it has not ended within a minute.
    pub fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.terminate();
            let _ = process.finish(LIMIT);
        }
    }

    /// Starts it once more, at the same address and with the same data, and waits until it is ready.
    ///
    /// # Panics
    ///
    /// When it runs already, does not start, or is not ready within a minute.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let mut command = (self.command)(self.address, self.data.path());
        let process = self.process.insert(Process::start(self.name, &mut command));
        let (address, is_ready) = (self.address, &self.is_ready);
        process.wait_until("it is ready", LIMIT, |_| is_ready(address).then_some(()));
    }

    /// The running process, for signals.
    ///
    /// # Panics
    ///
    /// When it does not run.
    #[must_use]
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A loopback address whose port is free at the moment.
///
/// # Panics
///
/// When there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound socket has an address")
}
