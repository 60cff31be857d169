//! A light HTTP/1.1 client: ready-made requests over kept connections, each waiting for the reply before the next.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail, ensure};
use idemp_core::headers::{IDEMPOTENCY_KEY, X_EVENT_TYPE, X_SIGNATURE_256};
use idemp_core::{Message, Signer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::local;

pub(crate) const PATH: &str = "/webhooks/langchain";

/// What every reply must say: the event was new.
pub(crate) const OK: &str = r#"{"status":"ok"}"#;

/// The bytes of a signed request.
pub(crate) fn request(message: &Message, signer: &Signer) -> Vec<u8> {
    let (key, body) = (message.key(), message.body());
    let mut request = format!(
        "POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         {IDEMPOTENCY_KEY}: {}\r\n{X_EVENT_TYPE}: {}\r\n{X_SIGNATURE_256}: {}\r\n\r\n",
        body.len(),
        key.as_str(),
        key.event_type(),
        signer.header(body).as_str(),
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Sends all requests over this many connections.
///
/// # Errors
/// If a reply is anything but 200 and [`OK`].
pub(crate) async fn send(address: SocketAddr, connections: usize, requests: Arc<Vec<Vec<u8>>>) -> anyhow::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let connection = |_| {
        let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
        async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let mut buffer = Vec::with_capacity(1024);
            while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                stream.write_all(request).await?;
                reply(&mut stream, &mut buffer).await?;
            }
            Ok(())
        }
    };
    local::all((0..connections).map(connection)).await
}

/// Reads one reply.
async fn reply(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> anyhow::Result<()> {
    buffer.clear();
    loop {
        ensure!(stream.read_buf(buffer).await? > 0, "the server has closed a connection");
        let Some(head) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            continue;
        };
        let body = &buffer[head + 4..];
        if body.len() < OK.len() {
            continue;
        }
        if buffer.starts_with(b"HTTP/1.1 200") && body == OK.as_bytes() {
            return Ok(());
        }
        let first = buffer.split(|byte| *byte == b'\r').next().context("a first line")?;
        bail!("{}: {}", String::from_utf8_lossy(first), String::from_utf8_lossy(body));
    }
}
