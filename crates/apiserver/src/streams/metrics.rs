//! `metrics.k8s.io`: what pods and nodes use, for `kubectl top`. Served once someone runs pods.

use std::sync::{Arc, LazyLock};

use http::{Response, StatusCode};
use moorline_machinery::{
    facts::resources::{self, Resource},
    gvk::GroupResource,
    status::ApiError,
};
use moorline_store::Key;
use serde_json::{Value, json};

use super::access::Usage;
use crate::{body::Body, builtin, query::ListOptions, resource::ResourceType, respond, rest::Call, wire};

/// The group.
pub(crate) const GROUP: &str = "metrics.k8s.io";

/// The resources, ready to be served.
pub(super) fn resource_types() -> Vec<Arc<ResourceType>> {
    static RESOURCES: LazyLock<Vec<Resource>> = LazyLock::new(|| {
        let text = "version metrics.k8s.io/v1beta1\n\
                    nodes NodeMetrics c verbs:get,list\n\
                    pods PodMetrics n verbs:get,list\n";
        resources::parse(text).expect("the text is tested with the program")
    });
    RESOURCES
        .iter()
        .map(|resource| Arc::new(builtin::resource_type(resource)))
        .collect()
}

/// Answers a request for metrics, of one object or of all.
pub(crate) async fn answer(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let access = call.core.streams.access()?;
    let gvk = &call.resource.gvk;
    let pods = &*call.resource.gvr.resource == "pods";
    let options = ListOptions::parse(call.query, false)?;
    let (namespace, name) = (call.path.namespace.as_str(), call.path.name.as_str());
    let mut items: Vec<Value> = if pods {
        let usage = access.pod_usage().await;
        let wanted = usage
            .iter()
            .filter(|pod| namespace.is_empty() || pod.namespace == namespace);
        wanted
            .filter_map(|pod| {
                let labels = labels_of(call, "pods", &pod.namespace, &pod.name)?;
                let containers = pod.containers.iter().map(|(name, used)| json!({ "name": name, "usage": usage_of(used) }));
                Some(json!({
                    "metadata": { "name": pod.name, "namespace": pod.namespace, "labels": labels, "creationTimestamp": now(call) },
                    "timestamp": second(pod.taken), "window": window(pod.window), "containers": containers.collect::<Vec<_>>(),
                }))
            })
            .collect()
    } else {
        let usage = access.node_usage().await;
        let known = usage.iter().filter_map(|node| {
            let labels = labels_of(call, "nodes", "", &node.name)?;
            Some(json!({
                "metadata": { "name": node.name, "labels": labels, "creationTimestamp": now(call) },
                "timestamp": second(node.taken), "window": window(node.window), "usage": usage_of(&node.usage),
            }))
        });
        known.collect()
    };
    if name.is_empty() {
        items.retain(|item| {
            let metadata = &item["metadata"];
            metadata["labels"]
                .as_object()
                .is_some_and(|labels| options.labels.matches(labels))
                && options.fields.matches_with(|field| match field {
                    "metadata.name" => metadata["name"].as_str(),
                    "metadata.namespace" => metadata["namespace"].as_str(),
                    _ => None,
                })
        });
        let list = json!({
            "kind": &*call.resource.list_kind, "apiVersion": gvk.api_version(), "metadata": {}, "items": items,
        });
        return Ok(respond::value(StatusCode::OK, &list, call.answer.encoding));
    }
    let found = items.into_iter().find(|item| item["metadata"]["name"] == name);
    let Some(mut found) = found else {
        let resource = if pods { "podmetrics" } else { "nodemetrics" };
        return Err(ApiError::not_found(&GroupResource::new(GROUP, resource), name));
    };
    found["kind"] = (*gvk.kind).into();
    found["apiVersion"] = gvk.api_version().into();
    Ok(respond::value(StatusCode::OK, &found, call.answer.encoding))
}

/// The labels of an object; nothing if it is not there.
fn labels_of(call: &Call<'_>, resource: &str, namespace: &str, name: &str) -> Option<Value> {
    let record = call
        .core
        .store
        .get(&Key::new(&builtin::storage("", resource), namespace, name))?;
    let object = wire::from_stored(record.value(), "v1", "");
    let labels = object["metadata"]["labels"].clone();
    Some(if labels.is_object() { labels } else { json!({}) })
}

fn usage_of(usage: &Usage) -> Value {
    json!({ "cpu": format!("{}n", usage.cpu_nanocores), "memory": format!("{}Ki", usage.memory_bytes / 1024) })
}

fn now(call: &Call<'_>) -> String {
    second(call.core.world.now())
}

/// A time as Kubernetes writes it, to the second.
fn second(time: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(time.as_second())
        .unwrap_or(time)
        .to_string()
}

fn window(window: std::time::Duration) -> String {
    format!("{}s", window.as_secs_f64())
}
