//! The table of replies in docs/receiver.md, as bytes. What depends on how a body comes in is in `http`, the end of the
//! process in `races`.

mod bodies;
mod copies;
mod handlers;
mod keys;
mod outages;
mod signatures;
mod standard;
