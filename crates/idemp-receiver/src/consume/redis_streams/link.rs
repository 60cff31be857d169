//! A connection that is made anew when nothing good comes over it any more.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, RedisResult,
    ServerErrorKind, TlsCertificates, Value,
};
use tokio::sync::Mutex;

use super::config::RedisStreamsConsumerConfig;

/// Many tasks may ask at the same time.
pub(super) struct Link {
    client: Client,
    settings: AsyncConnectionConfig,
    connected: Mutex<Connected>,
}

#[derive(Default)]
struct Connected {
    connection: Option<MultiplexedConnection>,
    /// Counts connections.
    number: u64,
}

impl Link {
    pub(super) fn new(client: Client, connect_within: Duration, answer_within: Duration) -> Self {
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_within))
            .set_response_timeout(Some(answer_within));
        Self {
            client,
            settings,
            connected: Mutex::default(),
        }
    }

    /// Sends a command once and waits for the answer.
    pub(super) async fn ask(&self, cmd: &Cmd) -> RedisResult<Value> {
        let (mut connection, number) = {
            let mut connected = self.connected.lock().await;
            let connection = match &connected.connection {
                Some(connection) => connection.clone(),
                None => {
                    let made = self
                        .client
                        .get_multiplexed_async_connection_with_config(&self.settings)
                        .await?;
                    connected.number += 1;
                    connected.connection.insert(made).clone()
                }
            };
            (connection, connected.number)
        };
        let answer = connection.send_packed_command(cmd).await.and_then(Value::extract_error);
        if let Err(error) = &answer
            && must_be_left(error)
        {
            let mut connected = self.connected.lock().await;
            if connected.number == number {
                connected.connection = None;
            }
        }
        answer
    }

    /// Host and port, for messages.
    pub(super) fn server(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    /// How many connections there have been.
    pub(super) async fn number(&self) -> u64 {
        self.connected.lock().await.number
    }
}

/// The client for a server. It connects later.
pub(super) fn client(config: &RedisStreamsConsumerConfig) -> RedisResult<Client> {
    let info = config.url.as_str().into_connection_info()?;
    let mut login = info.redis_settings().clone();
    if let Some(username) = &config.username {
        login = login.set_username(username);
    }
    if let Some(password) = &config.password {
        login = login.set_password(password);
    }
    let info = info
        .set_redis_settings(login)
        // Small packets must not wait for each other.
        .set_tcp_settings(TcpSettings::default().set_nodelay(true));
    if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. })
        && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // It fails if somebody was faster, who then has chosen.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    if config.root_certificates.is_empty() {
        return Client::open(info);
    }
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: Some(config.root_certificates.clone()),
    };
    Client::build_with_tls(info, certificates)
}

/// Why something failed: what the operating system or TLS says, or else the code alone. The text of a server's answer
/// may quote the command, which may be the login.
pub(super) fn cause(error: &RedisError) -> String {
    if error.is_io_error() || error.is_timeout() {
        error.to_string()
    } else if error.kind() == ErrorKind::AuthenticationFailed {
        "the login is refused".to_owned()
    } else if let Some(code) = error.code() {
        format!("the server answers {code}")
    } else {
        format!("{:?}", error.kind())
    }
}

/// Nothing good comes over this connection any more: it is gone, the other side is silent, or it leads to a server that
/// is not the right one since a failover.
fn must_be_left(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.kind() == ErrorKind::Parse
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || error.code() == Some("NOAUTH")
}
