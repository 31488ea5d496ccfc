//! Volumes made on this machine, and what becomes of them after; and the claims that pods bring along.
//!
//! ```text
//!   claim ── somebody asks for a volume of ours ──► volume made (a directory, on the chosen node)
//!   volume ── released, and to be deleted ────────► directory and volume deleted
//! ```
//!
//! Which claim has which volume is not decided here but by whoever binds claims, and the API server lets go of both when
//! nobody uses them: two who bind would take volumes from each other.
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
