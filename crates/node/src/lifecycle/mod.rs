//! What becomes of nodes that fall silent, and of pods on them.
//!
//! A node that has not renewed its lease is marked as unknown and tainted; pods that do not tolerate a taint are deleted
//! when their patience is over; pods of nodes that are gone are deleted at once. What is to be done is decided by
//! functions (`decide`); `run` carries it out.

mod decide;
mod run;

pub(crate) use run::{Sources, run};
