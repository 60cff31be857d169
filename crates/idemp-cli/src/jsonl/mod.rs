//! Events as JSON Lines: `{"run_id", "event", "step_index", "data"}`, one per line.

mod event;
mod fields;
mod lines;

pub(crate) use event::{LineError, message};
pub(crate) use lines::{Line, Lines};
