//! `--quarantine FILE`: messages of a consumer that cannot be taken, one JSON line each, with all their bytes.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use idemp_receiver::consume::{QuarantineError, Quarantined};
use serde_json::{Value, json};

use crate::exit::complain;
use crate::times::rfc3339;

/// A file that is made when the first message comes, for its owner alone.
#[derive(Clone)]
pub(super) struct Quarantine(Arc<Mutex<PathBuf>>);

impl Quarantine {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(Arc::new(Mutex::new(path)))
    }

    /// Appends a message. When it returns, the line is on disk.
    pub(super) async fn take(&self, message: Quarantined) -> Result<(), QuarantineError> {
        let mut line = line(&message).to_string();
        line.push('\n');
        let (position, reason) = (message.position.to_string(), message.reason.code());
        let path = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || {
            let path = path.lock().unwrap_or_else(PoisonError::into_inner);
            append(&path, &line).map(|()| path.display().to_string())
        });
        let file = written.await.map_err(io::Error::other)??;
        complain(format_args!("warning: {position} goes to {file}: {reason}"));
        Ok(())
    }
}

fn append(path: &std::path::Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(line.as_bytes())?;
    file.sync_data()
}

fn line(message: &Quarantined) -> Value {
    let fields: Vec<Value> = message
        .fields
        .iter()
        .map(|(name, value)| json!([shown(name), shown(value)]))
        .collect();
    json!({
        "at": rfc3339(SystemTime::now()),
        "transport": message.position.transport(),
        "position": message.position.to_string(),
        "reason": message.reason.code(),
        "record_key": message.record_key.as_deref().map(shown),
        "fields": fields,
        "body": message.body.as_deref().map(shown),
    })
}

/// Text as it is, other bytes as `{"hex": ...}`.
fn shown(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"hex": crate::dlq::hex(bytes)}),
    }
}
