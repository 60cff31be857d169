//! An HTTP/1.1 peer on 127.0.0.1 that answers as written and misbehaves on purpose. It runs in real time.

mod answer;
mod request;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub use answer::Answer;
use answer::Then;
pub use request::Request;

use crate::gate::reached;

/// A running peer. It stops listening when it is dropped; connections that are open then end with their tasks.
///
/// ```no_run
/// # async fn example() {
/// use idemp_testkit::peer::{Answer, Peer};
///
/// let peer = Peer::start(|request| match request.index {
///     0 => Answer::status(503).header("Retry-After", "7"),
///     _ => Answer::status(200).body("ok"),
/// })
/// .await;
/// // ... post to peer.url("/hook") ...
/// assert_eq!(peer.received(1).await[0].values("content-type"), [b"application/json"]);
/// # }
/// ```
pub struct Peer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    listener: AbortHandle,
}

struct Shared {
    script: Script,
    requests: Mutex<Vec<Request>>,
    received: watch::Sender<usize>,
    connections: AtomicUsize,
    closed: watch::Sender<usize>,
}

enum Script {
    Answer(Box<dyn Fn(&Request) -> Answer + Send + Sync>),
    Unread(Unread),
}

/// What the peer does with a connection from which it reads nothing.
#[derive(Clone, Copy, Debug)]
pub enum Unread {
    /// Closes it.
    Close,
    /// Resets it.
    Reset,
    /// Keeps it and stays silent.
    Hold,
    /// Says this at once and keeps it.
    Say(&'static [u8]),
}

impl Peer {
    /// A peer that reads each request and asks the closure what to do.
    ///
    /// # Panics
    /// If there is no port to be had.
    pub async fn start(script: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::listen(Script::Answer(Box::new(script))).await
    }

    /// A peer that does the same after every request.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn always(answer: Answer) -> Self {
        Self::start(move |_| answer.clone()).await
    }

    /// A peer that accepts connections and reads nothing.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn unread(unread: Unread) -> Self {
        Self::listen(Script::Unread(unread)).await
    }

    async fn listen(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("the port");
        let shared = Arc::new(Shared {
            script,
            requests: Mutex::default(),
            received: watch::Sender::new(0),
            connections: AtomicUsize::new(0),
            closed: watch::Sender::new(0),
        });
        let accepting = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = accepting.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepting);
                tokio::spawn(async move {
                    // Errors of the connection are what the other side made of it.
                    let _ = serve(stream, number, &shared).await;
                    shared.closed.send_modify(|count| *count += 1);
                });
            }
        });
        Self {
            addr,
            shared,
            listener: task.abort_handle(),
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:port` and the path.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// What came so far, in the order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Waits for so many requests in all, and gives all that came.
    pub async fn received(&self, count: usize) -> Vec<Request> {
        reached(&self.shared.received, count).await;
        self.requests()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until so many connections in all have ended on the peer's side.
    pub async fn closed(&self, count: usize) {
        reached(&self.shared.closed, count).await;
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn serve(mut stream: TcpStream, connection: usize, shared: &Shared) -> io::Result<()> {
    let script = match &shared.script {
        Script::Answer(script) => script,
        Script::Unread(Unread::Close) => return Ok(()),
        Script::Unread(Unread::Reset) => return stream.set_zero_linger(),
        Script::Unread(Unread::Hold) => std::future::pending().await,
        Script::Unread(Unread::Say(bytes)) => {
            stream.write_all(bytes).await?;
            std::future::pending().await
        }
    };
    let mut buffer = Vec::new();
    while let Some(mut request) = request::read(&mut stream, &mut buffer).await? {
        request.connection = connection;
        {
            let mut requests = shared.requests.lock().unwrap();
            request.index = requests.len();
            requests.push(request.clone());
        }
        shared.received.send_modify(|count| *count += 1);

        let answer = script(&request);
        if !answer.delay.is_zero() {
            tokio::time::sleep(answer.delay).await;
        }
        if let Some(gate) = &answer.gate {
            gate.pass().await;
        }
        stream.write_all(&answer.encode()).await?;
        while answer.is_endless() {
            stream.write_all(b"400\r\n").await?;
            stream.write_all(&[b'x'; 0x400]).await?;
            stream.write_all(b"\r\n").await?;
        }
        match answer.then {
            Then::ReadOn => {}
            Then::Close => return Ok(()),
            Then::Reset => return stream.set_zero_linger(),
            // Until the other side hangs up.
            Then::Hold => while stream.read(&mut [0; 1024]).await? > 0 {},
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &[u8] = b"POST /hook HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a:2 \r\nContent-Length: 3\r\n\r\nabc";

    async fn exchange(peer: &Peer) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(peer.addr()).await?;
        stream.write_all(POST).await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn records_what_came_and_answers_as_written() {
        let peer =
            Peer::start(|request| Answer::status(if request.index == 0 { 503 } else { 200 }).body("later")).await;
        let mut stream = TcpStream::connect(peer.addr()).await.unwrap();
        stream.write_all(&[POST, POST].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(
            answer,
            "HTTP/1.1 503 Scripted\r\nContent-Length: 5\r\n\r\nlaterHTTP/1.1 200 Scripted\r\nContent-Length: 5\r\n\r\nlater"
        );
        let requests = peer.received(2).await;
        assert_eq!(requests[0].values("X-a"), [b"1", b"2"]);
        assert_eq!(
            (requests[1].method.as_str(), requests[1].target.as_str()),
            ("POST", "/hook")
        );
        assert_eq!(
            (requests[1].body.as_slice(), requests[1].connection),
            (b"abc".as_slice(), 0)
        );
        assert_eq!(peer.connections(), 1);
    }

    #[tokio::test]
    async fn misbehaves_as_written() {
        let cut = Peer::always(Answer::status(200).body("body").truncated(1)).await;
        assert_eq!(
            exchange(&cut).await.unwrap(),
            b"HTTP/1.1 200 Scripted\r\nContent-Length: 4\r\n\r\nb"
        );
        let raw = Peer::always(Answer::raw("junk\r\n")).await;
        assert_eq!(exchange(&raw).await.unwrap(), b"junk\r\n");
        let closing = Peer::always(Answer::close()).await;
        assert_eq!(exchange(&closing).await.unwrap(), b"");
        let resetting = Peer::always(Answer::reset()).await;
        assert_eq!(
            exchange(&resetting).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
        assert_eq!(resetting.requests().len(), 1);
        let unread = Peer::unread(Unread::Reset).await;
        assert!(exchange(&unread).await.is_err());
        assert_eq!(unread.requests().len(), 0);
    }
}
