//! `nodes/proxy`: of what a kubelet serves, that which can be told here: its health, its pods, what they use.

use http::{Method, Response, StatusCode};
use moorline_machinery::{gvk::GroupResource, status::ApiError};
use moorline_store::{Key, List, Scope};
use serde_json::{Value, json};

use super::target::Named;
use crate::{body::Body, builtin, core::Core, negotiate::Encoding, respond, wire};

/// Answers a request to a node.
pub(super) async fn answer(core: &Core, id: &str, method: &Method, rest: &str) -> Result<Response<Body>, ApiError> {
    let named = Named::parse(id).ok_or_else(|| ApiError::bad_request(format!("invalid node request {id:?}")))?;
    let key = Key::new(&builtin::storage("", "nodes"), "", named.name);
    if core.store.get(&key).is_none() {
        return Err(ApiError::not_found(&GroupResource::new("", "nodes"), named.name));
    }
    let access = core.streams.access()?;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(ApiError::method_not_allowed());
    }
    match rest.trim_end_matches('/') {
        "/healthz" => Ok(respond::text(StatusCode::OK, "ok")),
        "/pods" => {
            let list =
                json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods(core, named.name) });
            Ok(respond::value(StatusCode::OK, &list, Encoding::Json))
        }
        "/stats/summary" => {
            let node = access
                .node_usage()
                .await
                .into_iter()
                .find(|node| node.name == named.name);
            let here = pods(core, named.name);
            let is_here = |namespace: &str, name: &str| {
                let mut here = here.iter().map(|pod| &pod["metadata"]);
                here.any(|pod| pod["namespace"] == namespace && pod["name"] == name)
            };
            let pods = access.pod_usage().await;
            let pods = pods.iter().filter(|pod| is_here(&pod.namespace, &pod.name)).map(|pod| {
                let containers = pod.containers.iter().map(|(name, usage)| {
                    json!({
                        "name": name,
                        "cpu": { "time": pod.taken, "usageNanoCores": usage.cpu_nanocores },
                        "memory": { "time": pod.taken, "workingSetBytes": usage.memory_bytes },
                    })
                });
                json!({
                    "podRef": { "name": pod.name, "namespace": pod.namespace },
                    "containers": containers.collect::<Vec<_>>(),
                })
            });
            let mut summary = json!({ "node": { "nodeName": named.name }, "pods": pods.collect::<Vec<_>>() });
            if let Some(node) = node {
                summary["node"]["cpu"] = json!({ "time": node.taken, "usageNanoCores": node.usage.cpu_nanocores });
                summary["node"]["memory"] = json!({ "time": node.taken, "workingSetBytes": node.usage.memory_bytes });
            }
            Ok(respond::value(StatusCode::OK, &summary, Encoding::Json))
        }
        _ => Ok(respond::text(StatusCode::NOT_FOUND, "404 page not found\n")),
    }
}

/// The pods on a node.
fn pods(core: &Core, node: &str) -> Vec<Value> {
    let all = List::all(Scope::Resource(builtin::storage("", "pods")));
    let records = core.store.list(&all).map(|page| page.records).unwrap_or_default();
    records
        .iter()
        .map(|record| wire::from_stored(record.value(), "v1", "Pod"))
        .filter(|pod| pod["spec"]["nodeName"] == node)
        .collect()
}
