//! What a class adds to the objects that name it, or that name none.

use moorline_machinery::{meta, status::ApiError};
use serde_json::Value;

use super::{Attributes, Reach, text};

const DEFAULT_INGRESS: &str = "ingressclass.kubernetes.io/is-default-class";
/// How ingresses named their class before there was a field.
const INGRESS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Takes over overhead and scheduling from the runtime class of a new pod.
pub(super) fn runtime(attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), ApiError> {
    if !attributes.is_pod() || !attributes.creates() {
        return Ok(());
    }
    let name = text(&pod["spec"], "runtimeClassName").to_owned();
    let given = pod["spec"]["overhead"].clone();
    let has_overhead = given.as_object().is_some_and(|overhead| !overhead.is_empty());
    if name.is_empty() {
        return if has_overhead {
            Err(attributes.refuse("pod rejected: Pod overhead set without corresponding RuntimeClass defined Overhead"))
        } else {
            Ok(())
        };
    }
    let Some(class) = attributes.found("node.k8s.io", "runtimeclasses", "", &name) else {
        return Err(attributes.refuse(format_args!("pod rejected: RuntimeClass {name:?} not found")));
    };
    let overhead = &class["overhead"]["podFixed"];
    match overhead.as_object().filter(|overhead| !overhead.is_empty()) {
        None if has_overhead => {
            return Err(
                attributes.refuse("pod rejected: Pod overhead set without corresponding RuntimeClass defined Overhead")
            );
        }
        Some(_) if has_overhead && given != *overhead => {
            return Err(attributes.refuse("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"));
        }
        Some(_) => pod["spec"]["overhead"] = overhead.clone(),
        None => {}
    }
    schedule(attributes, pod, &class["scheduling"])
}

fn schedule(attributes: &Attributes<'_>, pod: &mut Value, scheduling: &Value) -> Result<(), ApiError> {
    for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
        let own = &pod["spec"]["nodeSelector"][key.as_str()];
        if !own.is_null() && own != value {
            return Err(attributes.refuse(format_args!(
                "conflict: pod's nodeSelector and RuntimeClass's nodeSelector disagree about the label {key:?}"
            )));
        }
        pod["spec"]["nodeSelector"][key.as_str()] = value.clone();
    }
    for toleration in super::items(scheduling, "tolerations") {
        if !super::items(&pod["spec"], "tolerations").any(|own| own == toleration) {
            super::push(&mut pod["spec"], "tolerations", toleration.clone());
        }
    }
    Ok(())
}

/// Gives a new ingress that names no class the default one, of several the newest.
pub(super) fn ingress(attributes: &Attributes<'_>, ingress: &mut Value) {
    let named =
        !ingress["spec"]["ingressClassName"].is_null() || meta::of(ingress).annotation(INGRESS_ANNOTATION).is_some();
    if !attributes.is("networking.k8s.io", "ingresses", "") || !attributes.creates() || named {
        return;
    }
    let classes = attributes.stored("networking.k8s.io", "ingressclasses", Reach::Everywhere);
    let created = |class: &Value| meta::of(class).creation_timestamp().unwrap_or_default().to_owned();
    let newest = classes
        .iter()
        .filter(|class| meta::of(class).annotation(DEFAULT_INGRESS) == Some("true"))
        .min_by(|a, b| {
            let by_age = created(b).cmp(&created(a));
            by_age.then_with(|| meta::of(a).name().cmp(meta::of(b).name()))
        });
    if let Some(class) = newest {
        ingress["spec"]["ingressClassName"] = meta::of(class).name().into();
    }
}
