//! `idemp doctor`: looks whether a Redis suits claims, and whether the timing rules hold.

use std::time::Duration;

use idemp_core::{Cadence, RetrySchedule, SinkName};
use idemp_receiver::ReceiverConfig;
use serde::Serialize;

use crate::config::{Config, ConfigArg};
use crate::exit::{Exit, Failure};
use crate::io::{print_bytes, print_json};
use crate::receive::CadenceName;
use crate::receive::store::StoreArg;
use crate::{runtime, times};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The store of claims to look at, as `receive --store` takes it: `redis://[USER@]HOST:PORT/DB`
    #[arg(long, value_name = "STORE", value_parser = StoreArg::parse)]
    store: Option<StoreArg>,

    /// Compare the receiver's times with the sinks of this file
    #[command(flatten)]
    config: ConfigArg,

    /// How long the receiver remembers a processed event (default: what --cadence says)
    #[arg(long, value_name = "D", value_parser = times::duration, conflicts_with = "cadence")]
    ttl: Option<Duration>,

    /// How often the senders' runs come
    #[arg(long, value_name = "HOW", default_value = "sub-minute")]
    cadence: CadenceName,

    /// The lease of a claim
    #[arg(long, value_name = "D", default_value = "6s", value_parser = times::duration)]
    lease: Duration,

    /// How long a handler may run
    #[arg(long, value_name = "D", default_value = "4s", value_parser = times::duration)]
    handler_cap: Duration,

    /// How long the sender waits for one reply
    #[arg(long, value_name = "D", default_value = "5s", value_parser = times::duration)]
    attempt_timeout: Duration,

    /// The sender's waiting between all its attempts
    #[arg(long, value_name = "D", default_value = "36s", value_parser = times::duration)]
    retry_budget: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    check: String,
    found: String,
    /// What is wrong with it; `null` if nothing is.
    finding: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    healthy: bool,
    checks: Vec<Check>,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let config = args.config.load()?;
    let mut checks = vec![args.times("times", args.attempt_timeout)];
    if let Some(config) = &config {
        checks.extend(sinks(args, config));
    }
    if let Some(store) = &args.store {
        checks.extend(runtime()?.block_on(store_checks(store))?);
    }
    let healthy = checks.iter().all(|check| check.finding.is_none());
    if args.json {
        print_json(&Report { healthy, checks })?;
    } else {
        print_bytes(human(&checks).as_bytes())?;
    }
    Ok(if healthy { Exit::Done } else { Exit::Failed })
}

impl Args {
    /// The rules between the receiver's times and a sender's.
    fn times(&self, check: &str, attempt_timeout: Duration) -> Check {
        let receiver = ReceiverConfig {
            ttl: self.ttl.unwrap_or_else(|| Cadence::from(self.cadence).ttl()),
            lease: self.lease,
            handler_cap: self.handler_cap,
            attempt_timeout,
            retry_budget: self.retry_budget,
            // Its own rule is about the receiver alone.
            store_timeout: ReceiverConfig::default().store_timeout.min(attempt_timeout),
            ..ReceiverConfig::default()
        };
        Check {
            check: check.to_owned(),
            found: format!(
                "ttl {:?}, lease {:?}, handler cap {:?}, attempt timeout {attempt_timeout:?}, retry budget {:?}",
                receiver.ttl, receiver.lease, receiver.handler_cap, receiver.retry_budget
            ),
            finding: joined(receiver.violations().iter().map(ToString::to_string).collect()),
        }
    }
}

/// All that is wrong with one thing.
fn joined(findings: Vec<String>) -> Option<String> {
    (!findings.is_empty()).then(|| findings.join("; "))
}

/// A sink whose attempts end before the receiver's handler does sends again what is at work.
fn sinks(args: &Args, config: &Config) -> Vec<Check> {
    let budget = RetrySchedule::default().budget();
    let timed = config.sinks.iter().filter(|(_, table)| table.is_webhook());
    let check = |name: &SinkName, timeout: Duration| {
        let mut check = args.times(&format!("times of sink {name}"), timeout);
        if args.retry_budget < budget {
            let more = format!(
                "the receiver counts on a retry budget of {:?}, but the sink's is {budget:?}",
                args.retry_budget
            );
            check.finding = joined(check.finding.into_iter().chain([more]).collect());
        }
        check
    };
    timed
        .map(|(name, table)| check(&name.0, table.timeout.unwrap_or(args.attempt_timeout)))
        .collect()
}

async fn store_checks(store: &StoreArg) -> Result<Vec<Check>, Failure> {
    match store {
        #[cfg(feature = "redis")]
        StoreArg::Remote(address) if address.scheme != "postgres" => {
            let opened = crate::receive::store::redis_store(address.clone());
            let opened = opened.map_err(|failure| failure.within(format_args!("--store {store}")))?;
            let checks = opened.diagnose().await.into_iter();
            Ok(checks
                .map(|checked| Check {
                    check: format!("redis {}", checked.check),
                    found: checked.found,
                    finding: checked.finding,
                })
                .collect())
        }
        _ => Err(Failure::usage(format_args!(
            "--store {store}: only a Redis is looked at, by a build with the feature redis"
        ))),
    }
}

fn human(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.check.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Check { check, found, finding } in checks {
        let verdict = if finding.is_some() { "FINDING" } else { "ok" };
        text.push_str(&format!("{verdict:<8} {check:<width$}  {found}\n"));
        if let Some(finding) = finding {
            text.push_str(&format!("{:<8} {:<width$}  {finding}\n", "", ""));
        }
    }
    text
}
