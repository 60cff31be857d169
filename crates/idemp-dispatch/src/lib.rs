#![doc = include_str!("../README.md")]

mod admission;
mod clock;
mod config;
mod dispatcher;
mod lane;
mod ledger;
mod letters;
mod line;
mod meters;
mod room;
mod settlement;
mod slot;
mod stats;

pub use clock::{Clock, SystemClock};
pub use config::{ConfigError, Filter, LaneConfig, OnFull};
pub use dispatcher::{Dispatcher, SubmitError, SubmitErrorKind};
pub use settlement::{Handle, Report, Settlement};
pub use stats::{LaneStats, Stats};
