//! What a pod asks for, all containers together.

use std::collections::BTreeMap;

use moorline_machinery::quantity::Quantity;
use serde_json::Value;

use super::{items, text};

/// Amounts by the name of the resource.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// The amounts of a list such as `requests`; what is no amount is left out.
pub(crate) fn amounts(list: &Value) -> Amounts {
    let entries = list.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?)))
        .collect()
}

/// The `requests` or `limits` of a pod: what its containers have at the same time at most, or what it says itself.
pub(crate) fn of_pod(spec: &Value, which: &str) -> Amounts {
    let mut sum = Amounts::new();
    for container in items(spec, "containers") {
        add(&mut sum, &amounts(&container["resources"][which]));
    }
    let mut alongside = Amounts::new();
    let mut starting = Amounts::new();
    for container in items(spec, "initContainers") {
        let own = amounts(&container["resources"][which]);
        // One that is always restarted runs on beside all that come after it.
        if text(container, "restartPolicy") == "Always" {
            add(&mut sum, &own);
            add(&mut alongside, &own);
            raise(&mut starting, &alongside);
        } else {
            let mut both = own;
            add(&mut both, &alongside);
            raise(&mut starting, &both);
        }
    }
    raise(&mut sum, &starting);
    let own = amounts(&spec["resources"][which]).into_iter();
    sum.extend(own.filter(|(name, _)| name == "cpu" || name == "memory" || name.starts_with("hugepages-")));
    sum
}

/// Adds amounts to others.
pub(crate) fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.get(name).and_then(|own| own.checked_add(amount));
        to.insert(name.clone(), sum.unwrap_or_else(|| amount.clone()));
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if to.get(name).is_none_or(|own| own < amount) {
            to.insert(name.clone(), amount.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_needs_what_runs_at_the_same_time() {
        let container = |cpu: &str| json!({ "resources": { "requests": { "cpu": cpu } } });
        let mut side = container("1");
        side["restartPolicy"] = json!("Always");
        let spec =
            |init: Vec<Value>| json!({ "containers": [container("1"), container("500m")], "initContainers": init });
        let cpu = |spec: &Value| of_pod(spec, "requests")["cpu"].to_string();
        assert_eq!(cpu(&spec(vec![])), "1500m");
        assert_eq!(cpu(&spec(vec![container("1")])), "1500m");
        assert_eq!(cpu(&spec(vec![container("4")])), "4");
        assert_eq!(cpu(&spec(vec![side.clone()])), "2500m");
        assert_eq!(cpu(&spec(vec![side, container("2")])), "3");
    }

    #[test]
    fn what_a_pod_says_itself_counts() {
        let spec = json!({
            "containers": [{ "resources": { "requests": { "cpu": "1" } } }], "resources": { "requests": { "cpu": "3" } },
        });
        assert_eq!(of_pod(&spec, "requests")["cpu"].to_string(), "3");
    }
}
