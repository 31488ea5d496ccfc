//! The differences that are meant: the table in `docs/compatibility.md`.

use std::cell::Cell;

use regex::Regex;

use crate::{
    differ::{Difference, text},
    step::Step,
};

/// The heading that the table stands below.
pub const HEADING: &str = "## Held against a real server";

/// A row of the table: `| request | where | here | there | why |`, in which a star stands for anything.
pub struct Accepted {
    /// The row as it is written.
    pub row: String,
    request: Regex,
    place: Regex,
    ours: Regex,
    theirs: Regex,
    seen: Cell<bool>,
}

/// Reads the table out of the page.
///
/// # Panics
/// When there is no such table or a row has not five cells, the last of which gives a reason.
pub fn read(page: &str) -> Vec<Accepted> {
    let section = page
        .split(HEADING)
        .nth(1)
        .expect("the page has a section on the real server");
    let rows = section
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [request, place, ours, theirs, why] = cells[..] else {
            panic!("this row needs five cells: {row}");
        };
        assert!(!why.is_empty(), "this row gives no reason: {row}");
        Accepted {
            row: row.to_owned(),
            request: pattern(request),
            place: pattern(place),
            ours: pattern(ours),
            theirs: pattern(theirs),
            seen: Cell::new(false),
        }
    })
    .collect()
}

fn pattern(cell: &str) -> Regex {
    let text = cell.trim_matches('`');
    let pieces: Vec<String> = text.split('*').map(regex::escape).collect();
    Regex::new(&format!("(?s)^{}$", pieces.join(".*"))).expect("escaped text with stars is a pattern")
}

impl Accepted {
    /// Whether this row means that difference in the answer to that step.
    pub fn means(&self, step: &Step, difference: &Difference) -> bool {
        let request = format!("{} {}", step.method, step.path);
        let means = self.request.is_match(&request)
            && self.place.is_match(&difference.place)
            && self.ours.is_match(&text(difference.ours.as_ref()))
            && self.theirs.is_match(&text(difference.theirs.as_ref()));
        if means {
            self.seen.set(true);
        }
        means
    }

    /// Whether it has met a difference that it means.
    pub fn was_seen(&self) -> bool {
        self.seen.get()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_means_what_its_stars_leave_open_and_nothing_else() {
        let page = format!(
            "x\n\n{HEADING}\n\n| request | where | here | there | why |\n| `GET /a*` | `/status` | `404` | `*` | because |\n"
        );
        let rows = read(&page);
        let differs = |ours: u16| Difference {
            place: "/status".to_owned(),
            ours: Some(json!(ours)),
            theirs: Some(json!(200)),
        };
        assert!(rows[0].means(&Step::get("/a/b"), &differs(404)));
        assert!(!rows[0].means(&Step::get("/a/b"), &differs(500)));
        assert!(!rows[0].means(&Step::get("/b"), &differs(404)));
        assert!(rows[0].was_seen());
    }
}
