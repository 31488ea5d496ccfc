//! Writing a pod's status, and its end.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

use crate::key::Key;

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// The pod is not there any more.
    Gone,
    /// To be tried again.
    Failed(String),
}

/// Writes a status in place of what the node wrote before. What others wrote stays.
pub(crate) async fn status(client: &Client, pod: &Pod, old: &PodStatus, new: &PodStatus) -> Written {
    let key = Key::of(pod);
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let patch = json!({ "metadata": { "uid": pod.metadata.uid }, "status": difference(old, new) });
    match api
        .patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
    {
        Ok(_) => Written::Done,
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Written::Gone,
        Err(error) => Written::Failed(error.to_string()),
    }
}

/// Lists that are merged by key have to be told what goes.
fn difference(old: &PodStatus, new: &PodStatus) -> Value {
    let mut value = serde_json::to_value(new).unwrap_or_default();
    let before = serde_json::to_value(old).unwrap_or_default();
    for list in ["podIPs", "hostIPs"] {
        if before[list] == value[list] {
            value.as_object_mut().map(|status| status.remove(list));
        } else if let Some(list) = value[list].as_array_mut() {
            list.insert(0, json!({ "$patch": "replace" }));
        }
    }
    let names = |status: &PodStatus| -> Vec<String> {
        status
            .conditions
            .iter()
            .flatten()
            .map(|condition| condition.type_.clone())
            .collect()
    };
    let kept = names(new);
    if let Some(list) = value["conditions"].as_array_mut() {
        // What a condition said before stays, unless it is told to go.
        for condition in &mut *list {
            let told = before["conditions"].as_array().into_iter().flatten();
            let told = told.into_iter().find(|told| told["type"] == condition["type"]);
            for field in ["reason", "message"] {
                if condition[field].is_null() && told.is_some_and(|told| !told[field].is_null()) {
                    condition[field] = Value::Null;
                }
            }
        }
        for gone in names(old).into_iter().filter(|name| !kept.contains(name)) {
            list.push(json!({ "$patch": "delete", "type": gone }));
        }
    }
    for field in ["reason", "message", "nominatedNodeName", "resize"] {
        if !before[field].is_null() && value[field].is_null() {
            value[field] = Value::Null;
        }
    }
    value
}

/// Deletes a pod for good, once nothing of it is left on the node.
pub(crate) async fn delete(client: &Client, pod: &Pod) -> Written {
    let key = Key::of(pod);
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let options = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&key.name, &options).await {
        Ok(_) => Written::Done,
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Written::Gone,
        Err(error) => Written::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_from_lists_that_are_merged_is_told() {
        let of = |value: Value| serde_json::from_value::<PodStatus>(value).unwrap();
        let old = of(json!({
            "podIPs": [{ "ip": "10.0.0.1" }], "hostIPs": [{ "ip": "10.9.9.9" }], "reason": "Evicted",
            "conditions": [
                { "type": "PodResizePending", "status": "True" },
                { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "none is" },
            ],
        }));
        let new = of(json!({
            "podIPs": [{ "ip": "10.0.0.2" }], "hostIPs": [{ "ip": "10.9.9.9" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        }));
        let patch = difference(&old, &new);
        assert_eq!(patch["podIPs"], json!([{ "$patch": "replace" }, { "ip": "10.0.0.2" }]));
        assert!(patch.get("hostIPs").is_none());
        assert_eq!(patch["reason"], Value::Null);
        let ready = patch["conditions"][0].as_object().unwrap();
        assert_eq!(ready["status"], "True");
        assert_eq!((&ready["reason"], &ready["message"]), (&Value::Null, &Value::Null));
        assert_eq!(
            patch["conditions"][1],
            json!({ "$patch": "delete", "type": "PodResizePending" })
        );
    }
}
