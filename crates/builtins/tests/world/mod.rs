//! An API server in this process with the controllers on it, and somebody who runs the pods by saying that they run.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use moorline_apiserver::core::RealWorld;
use moorline_apiserver::server::Embedded;
use moorline_builtins::Builtins;
use moorline_runtime::{Ground, Settings};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) client: Client,
    _server: Embedded,
    _controllers: Builtins,
    _pods: tokio::task::JoinHandle<()>,
}

/// How pods fare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pods {
    /// They become ready by themselves, unless they carry the label `hold`.
    BecomeReady,
    /// They do what the test says.
    Wait,
}

impl World {
    pub(crate) async fn new(pods: Pods) -> Self {
        let server = Embedded::ephemeral(Arc::new(RealWorld))
            .await
            .expect("a server in memory starts");
        let client = Client::new(server.service(), "default");
        let controllers = moorline_builtins::start(&Ground::new(client.clone()), &Settings::default()).await;
        let task = tokio::spawn(run_pods(client.clone(), pods));
        Self {
            client,
            _server: server,
            _controllers: controllers,
            _pods: task,
        }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Serialize + Clone + Debug,
    {
        let object: K = serde_json::from_value(object).expect("the test wrote an object of this type");
        self.api::<K>()
            .create(&PostParams::default(), &object)
            .await
            .expect("the object is valid")
    }

    pub(crate) async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Serialize + Clone + Debug,
    {
        self.api::<K>()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("the patch is valid")
    }

    pub(crate) async fn get<K>(&self, name: &str) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().get_opt(name).await.expect("the server answers")
    }

    pub(crate) async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>()
            .list(&ListParams::default())
            .await
            .expect("the server answers")
            .items
    }

    /// The names of the pods that nobody has deleted.
    pub(crate) async fn pod_names(&self) -> Vec<String> {
        let pods = self.list::<Pod>().await.into_iter();
        pods.filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .map(|pod| pod.name_any())
            .collect()
    }

    pub(crate) async fn make_ready(&self, pod: &str) {
        say_status(&self.client, pod, &running(true)).await;
    }

    pub(crate) async fn make_unready(&self, pod: &str) {
        say_status(&self.client, pod, &running(false)).await;
    }

    /// The containers of a pod have ended with this code.
    pub(crate) async fn finish(&self, pod: &str, code: i32) {
        self.finish_with(pod, code, Duration::ZERO, json!([])).await;
    }

    /// They have ended so long ago, and these are the pod's conditions.
    pub(crate) async fn finish_with(&self, pod: &str, code: i32, ago: Duration, conditions: Value) {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let then = (k8s_openapi::jiff::Timestamp::now() - ago).to_string();
        let status = json!({ "phase": phase, "conditions": conditions, "containerStatuses": [{
            "name": "main", "image": "x", "imageID": "x", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": code, "finishedAt": then } },
        }] });
        say_status(&self.client, pod, &status).await;
    }
}

fn running(ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    json!({
        "phase": "Running", "podIP": "10.0.0.7", "podIPs": [{ "ip": "10.0.0.7" }],
        "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": now }],
    })
}

async fn say_status(client: &Client, pod: &str, status: &Value) {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let patch = Patch::Merge(json!({ "status": status }));
    // A pod that was deleted meanwhile has no status any more.
    let _ = api.patch_status(pod, &PatchParams::default(), &patch).await;
}

async fn run_pods(client: Client, pods: Pods) {
    if pods == Pods::Wait {
        return;
    }
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let mut seen = watcher::watcher(api, watcher::Config::default()).boxed();
    while let Ok(event) = seen.try_next().await {
        let Some(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else {
            continue;
        };
        let is_new = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .is_none_or(|phase| phase == "Pending");
        if is_new && !pod.labels().contains_key("hold") && pod.metadata.deletion_timestamp.is_none() {
            say_status(&client, &pod.name_any(), &running(true)).await;
        }
    }
}

/// Waits until a question is answered with something, and says what was asked when it never is.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        loop {
            tick.tick().await;
            if let Some(answer) = ask().await {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("never came about: {what}"))
}

/// A template of pods with a label.
pub(crate) fn template(app: &str, image: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "containers": [{ "name": "main", "image": image, "ports": [{ "name": "http", "containerPort": 8080 }] }] },
    })
}
