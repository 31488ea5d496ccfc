//! An operator of two kinds. An `Exchange` is served at an address; a `Mailbox` relies on one, and keeps a token that is
//! made once. `docs/writing-an-operator.md` explains it line by line.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret, Service},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, CustomResource, CustomResourceExt as _,
    api::{Patch, PatchParams},
};
use moorline_runtime::{
    Actor, Dependency, Draft, Failure, Key, Manager, Options, Planner, Settings, Snapshot, Verdict, Watches,
    asked_to_stop, transformer,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "example.moorline.io",
    version = "v1",
    kind = "Exchange",
    namespaced,
    status = "ExchangeStatus"
)]
struct ExchangeSpec {
    port: u16,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ExchangeStatus {
    address: Option<String>,
    observed_generation: Option<i64>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "example.moorline.io",
    version = "v1",
    kind = "Mailbox",
    namespaced,
    status = "MailboxStatus"
)]
struct MailboxSpec {
    exchange: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MailboxStatus {
    observed_generation: Option<i64>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

struct Exchanges;

impl Actor for Exchanges {
    type Object = Exchange;

    fn name(&self) -> &str {
        "exchange"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Exchange>().owns_exactly::<Service>()
    }

    fn plan(&self, plan: Planner<Exchange>) -> Planner<Exchange> {
        plan.transformer(transformer(
            "service",
            |seen: &Snapshot<Exchange>, draft: &mut Draft| {
                let (name, port) = (seen.raw().name(), seen.object().spec.port);
                let service: Service = read(json!({
                    "metadata": { "name": name },
                    "spec": { "clusterIP": "None", "selector": { "exchange": name }, "ports": [{ "port": port }] },
                }))?;
                draft.put(seen.apply(&service, "the exchange is reached by it")?);
                let address = format!("{name}.{}.svc:{port}", seen.raw().namespace());
                let there = seen.get::<Service>(name)?.map(|_| address);
                draft.put(seen.status(&json!({ "address": there }), "tell the address once it is served")?);
                Ok(Verdict::Continue)
            },
        ))
    }
}

struct Mailboxes;

impl Actor for Mailboxes {
    type Object = Mailbox;

    fn name(&self) -> &str {
        "mailbox"
    }

    fn watches(&self) -> Watches {
        let exchange = Dependency::on::<Mailbox, Exchange>(
            "exchange",
            |mailbox| {
                vec![Key::new(
                    mailbox.metadata.namespace.as_deref().unwrap_or(""),
                    &mailbox.spec.exchange,
                )]
            },
            |exchange| match exchange.status.as_ref().and_then(|status| status.address.as_ref()) {
                Some(_) => Ok(()),
                None => Err("has no address yet".to_owned()),
            },
        );
        Watches::of::<Mailbox>()
            .owns_exactly::<ConfigMap>()
            .owns::<Secret>()
            .depends_on(exchange)
    }

    fn plan(&self, plan: Planner<Mailbox>) -> Planner<Mailbox> {
        plan.transformer(transformer("token", token))
            .transformer(transformer("address", address))
    }
}

fn token(seen: &Snapshot<Mailbox>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let name = format!("{}-token", seen.raw().name());
    if seen.get::<Secret>(&name)?.is_none() {
        let token = seen.secret_text("token", 32);
        let secret: Secret = read(json!({ "metadata": { "name": name }, "stringData": { "token": token } }))?;
        draft.put(seen.create(&secret, "a mailbox has a token, made once")?);
    }
    Ok(Verdict::Continue)
}

fn address(seen: &Snapshot<Mailbox>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let exchange = seen.get::<Exchange>(&seen.object().spec.exchange)?;
    let address = exchange.and_then(|exchange| exchange.status.as_ref()?.address.clone());
    let map: ConfigMap = read(json!({ "metadata": { "name": seen.raw().name() }, "data": { "address": address } }))?;
    let map = draft.put(seen.apply(&map, "readers find the exchange by it")?);
    seen.require(draft, "exchange", &map)?;
    Ok(Verdict::Continue)
}

fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|error| Failure::terminal(error.to_string()))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let command = Options::augment(clap::Command::new("mailbox"), &[("mail", true)]);
    let options = Options::from_matches(&command.get_matches(), &[("mail", true)])?;
    tracing_subscriber::fmt().with_env_filter(&options.log_level).init();
    let client = kube::Client::try_default().await?;
    install(&client).await?;
    let manager = Manager::new(
        client,
        options,
        Settings {
            field_owner: "mailbox".to_owned(),
            ..Settings::default()
        },
    );
    manager
        .controller("mail", Exchanges)
        .controller("mail", Mailboxes)
        .run(asked_to_stop())
        .await?;
    Ok(())
}

async fn install(client: &kube::Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in [Exchange::crd(), Mailbox::crd()] {
        let name = definition.metadata.name.clone().unwrap_or_default();
        api.patch(
            &name,
            &PatchParams::apply("mailbox").force(),
            &Patch::Apply(&definition),
        )
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
