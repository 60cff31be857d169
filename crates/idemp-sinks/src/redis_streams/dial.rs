//! Connecting to one server, over TCP or TLS.
//!
//! The client could do it by itself. It would then not tell that a connection has ended before something is sent on it,
//! and an event would have to find out.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use idemp_core::{Detail, Failure, Transport};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisConnectionInfo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::batch::Batches;
use super::classify::{connecting, not_sent};
use super::error::{RedisStreamsError, RedisStreamsErrorKind as Kind};

/// Where to connect to, and how.
pub(super) struct Dialer {
    host: String,
    port: u16,
    login: RedisConnectionInfo,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection, and the task that writes and reads.
pub(super) struct Dialed {
    pub(super) batches: Batches,
    task: AbortHandle,
    ended: Arc<AtomicBool>,
}

impl Dialer {
    pub(super) fn new(server: &ConnectionInfo, root_certificates: &[u8]) -> Result<Self, RedisStreamsError> {
        let (host, port, tls) = match server.addr() {
            ConnectionAddr::Tcp(host, port) => (host, *port, None),
            ConnectionAddr::TcpTls { host, port, .. } => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| RedisStreamsError::new(Kind::Url, "has a host that no certificate can name"))?;
                (host, *port, Some((connector(root_certificates)?, name)))
            }
            _ => return Err(RedisStreamsError::new(Kind::Url, "is no URL of a Redis server")),
        };
        Ok(Self {
            host: host.clone(),
            port,
            login: server.redis_settings().clone(),
            tls,
        })
    }

    /// Connects and logs in.
    pub(super) async fn dial(&self) -> Result<Dialed, Failure> {
        let stream = self.connect().await?;
        let Some((connector, name)) = &self.tls else {
            return self.log_in(stream).await;
        };
        let stream = connector.connect(name.clone(), stream).await.map_err(|error| {
            let why = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(error) => format!("TLS handshake failed: {error}"),
                None => "connection closed during the TLS handshake: check scheme and port of the URL".to_owned(),
            };
            Failure::transport(Transport::Tls).with_detail(Detail::new(&why))
        })?;
        self.log_in(stream).await
    }

    async fn connect(&self) -> Result<TcpStream, Failure> {
        let addresses = lookup_host((self.host.as_str(), self.port)).await.map_err(|_| {
            let why = Detail::new("the server's host name does not resolve");
            Failure::transport(Transport::Dns).with_detail(why)
        })?;
        let mut failure = not_sent("the server's host name has no address");
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Without it a lone event may wait for the acknowledgement of the one before.
                    return match stream.set_nodelay(true) {
                        Ok(()) => Ok(stream),
                        Err(_) => Err(not_sent("no connection to the server")),
                    };
                }
                Err(error) => {
                    failure = not_sent(match error.kind() {
                        io::ErrorKind::ConnectionRefused => "connection refused",
                        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "host unreachable",
                        _ => "no connection to the server",
                    });
                }
            }
        }
        Err(failure)
    }

    async fn log_in(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Dialed, Failure> {
        // An attempt has its own limit, which covers the answer.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (connection, driver) = MultiplexedConnection::new_with_config(&self.login, stream, config)
            .await
            .map_err(|error| connecting(&error))?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let (batches, sending) = Batches::over(connection);
        let task = tokio::spawn(async move {
            let mut sending = pin!(sending);
            tokio::select! {
                () = driver => {}
                () = &mut sending => return,
            }
            end.store(true, Ordering::Release);
            // Those who wait still want to know how it ended.
            sending.await;
        });
        let dialed = Dialed {
            batches,
            task: task.abort_handle(),
            ended,
        };
        // Without a login the server would find fault with the length of XADD, and say nothing of the login.
        match dialed.batches.send(redis::cmd("PING")).await {
            Err(error) if matches!(error.code(), None | Some("NOAUTH")) => Err(connecting(&error)),
            _ => Ok(dialed),
        }
    }
}

impl Dialed {
    /// Whether the server closed the connection, or it broke.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Drop for Dialed {
    fn drop(&mut self) {
        // On a link that went dead it would wait for ever.
        self.task.abort();
    }
}

/// TLS by rustls with ring: the process-wide default stays the application's choice.
fn connector(root_certificates: &[u8]) -> Result<TlsConnector, RedisStreamsError> {
    let fault = |why| RedisStreamsError::new(Kind::RootCertificates, why);
    let mut roots = RootCertStore::empty();
    if root_certificates.is_empty() {
        // Stores hold certificates that no longer parse; they are of no use and do no harm.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(fault(
                "the system trusts no authority: install its certificates, or give some",
            ));
        }
    }
    for certificate in CertificateDer::pem_slice_iter(root_certificates) {
        let certificate = certificate.map_err(|error| fault("not readable as PEM").with_source(error))?;
        roots
            .add(certificate)
            .map_err(|error| fault("holds a certificate that is none").with_source(error))?;
    }
    if roots.is_empty() {
        return Err(fault("holds no certificate"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| RedisStreamsError::new(Kind::Client, "TLS could not be set up").with_source(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
