//! A server that xtask starts for tests and stops afterwards.

use std::cell::Cell;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{process, thread};

use anyhow::{Context, bail};

use crate::process::Running;

/// For a server to answer its probe.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(20);

/// A running server: killed and reaped when dropped, with its data; its log is kept on request, or if it never was ready.
pub(super) struct Service {
    name: &'static str,
    process: Option<Running>,
    address: SocketAddr,
    data: PathBuf,
    log: PathBuf,
    keep_log: Cell<bool>,
}

impl Service {
    /// Starts the `command` made for an address and an empty data folder, and waits until `is_ready`.
    pub(super) fn start(
        name: &'static str,
        dir: &Path,
        command: impl FnOnce(SocketAddr, &Path) -> Command,
        is_ready: impl Fn(SocketAddr) -> bool,
    ) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        // The process id keeps two runs apart, the port two servers of one run.
        let own = format!("{name}-{}-{}", process::id(), address.port());
        let data = dir.join(&own);
        let log = dir.join(own + ".log");
        fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;

        let mut command = command(address, &data);
        command.stdout(output.try_clone()?).stderr(output);
        // From here on it is dropped, and so stopped, on any error.
        let mut service = Self {
            name,
            process: None,
            address,
            data,
            log,
            keep_log: Cell::new(true),
        };
        let process = service.process.insert(Running::start(&mut command)?);
        let end = Instant::now() + READY_WITHIN;
        while !is_ready(address) {
            if let Some(status) = process.ended()? {
                bail!("{name} ended before it was ready: {status}");
            }
            if Instant::now() >= end {
                bail!("{name} was not ready within {READY_WITHIN:?}");
            }
            thread::sleep(PROBE_EVERY);
        }
        service.keep_log.set(false);
        Ok(service)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Leaves the log for a person to read.
    pub(super) fn keep_log(&self) {
        self.keep_log.set(true);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.process = None;
        // What cannot be removed is in the way of nothing.
        let _ = fs::remove_dir_all(&self.data);
        if self.keep_log.get() || thread::panicking() {
            eprintln!("the log of {}: {}", self.name, self.log.display());
        } else {
            let _ = fs::remove_file(&self.log);
        }
    }
}
