//! The store from outside: importing, naming, sharing, collecting, surviving, exporting and pulling.

mod archives;
mod importing;
mod keeping;
mod pulling;
mod registry;
