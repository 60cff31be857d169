//! What the peer says, and what it does with the connection then.

use std::time::Duration;

use crate::gate::Gate;

/// What the peer does once it has read a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) delay: Duration,
    pub(super) gate: Option<Gate>,
    text: Text,
    pub(super) then: Then,
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
pub(super) enum Then {
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
    pub(super) fn encode(&self) -> Vec<u8> {
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

    pub(super) fn is_endless(&self) -> bool {
        matches!(self.text, Text::Response { endless: true, .. })
    }
}
