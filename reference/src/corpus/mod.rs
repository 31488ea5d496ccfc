//! The requests: scenarios drawn from seeds, each in a namespace of its own.
//!
//! A scenario leaves nothing behind that another one would see: cluster-wide objects carry its name and are deleted at
//! its end. It asks nothing that depends on controllers, which the real server here has none of.

mod access;
mod bad;
mod crud;
mod custom;
mod discovery;
mod lists;
mod mutate;
pub mod objects;
mod ownership;
mod watch;

use fastrand::Rng;
use serde_json::json;

use crate::step::{Scenario, Step, Until};

/// Draws the steps of a scenario; the namespace is there already.
type Generator = fn(&mut Rng, &Place) -> Vec<Step>;

/// Name, generator, and how many seeds a run takes.
const GENERATORS: [(&str, Generator, u64); 9] = [
    ("crud", crud::steps, 60),
    ("mutate", mutate::steps, 150),
    ("ownership", ownership::steps, 30),
    ("lists", lists::steps, 12),
    ("bad", bad::steps, 12),
    ("custom", custom::steps, 16),
    ("access", access::steps, 8),
    ("discovery", discovery::steps, 1),
    ("watch", watch::steps, 8),
];

/// Where a scenario happens.
pub struct Place {
    /// Its namespace, also a name for its cluster-wide objects.
    pub namespace: String,
    /// Its seed: for going through a list rather than drawing from it.
    pub seed: u64,
}

/// Everything that one run compares. `more` multiplies the seeds.
pub fn all(more: u64) -> Vec<Scenario> {
    GENERATORS
        .iter()
        .flat_map(|(name, _, seeds)| {
            let count = if *seeds == 1 { 1 } else { seeds * more };
            (0..count).filter_map(move |seed| scenario(&format!("{name}:{seed}")))
        })
        .collect()
}

/// The scenarios of a name: one by `generator:seed`, or those that a run takes of a `generator`.
pub fn named(name: &str) -> Vec<Scenario> {
    if name.contains(':') {
        return scenario(name).into_iter().collect();
    }
    let generator = GENERATORS.iter().find(|(known, _, _)| *known == name);
    let seeds = generator.map_or(0, |(_, _, seeds)| *seeds);
    (0..seeds)
        .filter_map(|seed| scenario(&format!("{name}:{seed}")))
        .collect()
}

/// One scenario by its name, `generator:seed`.
pub fn scenario(name: &str) -> Option<Scenario> {
    let (generator, seed) = name.split_once(':')?;
    let seed: u64 = seed.parse().ok()?;
    let (generator, draw, _) = GENERATORS.iter().find(|(known, _, _)| *known == generator)?;
    let place = Place {
        namespace: format!("{generator}-{seed}"),
        seed,
    };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.namespace}});
    // No controller manager makes the account that pods run as.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let accounts = place.collection("/api/v1", "serviceaccounts");
    let mut steps = vec![
        Step::post("/api/v1/namespaces", &namespace).until(Until::Ignored),
        Step::post(accounts, &account).until(Until::Ignored),
    ];
    steps.extend(draw(&mut Rng::with_seed(seed), &place));
    let gone = Step::delete(format!("/api/v1/namespaces/{}", place.namespace));
    steps.push(gone.until(Until::Ignored));
    Some(Scenario {
        name: name.to_owned(),
        steps,
    })
}

impl Place {
    /// The path of the objects of one kind in this namespace, as in `/api/v1`, `pods`.
    fn collection(&self, version: &str, plural: &str) -> String {
        format!("{version}/namespaces/{}/{plural}", self.namespace)
    }
}

/// One of them.
fn pick<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}
