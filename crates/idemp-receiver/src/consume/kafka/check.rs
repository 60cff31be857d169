//! Whether a broker is there.

use std::sync::OnceLock;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};

use crate::consume::config::ConsumerError;

/// How long a broker may take to answer, over connections that are made as often as librdkafka likes.
const WITHIN: Duration = Duration::from_secs(5);

/// How often librdkafka is asked what it has to say, and how long each time.
const WORDS: (usize, Duration) = (100, Duration::from_millis(10));

/// Keeps what librdkafka says of the first thing that went wrong: its error codes do not tell a refused connection from
/// a refused login.
#[derive(Default)]
struct FirstWord(OnceLock<String>);

impl ClientContext for FirstWord {
    fn log(&self, level: RDKafkaLogLevel, _facility: &str, text: &str) {
        use RDKafkaLogLevel::{Alert, Critical, Emerg, Error};

        if matches!(level, Emerg | Alert | Critical | Error) {
            // Only the first is kept.
            let _ = self.0.set(text.to_owned());
        }
    }
}

impl ConsumerContext for FirstWord {}

/// Asks for the brokers' metadata. Blocks its thread.
pub(super) fn brokers(settings: &ClientConfig) -> Result<(), ConsumerError> {
    // The text of the client's error may quote a property.
    let consumer: BaseConsumer<FirstWord> = settings
        .create_with_context(FirstWord::default())
        .map_err(|_| ConsumerError::client("librdkafka makes no consumer of these properties"))?;
    let Err(error) = consumer.fetch_metadata(None, WITHIN) else {
        return Ok(());
    };
    // What it says comes between messages, of which there are none without a subscription.
    let (most, wait) = WORDS;
    for _ in 0..most {
        if consumer.context().0.get().is_some() {
            break;
        }
        drop(consumer.poll(wait));
    }
    let said = consumer.context().0.get().cloned();
    Err(ConsumerError::unreachable(said.unwrap_or_else(|| {
        let code = error.rdkafka_error_code();
        code.map_or_else(|| "no answer".to_owned(), |code| format!("{code:?}"))
    })))
}
