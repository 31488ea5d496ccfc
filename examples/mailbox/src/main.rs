//! An operator of two kinds. An `Exchange` is served at an address; a `Mailbox` relies on one, and keeps a token that is
//! made once. `docs/writing-an-operator.md` explains it.

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::{CustomResource, CustomResourceExt as _};
use moorline_runtime::{
    Actor, Dependency, Draft, Failure, Key, Kind, Manager, Options, Planner, Settings, Snapshot, Telemetry, Verdict,
    Watches, asked_to_stop, install, transformer,
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
    status = "Status"
)]
struct ExchangeSpec {
    port: u16,
}

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "example.moorline.io",
    version = "v1",
    kind = "Mailbox",
    namespaced,
    status = "Status"
)]
struct MailboxSpec {
    exchange: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    address: Option<String>,
    observed_generation: Option<i64>,
    conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

struct Exchanges;

impl Actor for Exchanges {
    type Object = Exchange;

    fn name(&self) -> &'static str {
        "exchange"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Exchange>().owns_exactly::<Service>()
    }

    fn plan(&self, plan: Planner<Exchange>) -> Planner<Exchange> {
        plan.transformer(transformer("service", service))
    }
}

fn service(seen: &Snapshot<Exchange>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let (name, port) = (seen.raw().name(), seen.object().spec.port);
    let service = json!({
        "metadata": { "name": name },
        "spec": { "clusterIP": "None", "selector": { "exchange": name }, "ports": [{ "port": port }] },
    });
    draft.put(seen.apply_value(&Kind::of::<Service>(), service, "the exchange is reached by it")?);
    let address = format!("{name}.{}.svc:{port}", seen.raw().namespace());
    let address = seen.get::<Service>(name)?.map(|_| address);
    draft.put(seen.status(&json!({ "address": address }), "tell the address once it is served")?);
    Ok(Verdict::Continue)
}

struct Mailboxes;

impl Actor for Mailboxes {
    type Object = Mailbox;

    fn name(&self) -> &'static str {
        "mailbox"
    }

    fn watches(&self) -> Watches {
        let exchange = Dependency::on::<Mailbox, Exchange>(
            "exchange",
            |mailbox| vec![Key::beside(mailbox, &mailbox.spec.exchange)],
            |exchange| address_of(exchange).map(drop).ok_or("has no address yet".to_owned()),
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
        let secret = json!({ "metadata": { "name": name }, "stringData": { "token": token } });
        draft.put(seen.create_value(&Kind::of::<Secret>(), secret, "a mailbox has a token, made once")?);
    }
    Ok(Verdict::Continue)
}

fn address(seen: &Snapshot<Mailbox>, draft: &mut Draft) -> Result<Verdict, Failure> {
    let exchange = seen.get::<Exchange>(&seen.object().spec.exchange)?;
    let address = exchange.as_deref().and_then(address_of);
    let map = json!({ "metadata": { "name": seen.raw().name() }, "data": { "address": address } });
    let map = draft.put(seen.apply_value(&Kind::of::<ConfigMap>(), map, "readers find the exchange by it")?);
    seen.require(draft, "exchange", &map)?;
    Ok(Verdict::Continue)
}

fn address_of(exchange: &Exchange) -> Option<&String> {
    exchange.status.as_ref()?.address.as_ref()
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let groups = [("mail", true)];
    let command = Options::augment(clap::Command::new("mailbox"), &groups);
    let options = Options::from_matches(&command.get_matches(), &groups)?;
    let telemetry = Telemetry::begin(&options)?;
    let client = kube::Client::try_default().await?;
    install(&client, "mailbox", &[Exchange::crd(), Mailbox::crd()]).await?;
    let ended = manager(client, options).run(asked_to_stop()).await;
    telemetry.end().await;
    Ok(ended?)
}

fn manager(client: kube::Client, options: Options) -> Manager {
    Manager::new(client, options, Settings::of_owner("mailbox"))
        .controller("mail", Exchanges)
        .controller("mail", Mailboxes)
}

#[cfg(test)]
mod tests;
