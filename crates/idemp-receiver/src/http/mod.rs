//! The receiver before a tower service.

mod body;
#[cfg(feature = "axum")]
mod extract;
mod layer;

#[cfg(feature = "axum")]
pub use extract::NoReceiver;
pub use layer::{ReceiverLayer, ReceiverService};
