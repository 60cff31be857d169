#![doc = include_str!("../README.md")]

mod admission;
mod clock;
mod config;
mod dispatcher;
mod lane;
mod ledger;
mod letters;
mod meters;
mod queue;
mod room;
mod settlement;
mod slot;
mod stats;

pub use clock::{Clock, SystemClock};
pub use config::{ConfigError, Filter, LaneConfig, OnFull};
pub use dispatcher::{Dispatcher, SubmitError, SubmitErrorKind};
pub use settlement::{Handle, Report, Settlement};
pub use stats::{LaneStats, Stats};
