//! `idemp key`: makes an idempotency key, or takes one apart.

use idemp_core::{EventType, IdempotencyKey, RunId, StepIndex};

use crate::exit::{Exit, Failure};
use crate::io::print_line;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The run's id
    #[arg(required_unless_present = "parse", requires = "event")]
    run_id: Option<String>,

    /// The event's type, such as tool_end
    #[arg(requires = "step")]
    event: Option<String>,

    /// The event's number within the run, from 1
    #[arg(allow_negative_numbers = true)]
    step: Option<String>,

    /// Take this key apart instead: exit 0 if it is one, 1 if not
    #[arg(long, value_name = "KEY", conflicts_with_all = ["run_id", "event", "step"], allow_hyphen_values = true)]
    parse: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    if let Some(text) = &args.parse {
        let key = IdempotencyKey::parse(text).map_err(|error| Failure::failed("not a key").because(&error))?;
        let (run_id, event, step) = (key.run_id(), key.event_type(), key.step_index());
        print_line(format_args!("run_id: {run_id}\nevent: {event}\nstep_index: {step}"))?;
        return Ok(Exit::Done);
    }
    let (Some(run_id), Some(event), Some(step)) = (&args.run_id, &args.event, &args.step) else {
        return Err(Failure::usage("a key needs RUN_ID, EVENT and STEP"));
    };
    let key = make(run_id, event, step).map_err(|error| Failure::usage("no key").because(&error))?;
    print_line(key)?;
    Ok(Exit::Done)
}

fn make(run_id: &str, event: &str, step: &str) -> Result<IdempotencyKey, idemp_core::KeyError> {
    Ok(IdempotencyKey::new(
        &RunId::parse(run_id)?,
        &EventType::parse(event)?,
        StepIndex::parse(step)?,
    ))
}
