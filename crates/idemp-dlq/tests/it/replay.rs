//! Replays, on a clock that jumps.

mod attempts;
mod faults;
mod limits;
mod operators;
mod refusals;
mod stops;
mod support;
