use idemp_core::{EventType, IdempotencyKey, KeyParts, RunId, SinkName, StepIndex};
use idemp_receiver::{ClaimKey, Scope};

/// Keys of ours and of other senders, beside their rules written down once more (docs/keys.md, docs/receiver.md).
pub fn keys(value: &[u8]) {
    let claimed = ClaimKey::from_header(&Scope::default(), value);
    let expected = header_key(value);
    assert_eq!(
        claimed.ok().map(|key| key.key().to_owned()),
        expected,
        "a key in a header"
    );

    let Ok(text) = std::str::from_utf8(value) else { return };
    let key = IdempotencyKey::parse(text);
    let parts = KeyParts::parse(text);
    assert_eq!(key.as_ref().err(), parts.as_ref().err());
    match (key, canonical(text)) {
        (Ok(key), Some((run_id, event_type, step))) => {
            assert_eq!(key.as_str(), text);
            assert_eq!(
                (key.run_id(), key.event_type(), key.step_index().as_u64()),
                (run_id, event_type, step)
            );
            let parse = (
                RunId::parse(run_id).expect("a part of a key"),
                EventType::parse(event_type).expect("a part of a key"),
                StepIndex::new(step).expect("a part of a key"),
            );
            assert_eq!(
                IdempotencyKey::new(&parse.0, &parse.1, parse.2),
                key,
                "put together again"
            );
        }
        (Err(error), None) => assert!(!error.to_string().is_empty()),
        (key, expected) => panic!("{key:?} is not {expected:?}"),
    }
    assert_eq!(
        RunId::parse(text).is_ok(),
        is_name(text, |first| first.is_ascii_alphanumeric())
    );
    assert_eq!(
        SinkName::parse(text).is_ok(),
        is_name(text, |first| first.is_ascii_alphanumeric())
    );
    assert_eq!(
        EventType::parse(text).is_ok(),
        is_name(text, |first| first.is_ascii_alphabetic())
    );
}

/// `run_id:event_type:step_index`
fn canonical(text: &str) -> Option<(&str, &str, u64)> {
    let [run_id, event_type, step] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
    let digits = step.bytes().all(|byte| byte.is_ascii_digit()) && !step.starts_with('0');
    let number: i64 = step.parse().ok().filter(|_| digits)?;
    let names = is_name(run_id, |first| first.is_ascii_alphanumeric())
        && is_name(event_type, |first| first.is_ascii_alphabetic());
    names.then_some((run_id, event_type, number.unsigned_abs()))
}

fn is_name(text: &str, first: impl Fn(char) -> bool) -> bool {
    text.len() <= 64
        && text.chars().next().is_some_and(first)
        && text
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
}

/// A bare key, or one string of RFC 8941.
fn header_key(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    let key = match text.strip_prefix('"') {
        None => text.to_owned(),
        Some(quoted) => {
            let inner = quoted.strip_suffix('"')?.replace("\\\\", "\0");
            // No key has a quote in it, escaped or not, and nothing else is escaped.
            if inner.contains(['\\', '"']) {
                return None;
            }
            inner.replace('\0', "\\")
        }
    };
    let good = |char: char| char.is_ascii_graphic() && !",\"{}".contains(char);
    let no_zero = !text.contains('\0');
    ((1..=255).contains(&key.len()) && no_zero && key.chars().all(good)).then_some(key)
}
