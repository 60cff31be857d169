//! Which dead letters are meant.

use std::time::SystemTime;

use idemp_core::{EventType, IdempotencyKey, Reason, RunId, SinkName};
use idemp_dlq::Filter;

use crate::exit::Failure;
use crate::times::{Moment, rfc3339};

#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct FilterArgs {
    /// Of this sink; under --to it is called webhook
    #[arg(long, value_parser = SinkName::parse)]
    sink: Option<SinkName>,

    /// Of this event type
    #[arg(long, value_parser = EventType::parse)]
    event: Option<EventType>,

    /// Given up for this reason, such as retries_exhausted
    #[arg(long, value_parser = reason)]
    reason: Option<Reason>,

    /// Of this run
    #[arg(long, value_name = "ID", value_parser = RunId::parse)]
    run: Option<RunId>,

    /// With this key
    // `show` has an argument called key.
    #[arg(id = "filter_key", long = "key", value_name = "KEY", value_parser = IdempotencyKey::parse)]
    key: Option<IdempotencyKey>,

    /// Given up at this time or later: RFC 3339, or so long ago as 2h
    #[arg(long, value_name = "T", value_parser = Moment::parse)]
    since: Option<Moment>,

    /// Given up before this time: RFC 3339, or so long ago as 2h
    #[arg(long, value_name = "T", value_parser = Moment::parse)]
    until: Option<Moment>,
}

impl FilterArgs {
    /// The filter, with times ago counted from now.
    ///
    /// # Errors
    /// If no time lies between `--since` and `--until`.
    pub(crate) fn resolve(&self) -> Result<Filter, Failure> {
        let now = SystemTime::now();
        let (since, until) = (
            self.since.map(|moment| moment.resolve(now)),
            self.until.map(|moment| moment.resolve(now)),
        );
        if let (Some(since), Some(until)) = (since, until)
            && since >= until
        {
            let (since, until) = (rfc3339(since), rfc3339(until));
            return Err(Failure::usage(format_args!(
                "--since {since} is not before --until {until}: nothing lies between them"
            )));
        }
        Ok(Filter {
            sink: self.sink.clone(),
            event_type: self.event.clone(),
            reason: self.reason,
            run_id: self.run.clone(),
            key: self.key.clone(),
            since,
            until,
            ..Filter::default()
        })
    }
}

fn reason(code: &str) -> Result<Reason, String> {
    code.parse().map_err(|_| {
        let codes: Vec<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        format!("not one of {}", codes.join(", "))
    })
}
