//! A server that answers each XADD as it is told, and everything else with OK.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// What follows an XADD.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// An entry id.
    Id,
    /// This line, such as `-OOM no`.
    Line(&'static str),
    /// Nothing.
    Silence,
    /// The end of the connection.
    Close,
}

/// Answers XADD with one reply after another, the last one for ever.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    task: AbortHandle,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    ended: usize,
    commands: Vec<Vec<String>>,
    /// How many XADDs each read from a socket brought.
    reads: Vec<usize>,
}

impl Server {
    pub(crate) async fn start(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (shared, replies) = (Arc::clone(&seen), Arc::new(Mutex::new(replies.to_vec())));
        let task = tokio::spawn(async move {
            let mut running = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                running.spawn(serve(stream, Arc::clone(&shared), Arc::clone(&replies)));
            }
        });
        Self {
            address,
            seen,
            task: task.abort_handle(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    /// Connections that the other side ended.
    pub(crate) fn ended(&self) -> usize {
        self.seen.lock().unwrap().ended
    }

    /// Every command but those that set a connection up.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        self.seen.lock().unwrap().commands.clone()
    }

    pub(crate) fn reads(&self) -> Vec<usize> {
        self.seen.lock().unwrap().reads.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Seen>>, replies: Arc<Mutex<Vec<Reply>>>) {
    let mut bytes = Vec::new();
    loop {
        bytes.reserve(256 * 1024);
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            seen.lock().unwrap().ended += 1;
            return;
        }
        let (mut answers, mut added) = (Vec::new(), 0);
        while let Some((command, rest)) = parse(&bytes) {
            bytes.drain(..rest);
            if matches!(command[0].as_str(), "CLIENT" | "PING") {
                answers.extend_from_slice(b"+OK\r\n");
                continue;
            }
            let is_xadd = command[0] == "XADD";
            seen.lock().unwrap().commands.push(command);
            if !is_xadd {
                answers.extend_from_slice(b"+OK\r\n");
                continue;
            }
            added += 1;
            let reply = {
                let mut replies = replies.lock().unwrap();
                if replies.len() > 1 {
                    replies.remove(0)
                } else {
                    replies[0]
                }
            };
            match reply {
                Reply::Id => answers.extend_from_slice(b"$15\r\n1700000000000-0\r\n"),
                Reply::Line(line) => answers.extend_from_slice(format!("{line}\r\n").as_bytes()),
                Reply::Silence => {}
                Reply::Close => {
                    let _ = stream.write_all(&answers).await;
                    return;
                }
            }
        }
        if added > 0 {
            seen.lock().unwrap().reads.push(added);
        }
        if stream.write_all(&answers).await.is_err() {
            return;
        }
    }
}

/// One command (an array of bulk strings) and how many bytes it took.
fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut line = |bytes: &[u8]| {
        let end = at + bytes[at..].windows(2).position(|pair| pair == b"\r\n")?;
        let text = std::str::from_utf8(&bytes[at + 1..end])
            .unwrap()
            .parse::<usize>()
            .unwrap();
        at = end + 2;
        Some((text, at))
    };
    let (count, mut next) = line(bytes)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let rest = &bytes[next..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let length: usize = std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap();
        let word = rest.get(end + 2..end + 2 + length)?;
        rest.get(end + 2 + length + 1)?;
        words.push(String::from_utf8(word.to_vec()).unwrap());
        next += end + 2 + length + 2;
    }
    Some((words, next))
}
