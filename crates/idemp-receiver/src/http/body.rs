//! Reads a request's body whole, within a limit.

use std::pin::pin;

use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::BodyExt;

use crate::reply::{BadRequest, Reply};

/// How much of a body over the limit is read and thrown away, in bytes, so that a sender that first writes all of it
/// and then reads gets to see the reply. Our own sender makes no larger bodies.
const DISCARD: u64 = 16 * 1024 * 1024;

/// The bytes of a body of at most `limit`. How many come is known from the bytes alone: a request without
/// `Content-Length` has a body like any other.
///
/// With `waits`, the sender holds the body back until we ask for it (`Expect: 100-continue`).
pub(super) async fn collect<B: Body>(body: B, limit: usize, waits: bool) -> Result<Bytes, Reply> {
    let mut body = pin!(body);
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        if !waits && announced <= DISCARD {
            discard(body, 0).await;
        }
        return Err(Reply::TooLarge);
    }
    let (mut whole, mut parts) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(Reply::BadRequest(BadRequest::BodyUnread));
        };
        let Ok(mut data) = frame.into_data() else { continue };
        let read = whole.len() + parts.len();
        if data.remaining() > limit - read {
            discard(body, read + data.remaining()).await;
            return Err(Reply::TooLarge);
        }
        if read == 0 {
            // Most bodies come in one piece, which is not copied.
            whole = data.copy_to_bytes(data.remaining());
            continue;
        }
        if parts.is_empty() {
            parts.reserve(usize::try_from(announced).unwrap_or(0).max(read + data.remaining()));
            parts.extend_from_slice(&std::mem::take(&mut whole));
        }
        while data.has_remaining() {
            let piece = data.chunk();
            parts.extend_from_slice(piece);
            let len = piece.len();
            data.advance(len);
        }
    }
    Ok(if parts.is_empty() { whole } else { parts.into() })
}

async fn discard<B: Body>(mut body: std::pin::Pin<&mut B>, read: usize) {
    let mut read = read as u64;
    while read <= DISCARD
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, |data| data.remaining() as u64);
    }
}
