//! What comes to the peer, read off the wire.

use std::fmt;
use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

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

/// The next request, or `None` at the end of the stream. `buffer` keeps what was read beyond it.
pub(super) async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
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
