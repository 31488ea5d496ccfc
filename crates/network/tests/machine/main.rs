//! The network on real namespaces, with real sockets. Each test has an instance of its own, removed however it ends.
//! Where the right to administer the network or the program `nft` is missing, the tests say so and do nothing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests may fail and may say so"
)]

mod connecting;
mod dns;
mod faults;
mod harness;
mod lifecycle;
mod measures;
mod outside;
mod services;
