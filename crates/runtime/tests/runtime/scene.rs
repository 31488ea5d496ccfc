//! A server in this process, a kind of our own, and waiting on a clock that stands still until nobody has anything to do.
#![allow(dead_code, reason = "each test file uses its part of the scene")]

use std::{future::Future, sync::Arc, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResource, CustomResourceExt as _, api::PostParams};
use moorline_apiserver::{core::RealWorld, server::Embedded};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Some text in so many config maps, once the store that it names is ready.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "test.moorline.io",
    version = "v1",
    kind = "Page",
    namespaced,
    status = "PageStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageSpec {
    #[serde(default)]
    pub text: String,
    #[serde(default)]
    pub copies: usize,
    #[serde(default)]
    pub store: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageStatus {
    pub copies: Option<usize>,
    pub observed_generation: Option<i64>,
    #[serde(default)]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

impl Page {
    /// A condition's status, reason and message.
    pub(crate) fn condition(&self, name: &str) -> Option<(String, String, String)> {
        let status = self.status.as_ref()?;
        let condition = status.conditions.iter().find(|condition| condition.type_ == name)?;
        Some((
            condition.status.clone(),
            condition.reason.clone(),
            condition.message.clone(),
        ))
    }

    pub(crate) fn is_ready(&self) -> bool {
        let current = self.status.as_ref().and_then(|status| status.observed_generation) == self.metadata.generation;
        current && self.condition("Ready").is_some_and(|(status, ..)| status == "True")
    }
}

pub(crate) async fn server() -> (Embedded, Client) {
    let server = Embedded::ephemeral(Arc::new(RealWorld))
        .await
        .expect("a server in memory starts");
    let client = Client::new(server.service(), "default");
    define(&client, Page::crd()).await;
    (server, client)
}

pub(crate) async fn define(client: &Client, definition: CustomResourceDefinition) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let created = api
        .create(&PostParams::default(), &definition)
        .await
        .expect("the definition is good");
    let name = created.metadata.name.expect("it has a name");
    eventually("the kind is served", || async {
        let definition = api.get(&name).await.ok()?;
        let conditions = definition.status?.conditions?;
        conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
            .then_some(())
    })
    .await;
}

/// Lets everybody go on until nobody has anything left to do but to wait longer than this. The clock is paused, so it
/// moves only when everything rests.
pub(crate) async fn rest(at_least: Duration) {
    tokio::time::sleep(at_least).await;
}

/// Asks until there is an answer.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn read<T: DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("the test wrote it rightly")
}

pub(crate) fn page(name: &str, text: &str, copies: usize) -> Page {
    Page::new(
        name,
        PageSpec {
            text: text.to_owned(),
            copies,
            store: None,
        },
    )
}
