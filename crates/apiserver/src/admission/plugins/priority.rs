//! The priority of a pod is that of its class, and only one class is the default.

use moorline_machinery::{meta, status::ApiError};
use serde_json::{Value, json};

use super::{Attributes, Operation, Reach, text};

const GROUP: &str = "scheduling.k8s.io";
const CLASSES: &str = "priorityclasses";

pub(super) fn fill_in(attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), ApiError> {
    if !attributes.is_pod() {
        return Ok(());
    }
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => resolve(attributes, pod),
        (Operation::Update, Some(old)) => {
            for field in ["priority", "preemptionPolicy"] {
                if pod["spec"][field].is_null() && !old["spec"][field].is_null() {
                    pod["spec"][field] = old["spec"][field].clone();
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn resolve(attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let name = text(&pod["spec"], "priorityClassName").to_owned();
    let class = if name.is_empty() {
        default_class(attributes)
    } else {
        let class = attributes.found(GROUP, CLASSES, "", &name);
        Some(class.ok_or_else(|| attributes.refuse(format_args!("no PriorityClass with name {name} was found")))?)
    };
    let (priority, policy) = match &class {
        Some(class) => (class["value"].as_i64().unwrap_or(0), class["preemptionPolicy"].as_str()),
        None => (0, Some("PreemptLowerPriority")),
    };
    let spec = &mut pod["spec"];
    if let Some(class) = class.as_ref().filter(|_| name.is_empty()) {
        spec["priorityClassName"] = meta::of(class).name().into();
    }
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != priority) {
        return Err(attributes.refuse(format_args!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        )));
    }
    spec["priority"] = json!(priority);
    if let Some(policy) = policy {
        if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != policy) {
            return Err(attributes.refuse(format_args!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
                 controller computed {policy} from the given PriorityClass name"
            )));
        }
        spec["preemptionPolicy"] = policy.into();
    }
    Ok(())
}

/// The class of pods that name none; of several, the lowest.
fn default_class(attributes: &Attributes<'_>) -> Option<Value> {
    let classes = attributes.stored(GROUP, CLASSES, Reach::Everywhere).into_iter();
    classes
        .filter(|class| class["globalDefault"] == true)
        .min_by_key(|class| class["value"].as_i64())
}

pub(super) fn check(attributes: &Attributes<'_>, class: &Value) -> Result<(), ApiError> {
    if !attributes.is(GROUP, CLASSES, "") || class["globalDefault"] != true {
        return Ok(());
    }
    match default_class(attributes) {
        Some(other) if attributes.creates() || meta::of(&other).name() != attributes.name => {
            Err(attributes.refuse(format_args!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                meta::of(&other).name()
            )))
        }
        _ => Ok(()),
    }
}
