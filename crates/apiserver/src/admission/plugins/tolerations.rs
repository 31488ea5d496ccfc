//! A pod stays on a node that does not answer for five minutes, unless it says otherwise.

use serde_json::{Value, json};

use super::{Attributes, Operation, items, push, text};

const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const SECONDS: u32 = 300;

pub(super) fn fill_in(attributes: &Attributes<'_>, pod: &mut Value) {
    let written = matches!(attributes.operation, Operation::Create | Operation::Update);
    if !attributes.is_pod() || !written {
        return;
    }
    let missing =
        TAINTS.map(|taint| !items(&pod["spec"], "tolerations").any(|toleration| tolerates(toleration, taint)));
    for (taint, _) in TAINTS.iter().zip(missing).filter(|(_, missing)| *missing) {
        let toleration = json!({
            "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS,
        });
        push(&mut pod["spec"], "tolerations", toleration);
    }
}

fn tolerates(toleration: &Value, taint: &str) -> bool {
    let key = text(toleration, "key");
    (key.is_empty() || key == taint) && matches!(text(toleration, "effect"), "" | "NoExecute")
}
