//! Real containers, real processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

mod adoption;
mod exec;
mod isolation;
mod life;
mod limits;
mod speed;
