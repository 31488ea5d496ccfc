//! `make bench`: runs every measurement, prints a table and writes `target/bench/report.json`.
//!
//! A row is one piece of work, measured beside its peer in the same run. The exit status says whether every row
//! holds. Arguments, if any, choose crates by name.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that prints a report"
)]

mod apiserver;
mod graph;
mod node;
mod peers;
mod plan;
mod process;
mod queue;
mod report;
mod runtime;

use std::{env, path::Path, process::ExitCode};

use report::Row;

/// Always the same place, wherever the build itself goes.
const REPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench/report.json");

type Measurements = fn() -> Vec<Row>;

const CRATES: [(&str, Measurements); 6] = [
    ("graph", graph::rows),
    ("queue", queue::rows),
    ("plan", plan::rows),
    ("apiserver", apiserver::rows),
    ("node", node::rows),
    ("runtime", runtime::rows),
];

fn main() -> ExitCode {
    if runtime::is_memory_side() {
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<String> = env::args().skip(1).collect();
    if let Some(unknown) = chosen.iter().find(|name| CRATES.iter().all(|(known, _)| known != name)) {
        eprintln!(
            "no measurements for {unknown:?}; there are some for {:?}",
            CRATES.map(|(name, _)| name)
        );
        return ExitCode::from(2);
    }
    let mut rows = Vec::new();
    for (name, measure) in CRATES {
        if chosen.is_empty() || chosen.iter().any(|choice| choice == name) {
            eprintln!("measuring {name} ...");
            rows.extend(measure());
        }
    }
    print!("{}", report::table(&rows));
    let file = Path::new(REPORT);
    if let Err(error) = report::write(&rows, file) {
        eprintln!("could not write the report to {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    println!("report: target/bench/report.json");
    if rows.iter().all(|row| row.holds) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
