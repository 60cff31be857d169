//! The receiver before a tower service.

mod body;
mod exchange;
#[cfg(feature = "axum")]
mod extract;
mod layer;
mod service;

#[cfg(feature = "axum")]
pub use extract::NoReceiver;
pub use layer::{ReceiverLayer, ReceiverService};
pub use service::HandlerService;
