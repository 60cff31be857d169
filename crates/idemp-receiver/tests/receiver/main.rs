//! The receiver as its users see it.
