//! Which pod, which container: what can be told from the stored object alone.

use std::net::IpAddr;

use moorline_machinery::{gvk::GroupResource, status::ApiError};
use moorline_store::Key;
use serde_json::Value;

use super::access::{ContainerRef, PodRef};
use crate::{builtin, core::Core, wire};

/// A stored pod.
pub(super) struct Pod(Value);

/// The lists of containers in a pod's spec, in the order in which Kubernetes names them.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

impl Pod {
    /// Reads a pod from the store.
    pub(super) fn find(core: &Core, namespace: &str, name: &str) -> Result<Self, ApiError> {
        let key = Key::new(&builtin::storage("", "pods"), namespace, name);
        let record = core
            .store
            .get(&key)
            .ok_or_else(|| ApiError::not_found(&GroupResource::new("", "pods"), name))?;
        Ok(Self(wire::from_stored(record.value(), "v1", "Pod")))
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Its address, once it has one.
    pub(super) fn address(&self) -> Option<&str> {
        let status = &self.0["status"];
        let first = status["podIPs"][0]["ip"].as_str();
        first.or_else(|| status["podIP"].as_str()).filter(|ip| !ip.is_empty())
    }

    /// Whether an address is one of its own.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        let addresses = self.0["status"]["podIPs"].as_array().map_or(&[][..], Vec::as_slice);
        let mut addresses = addresses
            .iter()
            .filter_map(|entry| entry["ip"].as_str()?.parse::<IpAddr>().ok());
        addresses.any(|own| own == address)
    }

    /// The first port that any of its containers declares.
    pub(super) fn first_port(&self) -> Option<u64> {
        let containers = self.0["spec"]["containers"].as_array()?;
        containers
            .iter()
            .find_map(|container| container["ports"][0]["containerPort"].as_u64())
    }

    /// The node that it is on; nothing while it is on none. A node that is not registered cannot be reached.
    pub(super) fn node(&self, core: &Core) -> Result<Option<&str>, ApiError> {
        let Some(node) = self.0["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) else {
            return Ok(None);
        };
        if core
            .store
            .get(&Key::new(&builtin::storage("", "nodes"), "", node))
            .is_none()
        {
            return Err(ApiError::not_found(&GroupResource::new("", "nodes"), node));
        }
        Ok(Some(node))
    }

    /// The node that it is on, which it must be.
    pub(super) fn assigned_node(&self, core: &Core) -> Result<&str, ApiError> {
        self.node(core)?
            .ok_or_else(|| ApiError::bad_request(format!("pod {} does not have a host assigned", self.name())))
    }

