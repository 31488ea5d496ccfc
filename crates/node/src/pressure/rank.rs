//! Whose pod ends when there is too little of something. Pure.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write as _, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::{
    is_critical,
    judge::{Signal, Want},
};
use crate::amounts::{Side, pod_requests};

/// A pod that could end, and what it uses of what is wanted.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) pod: Arc<Pod>,
    /// By container; what belongs to none, such as volumes, is not in it.
    pub(super) containers: BTreeMap<String, i64>,
    pub(super) total: i64,
}

impl Candidate {
    fn requested(&self, resource: &str) -> i64 {
        let spec = self.pod.spec.as_ref();
        spec.map_or(0, |spec| pod_requests(spec, self.pod.status.as_ref()).get(resource))
    }
}

/// What a pod has to have written at least for its end to be of any use on the disk. The claims of a database may be what
/// fills it, and ending the pods beside it would give nothing back.
const WORTH_ENDING: i64 = 1 << 20;

/// The pod that has to go: who uses more than was asked for before who does not, then who matters less, then who uses
/// most beyond what was asked for.
pub(super) fn choose(candidates: &[Candidate], want: &Want) -> Option<Candidate> {
    let resource = want.signal.resource();
    let least = if want.signal == Signal::Memory { 0 } else { WORTH_ENDING };
    let candidates = candidates
        .iter()
        .filter(|candidate| candidate.total >= least && !is_critical(&candidate.pod));
    let first = candidates.min_by_key(|candidate| {
        let beyond = candidate.total - candidate.requested(resource);
        let priority = candidate.pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        (beyond <= 0, priority, Reverse(beyond))
    });
    first.cloned()
}

/// Why it goes, in a kubelet's words.
pub(super) fn message(chosen: &Candidate, want: &Want) -> String {
    let resource = want.signal.resource();
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        quantity(want.least),
        quantity(want.available)
    );
    if want.signal == Signal::Inodes {
        return message;
    }
    let containers = chosen.pod.spec.iter().flat_map(|spec| &spec.containers);
    for container in containers {
        let requested = Side::Requests.of(container.resources.as_ref()).get(resource);
        let used = chosen.containers.get(&container.name).copied().unwrap_or(0);
        if used > requested {
            let amount = |amount: i64| quantity(u64::try_from(amount).unwrap_or(0));
            let _ = write!(
                message,
                "Container {} was using {}, request is {}, has larger consumption of {resource}. ",
                container.name,
                amount(used),
                amount(requested)
            );
        }
    }
    message
}

/// An amount with the largest suffix that leaves a whole number.
fn quantity(amount: u64) -> String {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut amount, mut suffix) = (amount, 0);
    while amount != 0 && amount % 1024 == 0 && suffix + 1 < SUFFIXES.len() {
        amount /= 1024;
        suffix += 1;
    }
    format!("{amount}{}", SUFFIXES[suffix])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn candidate(name: &str, priority: i32, requested: &str, used: i64) -> Candidate {
        let pod = json!({ "metadata": { "name": name }, "spec": { "priority": priority, "containers": [
            { "name": "main", "resources": { "requests": { "memory": requested } } }] } });
        Candidate {
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
            containers: [("main".to_owned(), used)].into(),
            total: used,
        }
    }

    const WANT: Want = Want {
        signal: Signal::Memory,
        least: 100 << 20,
        available: 5000,
    };

    #[test]
    fn who_takes_more_than_was_asked_for_goes_first_then_who_matters_least_then_who_takes_most() {
        let mut candidates = vec![
            candidate("critical", 2_000_000_000, "0", 9000),
            candidate("within", -5, "5000", 4000),
            candidate("dear", 10, "10", 5000),
            candidate("small", 0, "10", 100),
            candidate("large", 0, "10", 200),
            candidate("asked", 0, "1000", 1050),
        ];
        let mut order = Vec::new();
        while let Some(chosen) = choose(&candidates, &WANT) {
            let name = chosen.pod.metadata.name.clone().unwrap();
            candidates.retain(|candidate| candidate.pod.metadata.name.as_deref() != Some(&name));
            order.push(name);
        }
        assert_eq!(order, ["large", "small", "asked", "dear", "within"]);
        assert_eq!(candidates.len(), 1, "the critical one stays whatever happens");
    }

    #[test]
    fn who_wrote_next_to_nothing_has_nothing_to_give_back() {
        let want = Want {
            signal: Signal::Disk,
            ..WANT
        };
        let mut candidates = vec![candidate("idle", 0, "0", 64 << 10)];
        assert!(choose(&candidates, &want).is_none());
        candidates.push(candidate("writer", 10, "0", 2 << 20));
        let chosen = choose(&candidates, &want).unwrap();
        assert_eq!(chosen.pod.metadata.name.as_deref(), Some("writer"));
    }

    #[test]
    fn it_is_told_why_it_goes() {
        assert_eq!(
            message(&candidate("p", 0, "1Ki", 3 << 20), &WANT),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 5000. \
             Container main was using 3Mi, request is 1Ki, has larger consumption of memory. "
        );
        assert!(message(&candidate("p", 0, "4Mi", 3 << 20), &WANT).ends_with("available: 5000. "));
    }
}
