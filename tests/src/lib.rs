//! Integration tests against real services live in `tests/`.