    /// The container that is meant: the named one, or the only one.
    pub(super) fn container(&self, asked: Option<&str>) -> Result<&str, ApiError> {
        let name = self.name();
        let all = || {
            CONTAINER_LISTS
                .iter()
                .filter_map(|list| self.0["spec"][list].as_array())
                .flatten()
                .filter_map(|container| container["name"].as_str())
        };
        if let Some(asked) = asked.filter(|asked| !asked.is_empty()) {
            return all()
                .find(|candidate| *candidate == asked)
                .ok_or_else(|| ApiError::bad_request(format!("container {asked} is not valid for pod {name}")));
        }
        let ordinary = self.0["spec"]["containers"].as_array().map_or(&[][..], Vec::as_slice);
        match ordinary {
            [only] => Ok(only["name"].as_str().unwrap_or_default()),
            [] => Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}"
            ))),
            _ => Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                all().collect::<Vec<_>>().join(" ")
            ))),
        }
    }

    /// What a container is called by whoever runs it.
    pub(super) fn container_ref(&self, node: &str, container: &str) -> ContainerRef {
        ContainerRef {
            pod: self.pod_ref(node),
            container: container.to_owned(),
        }
    }

    /// What the pod is called by whoever runs it.
    pub(super) fn pod_ref(&self, node: &str) -> PodRef {
        let metadata = &self.0["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        PodRef {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            node: node.to_owned(),
        }
    }

    /// Whether a container has, or had, anything to log; if not, why.
    pub(super) fn has_log(&self, container: &str, previous: bool) -> Result<(), String> {
        let name = self.name();
        let what = format!("container {container:?} in pod {name:?}");
        let statuses = [
            "containerStatuses",
            "initContainerStatuses",
            "ephemeralContainerStatuses",
        ];
        let status = statuses
            .iter()
            .filter_map(|list| self.0["status"][list].as_array())
            .flatten()
            .find(|status| status["name"] == container);
        let Some(status) = status else {
            return Err(format!("{what} is not available"));
        };
        let has_run = |state: &Value| {
            state["terminated"]["containerID"]
                .as_str()
                .is_some_and(|id| !id.is_empty())
        };
        let (state, last) = (&status["state"], &status["lastState"]);
        if previous && !has_run(last) {
            return Err(format!("previous terminated {what} not found"));
        }
        if previous || state["running"].is_object() || has_run(state) || has_run(last) {
            return Ok(());
        }
        if state["terminated"].is_object() || last["terminated"].is_object() {
            return Err(format!("{what} is terminated"));
        }
        Err(match state["waiting"]["reason"].as_str() {
            Some("ErrImagePull") => format!("{what} is waiting to start: image can't be pulled"),
            Some("ImagePullBackOff") => format!("{what} is waiting to start: trying and failing to pull image"),
            Some(reason) => format!("{what} is waiting to start: {reason}"),
            None if state["waiting"].is_object() => format!("{what} is waiting to start: "),
            None => format!("{what} is waiting to start - no logs yet"),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: &Value, status: &Value) -> Pod {
        Pod(json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": spec, "status": status }))
    }

    #[test]
    fn the_only_container_needs_no_name() {
        let pod = pod(
            &json!({ "containers": [{ "name": "a" }], "initContainers": [{ "name": "i" }] }),
            &json!({}),
        );
        assert_eq!(pod.container(None).unwrap(), "a");
        assert_eq!(pod.container(Some("")).unwrap(), "a");
        assert_eq!(pod.container(Some("i")).unwrap(), "i");
        let unknown = pod.container(Some("x")).unwrap_err();
        assert_eq!(
            (unknown.code(), unknown.to_string().as_str()),
            (400, "container x is not valid for pod p")
        );
    }

    #[test]
    fn among_several_containers_one_must_be_named() {
        let spec = json!({
            "initContainers": [{ "name": "i" }], "containers": [{ "name": "a" }, { "name": "b" }],
            "ephemeralContainers": [{ "name": "e" }],
        });
        assert_eq!(
            pod(&spec, &json!({})).container(None).unwrap_err().to_string(),
            "a container name must be specified for pod p, choose one of: [i a b e]"
        );
    }

    #[test]
    fn a_container_without_a_log_says_why() {
        let log = |status: Value, previous| {
            let pod = pod(&json!({}), &json!({ "containerStatuses": [status] }));
            pod.has_log("a", previous).err().unwrap_or_default()
        };
        let state = |state: Value| json!({ "name": "a", "state": state });
        assert_eq!(log(state(json!({ "running": {} })), false), "");
        assert_eq!(
            log(state(json!({ "running": {} })), true),
            r#"previous terminated container "a" in pod "p" not found"#
        );
        assert_eq!(
            log(state(json!({ "waiting": { "reason": "ContainerCreating" } })), false),
            r#"container "a" in pod "p" is waiting to start: ContainerCreating"#
        );
        assert_eq!(
            log(state(json!({ "waiting": { "reason": "ErrImagePull" } })), false),
            r#"container "a" in pod "p" is waiting to start: image can't be pulled"#
        );
        assert_eq!(
            log(json!({ "name": "b" }), false),
            r#"container "a" in pod "p" is not available"#
        );
        let crashing = json!({
            "name": "a", "state": { "waiting": { "reason": "CrashLoopBackOff" } },
            "lastState": { "terminated": { "containerID": "x://1" } },
        });
        assert_eq!(log(crashing.clone(), false), "");
        assert_eq!(log(crashing, true), "");
        assert_eq!(
            log(state(json!({ "terminated": {} })), false),
            r#"container "a" in pod "p" is terminated"#
        );
    }
}
