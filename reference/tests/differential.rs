//! The same requests to our server and to a real kube-apiserver: the answers are equal, or the difference is written
//! down with its reason in `docs/compatibility.md`.
//!
//! It takes minutes and a real server, so only `make test-reference` runs it, by setting `MOORLINE_REFERENCE=required`.
//! `MOORLINE_SCENARIO=crud:7` replays one scenario, `MOORLINE_SCENARIO=crud,watch:3` those of a generator and one more,
//! `MOORLINE_SEEDS=5` takes five times as many, `MOORLINE_EXAMPLES=9` prints nine answers of each shape. Runs do not
//! disturb each other: each has ports and folders of its own.

#![allow(
    clippy::print_stderr,
    reason = "a person reads what differs, and why nothing was compared"
)]

use std::{collections::BTreeMap, env, fs, path::Path};

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use moorline_apiserver::{
    certificates::Certificates,
    server::{ApiServer, Config, Upkeep},
};
use moorline_reference::{
    accepted::{self, Accepted},
    canonical::Canonical,
    client::{Answer, Client},
    corpus,
    differ::{Difference, differences},
    real::{self, Durability},
    step::{Memory, Scenario, Step, Until},
};
use serde_json::Value;

/// How many answers of one shape are printed.
const EXAMPLES: usize = 2;
/// How many differences of one answer are printed.
const SHOWN: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_answers_are_those_of_a_real_api_server() {
    if env::var("MOORLINE_REFERENCE").as_deref() != Ok("required") {
        eprintln!("skipped: `make test-reference` builds the real server and compares with it");
        return;
    }
    let programs = real::find().unwrap_or_else(|why| panic!("{why}"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compatibility.md");
    let accepted = accepted::read(&fs::read_to_string(page).unwrap());
    let theirs = programs.start(Durability::Unsynced).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::open(&folder.path().join("pki"), &[], Timestamp::now()).unwrap();
    let config = Config {
        directory: Some(folder.path().to_owned()),
        // The real one has no controller manager beside it.
        upkeep: Upkeep::Own,
        ..Config::ephemeral()
    };
    let server = ApiServer::start(config).await.unwrap();
    let ours = Client::new(server.address(), &certificates);

    let replayed = env::var("MOORLINE_SCENARIO").ok();
    let scenarios = match &replayed {
        Some(names) => names
            .split(',')
            .flat_map(|name| {
                let found = corpus::named(name);
                assert!(
                    !found.is_empty(),
                    "MOORLINE_SCENARIO: there is no generator or scenario {name:?}"
                );
                found
            })
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
        let mut found = differences(&our_form, &their_form);
        found.retain(|difference| !accepted.iter().any(|row| row.means(step, difference)));
        if !found.is_empty() {
            report.add(scenario, number, step, &found, [&our_form, &their_form]);
        }
        let writes = !matches!(step.method, Method::GET | Method::HEAD) && !step.path.contains("dryRun=All");
        if writes && their_answer.status.is_success() {
            let_the_cache_catch_up(theirs, &step.filled(&their_memory).0, &their_answer).await;
        }
        if writes && our_answer.status.is_success() != their_answer.status.is_success() {
            // From here on the two hold different objects; what follows would say so again and again.
            break;
        }
    }
}

/// Waits until a real server's cache has seen what it was just told to write.
///
/// It tries a patch on what its cache holds, and when that was not the newest it tries again, with the warnings of both
/// tries in its answer: a matter of chance, and nothing to compare with.
async fn let_the_cache_catch_up(theirs: &Client, path: &str, answer: &Answer) {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let metadata = &body["metadata"];
    let (Some(version), Some(name)) = (metadata["resourceVersion"].as_str(), metadata["name"].as_str()) else {
        return;
    };
    let mut object = path.split('?').next().unwrap_or_default().to_owned();
    if !object.ends_with(&format!("/{name}")) {
        object = format!("{object}/{name}");
    }
    // Answered from the cache, once that is not older than the version.
    let path = format!("{object}?resourceVersion={version}");
    let _ = theirs.send(Method::GET, &path, &[], Bytes::new()).await;
}

/// What differs, gathered by shape, because one cause shows in many places.
#[derive(Default)]
struct Report {
    requests: usize,
    shapes: BTreeMap<String, (usize, Vec<String>)>,
}

impl Report {
    fn add(&mut self, scenario: &Scenario, number: usize, step: &Step, found: &[Difference], forms: [&Value; 2]) {
        let status = forms.map(|form| form["status"].to_string());
        let generator = scenario.name.split(':').next().unwrap_or_default();
        let (shape, what) = if status[0] == status[1] {
            let mut places: Vec<String> = found.iter().map(|difference| generalised(&difference.place)).collect();
            places.dedup();
            places.truncate(4);
            let what: Vec<String> = found.iter().take(SHOWN).map(ToString::to_string).collect();
            (places.join(", "), what.join("\n  "))
        } else {
            let words = forms.map(|form| match form.pointer("/body/message") {
                Some(message) => message.to_string(),
                None => String::new(),
            });
            let what = format!(
                "ours:   {} {}\n  theirs: {} {}",
                status[0], words[0], status[1], words[1]
            );
            (format!("status {} instead of {}", status[0], status[1]), what)
        };
        let (count, examples) = self
            .shapes
            .entry(format!("{generator} {} {shape}", step.method))
            .or_default();
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
                "  {} step {number}: {} {} [{}]\n  {}\n  {what}\n",
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
        writeln!(f, "{total} answers differ, in {} shapes:\n", self.shapes.len())?;
        for (shape, (count, examples)) in &self.shapes {
            writeln!(f, "== {count} x {shape}\n{}", examples.join("\n"))?;
        }
        writeln!(
            f,
            "replay with: MOORLINE_SCENARIO=<generator[:seed]> make test-reference"
        )
    }
}
