//! Claims and volumes: which claim has which volume, volumes made on this machine, and what becomes of them after.
//!
//! ```text
//!   claim ── has a class of ours ──► volume made (a directory, on the chosen node) ──► bound
//!     │                                                                                  │
//!     └── matches a volume that is there ──────────────────────────────────────────────► bound
//!                                                     claim deleted: kept, or deleted ◄──┘
//! ```
//!
//! What is to be done is decided by functions of the objects (`decide`); `run` fetches, acts and looks again.

mod decide;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use run::{Sources, ensure_class, run};

/// The name by which storage classes ask for volumes on this machine.
pub const PROVISIONER: &str = "moorline.io/local";
/// The storage class that is made at the first start, and is the default.
pub const CLASS: &str = "local";
