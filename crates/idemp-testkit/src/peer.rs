//! An HTTP/1.1 peer on 127.0.0.1 that answers as written and misbehaves on purpose. It runs in real time.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::gate::{Gate, reached};

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

/// A request that was read to the end of its body, as it came over the wire.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// Place in the order of arrival, over all connections, from 0.
    pub index: usize,
    /// Which connection it came on, in the order of acceptance, from 0.
    pub connection: usize,
    /// `POST`.
    pub method: String,
    /// What stood after the method: a path, or a whole URL or `host:port` where the peer plays a proxy.
    pub target: String,
    /// Header lines in their order, names as they were spelled.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body, of the length that `Content-Length` says.
    pub body: Vec<u8>,
}

impl Request {
    /// The values of all lines with this name, in any spelling.
    #[must_use]
    pub fn values(&self, name: &str) -> Vec<&[u8]> {
        self.headers
            .iter()
            .filter(|(line, _)| line.eq_ignore_ascii_case(name))
            .map(|(_, value)| &value[..])
            .collect()
    }

    /// The value of the only line with this name, as text.
    ///
    /// # Panics
    /// If there is none, or more than one, or it is not UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        match self.values(name)[..] {
            [value] => std::str::from_utf8(value).expect("a header in UTF-8"),
            ref values => panic!("{} lines of {name}", values.len()),
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "#{} on {}: {} {}, {} bytes",
            self.index,
            self.connection,
            self.method,
            self.target,
            self.body.len()
        )
    }
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

/// What the peer does once it has read a request.
#[derive(Clone, Debug)]
pub struct Answer {
    delay: Duration,
    gate: Option<Gate>,
    text: Text,
    then: Then,
}

#[derive(Clone, Debug)]
enum Text {
    Nothing,
    Raw(Vec<u8>),
    Response {
        status: u16,
        headers: Vec<(String, Vec<u8>)>,
        body: Vec<u8>,
        sent: Option<usize>,
        endless: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    ReadOn,
    Close,
    Reset,
    Hold,
}

impl Answer {
    fn new(text: Text, then: Then) -> Self {
        Self {
            delay: Duration::ZERO,
            gate: None,
            text,
            then,
        }
    }

    /// A complete response with this status and an empty body, on a connection that stays open.
    #[must_use]
    pub fn status(status: u16) -> Self {
        let response = Text::Response {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            sent: None,
            endless: false,
        };
        Self::new(response, Then::ReadOn)
    }

    /// These bytes instead of a response, then the end of the connection.
    #[must_use]
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(Text::Raw(bytes.into()), Then::Close)
    }

    /// No response, the connection is closed.
    #[must_use]
    pub fn close() -> Self {
        Self::new(Text::Nothing, Then::Close)
    }

    /// No response, the connection is reset.
    #[must_use]
    pub fn reset() -> Self {
        Self::new(Text::Nothing, Then::Reset)
    }

    /// No response, the connection stays open.
    #[must_use]
    pub fn hold() -> Self {
        Self::new(Text::Nothing, Then::Hold)
    }

    /// Adds a header line. `Content-Length` is added by itself.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        if let Text::Response { headers, .. } = &mut self.text {
            headers.push((name.to_owned(), value.as_ref().to_vec()));
        }
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        if let Text::Response { body, .. } = &mut self.text {
            *body = bytes.into();
        }
        self
    }

    /// Sends only so many bytes of the body, then closes the connection.
    #[must_use]
    pub fn truncated(self, bytes: usize) -> Self {
        self.cut(bytes, Then::Close)
    }

    /// Sends only so many bytes of the body, then nothing more.
    #[must_use]
    pub fn stalled(self, bytes: usize) -> Self {
        self.cut(bytes, Then::Hold)
    }

    fn cut(mut self, bytes: usize, then: Then) -> Self {
        if let Text::Response { sent, .. } = &mut self.text {
            *sent = Some(bytes);
        }
        Self { then, ..self }
    }

    /// Sends a body that never ends, until the other side hangs up.
    #[must_use]
    pub fn endless(mut self) -> Self {
        if let Text::Response { endless, .. } = &mut self.text {
            *endless = true;
        }
        self
    }

    /// Closes the connection after the response, without having said so in it.
    #[must_use]
    pub fn then_close(self) -> Self {
        Self {
            then: Then::Close,
            ..self
        }
    }

    /// Keeps the connection after the response, and answers nothing more on it.
    #[must_use]
    pub fn then_hold(self) -> Self {
        Self {
            then: Then::Hold,
            ..self
        }
    }

    /// Begins so much later.
    #[must_use]
    pub fn delayed(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Begins only when the gate lets it through.
    #[must_use]
    pub fn behind(self, gate: &Gate) -> Self {
        Self {
            gate: Some(gate.clone()),
            ..self
        }
    }

    /// The bytes to send. An endless body is chunked, without the last chunk.
    fn encode(&self) -> Vec<u8> {
        let (status, headers, body, sent, endless) = match &self.text {
            Text::Nothing => return Vec::new(),
            Text::Raw(bytes) => return bytes.clone(),
            Text::Response {
                status,
                headers,
                body,
                sent,
                endless,
            } => (status, headers, body, *sent, *endless),
        };
        let mut bytes = format!("HTTP/1.1 {status} Scripted\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if endless {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        } else {
            // These two have no body, and a length with them is an error (RFC 9110, section 8.6).
            if !matches!(status, 100..=199 | 204) {
                bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
            }
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(&body[..sent.unwrap_or(body.len())]);
        }
        bytes
    }

    fn is_endless(&self) -> bool {
        matches!(self.text, Text::Response { endless: true, .. })
    }
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
    while let Some(mut request) = read_request(&mut stream, &mut buffer).await? {
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

/// The next request, or `None` at the end of the stream. `buffer` keeps what was read beyond it.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let head_len = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head: Vec<u8> = buffer.drain(..head_len).collect();
    let mut lines = head
        .strip_suffix(b"\r\n\r\n")
        .unwrap_or(&head)
        .split(|byte| *byte == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let mut words = first.split_whitespace().map(str::to_owned);
    let headers = lines
        .map(|line| {
            let mut parts = line.splitn(2, |byte| *byte == b':');
            let mut part = || parts.next().unwrap_or_default().trim_ascii();
            (String::from_utf8_lossy(part()).into_owned(), part().to_vec())
        })
        .collect();
    let mut request = Request {
        index: 0,
        connection: 0,
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        headers,
        body: Vec::new(),
    };
    let length = match request.values("content-length")[..] {
        [] => 0,
        _ => request.header("content-length").parse().map_err(io::Error::other)?,
    };
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    request.body = buffer.drain(..length).collect();
    Ok(Some(request))
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
