//! A TCP proxy with faults, to stand between a client and a real server. It runs in real time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What the proxy does to its connections, from now on and until it is told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: bytes pass.
    None,
    /// Each piece that comes from the server waits so long.
    Delay(Duration),
    /// New connections are closed at once, and those that are open as well.
    Close,
    /// New connections are reset at once, and those that are open as well.
    Reset,
    /// What the client sends reaches the server; at the first bytes of the answer the connection is closed instead.
    SwallowReply,
    /// A connection is closed once this number of bytes of answers has passed on it.
    CutAfter(usize),
    /// Nothing passes in either direction, and nothing is closed.
    HalfOpen,
}

/// A running proxy. Dropped, it stops listening and closes its connections.
pub struct Proxy {
    addr: SocketAddr,
    fault: Arc<watch::Sender<Fault>>,
    connections: Arc<AtomicUsize>,
    listener: AbortHandle,
}

impl Proxy {
    /// A proxy in front of this server, without a fault yet.
    ///
    /// # Panics
    /// If there is no port to be had.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("the port");
        let fault = Arc::new(watch::Sender::new(Fault::None));
        let connections = Arc::new(AtomicUsize::new(0));
        let (faults, count) = (Arc::clone(&fault), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            // Connections end with this set.
            let mut running = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                running.spawn(pass(client, server, faults.subscribe()));
                while running.try_join_next().is_some() {}
            }
        });
        Self {
            addr,
            fault,
            connections,
            listener: task.abort_handle(),
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the fault, for open and for new connections.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Why a connection ends.
enum End {
    Close,
    Reset,
}

async fn pass(mut client: TcpStream, server: SocketAddr, faults: watch::Receiver<Fault>) {
    if let Ok(End::Reset) = pump(&mut client, server, faults).await {
        let _ = client.set_zero_linger();
    }
}

async fn pump(client: &mut TcpStream, server: SocketAddr, mut faults: watch::Receiver<Fault>) -> io::Result<End> {
    let mut upstream: Option<TcpStream> = None;
    let (mut request, mut reply) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut passed = 0;
    loop {
        let fault = *faults.borrow_and_update();
        match fault {
            Fault::Close => return Ok(End::Close),
            Fault::Reset => return Ok(End::Reset),
            Fault::HalfOpen => {
                if faults.changed().await.is_err() {
                    return Ok(End::Close);
                }
                continue;
            }
            Fault::None | Fault::Delay(_) | Fault::SwallowReply | Fault::CutAfter(_) => {}
        }
        if upstream.is_none() {
            upstream = Some(TcpStream::connect(server).await?);
        }
        let Some(upstream) = upstream.as_mut() else { continue };
        tokio::select! {
            changed = faults.changed() => if changed.is_err() {
                return Ok(End::Close);
            },
            read = client.read(&mut request) => match read? {
                0 => return Ok(End::Close),
                count => upstream.write_all(&request[..count]).await?,
            },
            read = upstream.read(&mut reply) => match (read?, fault) {
                (0, _) | (_, Fault::SwallowReply) => return Ok(End::Close),
                (count, Fault::CutAfter(limit)) if passed + count >= limit => {
                    client.write_all(&reply[..limit.saturating_sub(passed)]).await?;
                    return Ok(End::Close);
                }
                (count, fault) => {
                    if let Fault::Delay(delay) = fault {
                        tokio::time::sleep(delay).await;
                    }
                    client.write_all(&reply[..count]).await?;
                    passed += count;
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Answer, Peer};

    const POST: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
    const OK: &[u8] = b"HTTP/1.1 200 Scripted\r\nContent-Length: 2\r\n\r\nok";

    async fn exchange(stream: &mut TcpStream, want: usize) -> io::Result<Vec<u8>> {
        stream.write_all(POST).await?;
        let mut answer = vec![0; want];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn passes_and_breaks_connections_as_told() {
        let peer = Peer::always(Answer::status(200).body("ok")).await;
        let proxy = Proxy::start(peer.addr()).await;
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(exchange(&mut stream, OK.len()).await.unwrap(), OK);

        // The request arrives, its answer does not.
        proxy.set(Fault::SwallowReply);
        assert_eq!(
            exchange(&mut stream, 1).await.unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(peer.received(2).await.len(), 2);

        proxy.set(Fault::CutAfter(5));
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(exchange(&mut stream, 5).await.unwrap(), b"HTTP/");
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);

        // A silent connection comes back to life, and the next fault breaks it.
        proxy.set(Fault::HalfOpen);
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        stream.write_all(POST).await.unwrap();
        proxy.set(Fault::None);
        let mut answer = vec![0; OK.len()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, OK);
        proxy.set(Fault::Reset);
        assert_eq!(
            stream.read(&mut [0; 1]).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
        assert_eq!(proxy.connections(), 3);
    }
}
