//! `--quarantine FILE`: messages of a consumer that cannot be taken, one JSON line each, with all their bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use idemp_receiver::consume::{QuarantineError, Quarantined};
use serde_json::{Value, json};

use super::out::ends_in_mid_line;
use crate::exit::Failure;
use crate::times::rfc3339;

/// A file for its owner alone. It is opened anew for each message, so that it may be moved away.
#[derive(Clone)]
pub(super) struct Quarantine(Arc<Path>);

/// One line at a time, whichever consumer it comes from.
static APPENDING: Mutex<()> = Mutex::new(());

impl Quarantine {
    /// Makes the file if it is not there.
    ///
    /// # Errors
    /// If it cannot be written to.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        open(path).map_err(|error| {
            Failure::usage(format_args!("--quarantine: cannot write to {}", path.display())).because(&error)
        })?;
        Ok(Self(path.into()))
    }

    /// The same as a consumer wants it.
    pub(super) fn into_fn(self) -> impl Fn(Quarantined) -> BoxFuture<'static, Result<(), QuarantineError>> {
        move |message| {
            let quarantine = self.clone();
            Box::pin(async move { quarantine.take(message).await })
        }
    }

    /// Appends a message. When it returns, the line is on disk.
    pub(super) async fn take(&self, message: Quarantined) -> Result<(), QuarantineError> {
        let mut line = line(&message).to_string();
        line.push('\n');
        let path = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || {
            let _alone = APPENDING.lock().unwrap_or_else(PoisonError::into_inner);
            append(&path, &line)
        });
        let named = |error| format!("cannot write to {}: {error}", self.0.display());
        Ok(written.await.map_err(io::Error::other)?.map_err(named)?)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = open(path)?;
    // What a full disk or a crash has cut short ends here, or both would be no JSON.
    let end = if ends_in_mid_line(&mut file)? { "\n" } else { "" };
    file.write_all([end, line].concat().as_bytes())?;
    // Devices and pipes have no disk.
    if file.metadata()?.is_file() {
        file.sync_data()?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_line_that_was_cut_short_does_not_spoil_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quarantine.jsonl");
        append(&path, "{\"n\":1}\n").unwrap();
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(b"{\"n\":").unwrap();
        append(&path, "{\"n\":2}\n").unwrap();
        append(&path, "{\"n\":3}\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"n\":1}\n{\"n\":\n{\"n\":2}\n{\"n\":3}\n");
    }

    /// Whoever wants no quarantine names it, and must not wait for ever.
    #[test]
    fn what_has_no_disk_is_written_to_all_the_same() {
        append(Path::new("/dev/null"), "{}\n").unwrap();
    }
}
