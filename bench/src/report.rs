//! One row a measurement, the table a person reads and the file a machine reads.

use serde::Serialize;

/// One measurement held against its bar. Field names are those of `target/bench/report.json`.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The crate that was measured, without its prefix.
    #[serde(rename = "crate")]
    pub krate: &'static str,
    /// What was done, in words.
    pub work: String,
    /// The unit of `ours` and `peer`.
    pub unit: &'static str,
    /// Our measurement.
    pub ours: f64,
    /// The peer's measurement in the same run, where there is a peer and it could run.
    pub peer: Option<f64>,
    /// Who the peer is, or why it could not run.
    pub peer_name: Option<String>,
    /// How many times better than the peer we are.
    pub ratio: Option<f64>,
    /// What must be reached, in words.
    pub bar: String,
    /// Whether it was reached. A row whose peer could not run is held to its absolute part alone.
    pub holds: bool,
}
