//! The store from outside: importing, naming, sharing, collecting, surviving, exporting and pulling.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on panics, and says when it is skipped"
)]

mod archives;
mod importing;
mod keeping;
mod pulling;
mod registry;
