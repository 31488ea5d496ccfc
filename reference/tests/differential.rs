//! The same requests to our server and to a real kube-apiserver: the answers are equal, or the difference is written
//! down with its reason in `docs/compatibility.md`.
//!
//! `make test-reference` insists on the real server; without `MOORLINE_REFERENCE=required` its absence skips the test.
//! `MOORLINE_SCENARIO=crud:7` replays one scenario, `MOORLINE_SEEDS=5` takes five times as many.

#![allow(
    clippy::print_stderr,
    reason = "a person reads what differs, and why nothing was compared"
)]

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::Path};

use jiff::Timestamp;
use moorline_apiserver::{
    certificates::Certificates,
    server::{ApiServer, Config},
};
use moorline_reference::{
    accepted::{self, Accepted},
    canonical::Canonical,
    client::Client,
    corpus,
    differ::{Difference, differences},
    real::{self, Durability},
    step::{Memory, Scenario, Step, Until},
};

/// How many differences of one shape are printed in full.
const EXAMPLES: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_answers_are_those_of_a_real_api_server() {
    let programs = match real::find() {
        Ok(programs) => programs,
        Err(why) => {
            assert_ne!(env::var("MOORLINE_REFERENCE").as_deref(), Ok("required"), "{why}");
            eprintln!("skipped: {why}");
            return;
        }
    };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compatibility.md");
    let accepted = accepted::read(&fs::read_to_string(page).unwrap());
    let theirs = programs.start(Durability::Unsynced).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::open(&folder.path().join("pki"), &[], Timestamp::now()).unwrap();
    let config = Config {
        directory: Some(folder.path().to_owned()),
        ..Config::ephemeral()
    };
    let server = ApiServer::start(config).await.unwrap();
    let ours = Client::new(server.address(), &certificates);

    let replayed = env::var("MOORLINE_SCENARIO").ok();
    let scenarios = match &replayed {
        Some(names) => names
            .split(',')
            .map(|name| corpus::scenario(name).expect("MOORLINE_SCENARIO names a generator and a seed"))
            .collect(),
        None => corpus::all(
            env::var("MOORLINE_SEEDS")
                .ok()
                .and_then(|n| n.parse().ok())
                .unwrap_or(1),
        ),
    };
    let mut report = Report::default();
    for scenario in &scenarios {
        run(scenario, &ours, theirs.client(), &accepted, &mut report).await;
    }
    if replayed.is_none() {
        let stale: Vec<&str> = accepted
            .iter()
            .filter(|row| !row.was_seen())
            .map(|row| row.row.as_str())
            .collect();
        assert!(stale.is_empty() || report.shapes.is_empty(), "{report}");
        assert!(
            stale.is_empty(),
            "nothing differs any more by these rows of docs/compatibility.md; remove them:\n{}",
            stale.join("\n")
        );
    }
    eprintln!("{} scenarios, {} requests, compared", scenarios.len(), report.requests);
    assert!(report.shapes.is_empty(), "{report}");
}

async fn run(scenario: &Scenario, ours: &Client, theirs: &Client, accepted: &[Accepted], report: &mut Report) {
    let (mut our_memory, mut their_memory) = (Memory::new(), Memory::new());
    let (mut our_names, mut their_names) = (Canonical::default(), Canonical::default());
    for (number, step) in scenario.steps.iter().enumerate() {
        let (our_answer, their_answer) =
            tokio::join!(step.send(ours, &mut our_memory), step.send(theirs, &mut their_memory));
        report.requests += 1;
        let our_answer =
            our_answer.unwrap_or_else(|error| panic!("{}: our server broke off: {error:?}", scenario.name));
        let their_answer =
            their_answer.unwrap_or_else(|error| panic!("{}: the real server broke off: {error:?}", scenario.name));
        let our_form = our_names.answer(number, &our_answer);
        let their_form = their_names.answer(number, &their_answer);
        if step.until == Until::Ignored {
            continue;
        }
        for difference in differences(&our_form, &their_form) {
            if !accepted.iter().any(|row| row.means(step, &difference)) {
                report.add(scenario, number, step, difference);
            }
        }
    }
}

/// What differs, gathered by shape, because one cause shows in many places.
#[derive(Default)]
struct Report {
    requests: usize,
    shapes: BTreeMap<String, (usize, Vec<String>)>,
}

impl Report {
    fn add(&mut self, scenario: &Scenario, number: usize, step: &Step, difference: Difference) {
        let shape = format!("{} {}", step.method, generalised(&difference.place));
        let (count, examples) = self.shapes.entry(shape).or_default();
        *count += 1;
        let limit = env::var("MOORLINE_EXAMPLES")
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(EXAMPLES);
        if examples.len() < limit {
            let headers: Vec<String> = step
                .headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect();
            examples.push(format!(
                "  {} step {number}: {} {} [{}]\n  {}\n  {difference}\n",
                scenario.name,
                step.method,
                step.path,
                headers.join("; "),
                String::from_utf8_lossy(&step.body)
            ));
        }
    }
}

/// A place without its numbers.
fn generalised(place: &str) -> String {
    let parts = place
        .split('/')
        .map(|part| if part.parse::<u32>().is_ok() { "#" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total: usize = self.shapes.values().map(|(count, _)| count).sum();
        writeln!(f, "{total} differences of {} shapes:\n", self.shapes.len())?;
        for (shape, (count, examples)) in &self.shapes {
            let mut text = format!("== {count} x {shape}\n");
            for example in examples {
                let _ = writeln!(text, "{example}");
            }
            f.write_str(&text)?;
        }
        writeln!(f, "replay with: MOORLINE_SCENARIO=<generator:seed> make test-reference")
    }
}
