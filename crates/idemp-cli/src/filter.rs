//! Which dead letters are meant.

use std::time::SystemTime;

use idemp_core::{EventType, Reason, RunId, SinkName};
use idemp_dlq::Filter;

use crate::times::Moment;

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

    /// Given up at this time or later: RFC 3339, or so long ago as 2h
    #[arg(long, value_name = "T", value_parser = Moment::parse)]
    since: Option<Moment>,

    /// Given up before this time: RFC 3339, or so long ago as 2h
    #[arg(long, value_name = "T", value_parser = Moment::parse)]
    until: Option<Moment>,
}

impl FilterArgs {
    /// The filter, with times ago counted from now.
    pub(crate) fn resolve(&self) -> Filter {
        let now = SystemTime::now();
        Filter {
            sink: self.sink.clone(),
            event_type: self.event.clone(),
            reason: self.reason,
            run_id: self.run.clone(),
            since: self.since.map(|moment| moment.resolve(now)),
            until: self.until.map(|moment| moment.resolve(now)),
            ..Filter::default()
        }
    }

    /// Whether nothing is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.resolve() == Filter::default()
    }

    /// Whether one sink is named.
    pub(crate) fn names_sink(&self) -> bool {
        self.sink.is_some()
    }
}

fn reason(code: &str) -> Result<Reason, String> {
    code.parse().map_err(|_| {
        let codes: Vec<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        format!("not one of {}", codes.join(", "))
    })
}
