//! The object store beyond the contract: the layout, lost replies, refused requests, damage.

mod config;
mod faults;
mod identity;
mod layout;
mod support;
