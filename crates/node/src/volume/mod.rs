//! The volumes of a pod: directories and files of this machine, made ready and kept up to date.

mod atomic;
mod host_path;
mod ownership;
mod payload;
mod prepare;

pub(crate) use payload::Wants;
pub(crate) use prepare::{Failure, Place, Setting, Volumes, empty_dir, refresh, set_up, tear_down};
