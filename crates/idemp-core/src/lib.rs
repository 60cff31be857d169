//! Being written.
#![forbid(unsafe_code)]
