//! Pods as Linux containers on this machine.
#![forbid(unsafe_code)]
mod amounts;
mod env;
mod events;
mod key;
mod mirror;
mod pod;
pub mod scheduler;
pub use amounts::Amounts;
pub use key::Key;
