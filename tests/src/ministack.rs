//! A server for a test that speaks SNS, SQS and S3.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Server, http_get};

/// For the server to take and to answer one request.
const LIMIT: Duration = Duration::from_secs(60);

/// A server of the test's own, from the program that `IDEMP_E2E_MINISTACK` names. It keeps its topics, queues and
/// messages over an orderly stop.
///
/// # Panics
///
/// When the variable is not set, or the server does not start.
#[must_use]
pub fn ministack() -> Server {
    let program = std::env::var_os("IDEMP_E2E_MINISTACK").expect("IDEMP_E2E_MINISTACK is set");
    let program = PathBuf::from(program);
    Server::start(
        "ministack",
        move |address, data| {
            let mut command = Command::new(&program);
            command
                .current_dir(data)
                .env("GATEWAY_PORT", address.port().to_string())
                .env("BIND_HOST", "127.0.0.1")
                .env("MINISTACK_HOST", "127.0.0.1")
                .env("IOT_MTLS_ENABLED", "0")
                .env("LOG_LEVEL", "WARNING")
                .env("PERSIST_STATE", "1")
                .env("STATE_DIR", data);
            command
        },
        |address| http_get(address, "/_ministack/health").is_some_and(|(status, _)| status == 200),
    )
}

/// A server of the test's own, or the one that a variable names: SNS, SQS and S3 are asked in the same way.
pub struct AwsServer {
    own: Option<Server>,
    external: String,
}

impl AwsServer {
    /// Takes the URL of this variable, `http://ADDRESS:PORT` where a proxy is to stand before it; else starts
    /// [`ministack`].
    #[must_use]
    pub fn start(variable: &str) -> Self {
        let external = std::env::var(variable).unwrap_or_default();
        Self {
            own: external.is_empty().then(ministack),
            external,
        }
    }

    /// Where it is asked.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.own {
            Some(server) => format!("http://{}", server.address()),
            None => self.external.clone(),
        }
    }

    /// Where a proxy passes requests on to.
    ///
    /// # Panics
    ///
    /// When the server from outside has a name, or wants TLS.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let url = self.url();
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        address.parse().expect("a proxy needs a server as http://ADDRESS:PORT")
    }

    /// The test's own server, which may be stopped; `None` for one from outside.
    pub fn own(&mut self) -> Option<&mut Server> {
        self.own.as_mut()
    }
}

/// Passes an HTTP request on to `server` and reads the answer to its end, for a peer that plays a proxy.
///
/// # Errors
///
/// When the server cannot be reached or breaks off.
pub fn forward(
    server: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(String, Vec<u8>)],
    body: &[u8],
) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut request = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n").into_bytes();
    for (name, value) in headers {
        if !name.eq_ignore_ascii_case("connection") {
            request.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// A command that runs a script of `tests/python/` with boto3, and the credentials of the environment.
///
/// # Panics
///
/// When `IDEMP_E2E_AWS_PYTHON` is not set.
#[must_use]
pub fn aws_script(name: &str) -> Command {
    let python = std::env::var_os("IDEMP_E2E_AWS_PYTHON").expect("IDEMP_E2E_AWS_PYTHON is set");
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name));
    command
}
