//! One row a measurement, the table a person reads and the file a machine reads.

use std::{fmt::Write as _, fs, io, path::Path};

use serde::Serialize;

/// One measurement held against its bar. Field names are those of `target/bench/report.json`.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// The crate that was measured, without its prefix.
    #[serde(rename = "crate")]
    pub(crate) krate: &'static str,
    /// What was done, in words.
    pub(crate) work: String,
    /// The unit of `ours` and `peer`.
    pub(crate) unit: &'static str,
    /// Our measurement.
    pub(crate) ours: f64,
    /// The peer's measurement in the same run, where there is a peer and it could run.
    pub(crate) peer: Option<f64>,
    /// Who the peer is, or why it could not run.
    pub(crate) peer_name: Option<String>,
    /// How many times better than the peer we are.
    pub(crate) ratio: Option<f64>,
    /// What must be reached, in words.
    pub(crate) bar: String,
    /// Whether it was reached. A row whose peer could not run is held to its absolute part alone.
    pub(crate) holds: bool,
}

/// Writes the rows as JSON, making the folder where it is missing.
pub(crate) fn write(rows: &[Row], to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, serde_json::to_string_pretty(rows)? + "\n")
}

/// The rows as a table for a terminal.
pub(crate) fn table(rows: &[Row]) -> String {
    let heading = ["crate", "work", "ours", "peer", "ratio", "bar", "holds"].map(String::from);
    let mut cells = vec![heading];
    cells.extend(rows.iter().map(|row| {
        let peer = match (row.peer, &row.peer_name) {
            (Some(value), Some(name)) => format!("{} {} ({name})", figure(value), row.unit),
            (Some(value), None) => format!("{} {}", figure(value), row.unit),
            (None, Some(name)) => name.clone(),
            (None, None) => "-".to_owned(),
        };
        [
            row.krate.to_owned(),
            row.work.clone(),
            format!("{} {}", figure(row.ours), row.unit),
            peer,
            row.ratio.map_or("-".to_owned(), |ratio| format!("{} x", figure(ratio))),
            row.bar.clone(),
            if row.holds { "yes" } else { "NO" }.to_owned(),
        ]
    }));
    let mut widths = [0; 7];
    for line in &cells {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &cells {
        for (cell, width) in line.iter().zip(widths) {
            let _ = write!(text, "{cell:width$}  ");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Three significant figures are all that a noisy machine can tell.
fn figure(value: f64) -> String {
    let size = value.abs();
    if size >= 100.0 || value == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            krate: "graph",
            work: "walk".into(),
            unit: "ms",
            ours: 1.5,
            peer: Some(3000.0),
            peer_name: Some("other".into()),
            ratio: Some(2000.0),
            bar: "fast".into(),
            holds: true,
        }
    }

    #[test]
    fn the_report_has_exactly_the_published_fields() {
        let value = serde_json::to_value(row()).unwrap();
        let mut fields: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "bar",
                "crate",
                "holds",
                "ours",
                "peer",
                "peer_name",
                "ratio",
                "unit",
                "work"
            ]
        );
    }

    #[test]
    fn a_row_without_a_peer_says_why_in_the_table() {
        let alone = Row {
            peer: None,
            ratio: None,
            peer_name: Some("no Go toolchain".into()),
            ..row()
        };
        let text = table(&[alone]);
        assert!(text.lines().nth(1).unwrap().contains("no Go toolchain"), "{text}");
    }
}
