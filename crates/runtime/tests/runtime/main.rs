//! The runtime on the embedded API server, in this process, with and without accidents.

mod actors;
mod caches;
mod contexts;
mod dependencies;
mod elections;
mod evidence;
mod faults;
mod managers;
mod members;
mod records;
mod scales;
mod scene;
mod traces;
mod wire;
