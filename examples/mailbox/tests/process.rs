//! The example as a process of its own, against an API server that listens as `moorline apiserver` does, and against a
//! real one, where `make test-reference` asks for that.

#![expect(clippy::unwrap_used, reason = "every function here belongs to a test")]

use std::{env, fs, path::Path, process::Stdio, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use moorline_apiserver::server::{ApiServer, Config};
use moorline_reference::real::{self, Durability};
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
};

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The operator, told how to log by each of the three ways.
fn operator(directory: &Path, kubeconfig: &Path) -> Child {
    let options = directory.join("options.yaml");
    fs::write(
        &options,
        "log-format: json\nlog-level: \"off\"\nmetrics-bind-address: 0\n",
    )
    .expect("it can be written");
    Command::new(env!("CARGO_BIN_EXE_moorline-example-mailbox"))
        .arg("--config")
        .arg(options)
        .args(["--leader-elect", "--health-probe-bind-address=0"])
        .env("MOORLINE_LOG_LEVEL", "info")
        .env("KUBECONFIG", kubeconfig)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the operator was built with its tests")
}

/// Asks it to end, as Kubernetes does, and gives what it logged.
async fn terminate(mut operator: Child) -> String {
    let id = operator.id().expect("it still runs").to_string();
    let told = Command::new("kill").args(["-TERM", &id]).status().await;
    assert!(told.expect("kill is there").success());
    let mut log = String::new();
    let stderr = operator.stderr.as_mut().expect("it is piped");
    stderr.read_to_string(&mut log).await.expect("it logs text");
    let ended = operator.wait().await.expect("it ends");
    assert!(ended.success(), "{ended}: {log}");
    log
}

#[tokio::test]
async fn the_operator_works_over_the_wire_takes_over_from_itself_and_ends_in_good_order() {
    let server = ApiServer::start(Config::ephemeral()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig).unwrap();
    works_with(&kubeconfig).await;
    server.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn it_does_the_same_on_a_real_api_server() {
    if env::var("MOORLINE_REFERENCE").as_deref() != Ok("required") {
        eprintln!("skipped: `make test-reference` builds the real server and runs this on it");
        return;
    }
    let programs = real::find().unwrap_or_else(|why| panic!("{why}"));
    let server = programs.start(Durability::Unsynced).await.unwrap();
    works_with(&server.kubeconfig()).await;
}

async fn works_with(kubeconfig: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.unwrap()).unwrap();
    let kind = |kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk("example.moorline.io", "v1", kind));
    let (exchange, mailbox) = (kind("Exchange"), kind("Mailbox"));
    let exchanges: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &exchange);
    let mailboxes: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &mailbox);
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let leases: Api<Lease> = Api::default_namespaced(client);

    let first = operator(directory.path(), kubeconfig);
    let wanted = DynamicObject::new("ada", &mailbox).data(json!({ "spec": { "exchange": "main" } }));
    eventually("its kinds are installed", || async {
        mailboxes.create(&PostParams::default(), &wanted).await.ok()
    })
    .await;
    let token = |secret: Secret| secret.data.unwrap()["token"].clone();
    let made = token(
        eventually("there is a token", || async {
            secrets.get_opt("ada-token").await.unwrap()
        })
        .await,
    );
    let log = terminate(first).await;
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |message: &str| {
        lines
            .iter()
            .any(|line| line["level"] == "INFO" && line["message"] == message)
    };
    assert!(told("gave the lease back"), "{log}");
    assert!(!log.contains("stringData"), "secrets are not logged");
    let held = leases.get("mailbox").await.unwrap().spec.unwrap().holder_identity;
    assert_eq!(held.as_deref(), Some(""));

    let wanted = DynamicObject::new("main", &exchange).data(json!({ "spec": { "port": 25 } }));
    exchanges.create(&PostParams::default(), &wanted).await.unwrap();
    let second = operator(directory.path(), kubeconfig);
    let map = eventually("the address is written", || async {
        maps.get_opt("ada").await.unwrap()
    })
    .await;
    assert_eq!(map.data.unwrap()["address"], "main.default.svc:25");
    eventually("it is ready", || async {
        let conditions = mailboxes.get("ada").await.ok()?.data["status"]["conditions"].take();
        let conditions = conditions.as_array()?.clone();
        conditions
            .iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True")
            .then_some(())
    })
    .await;
    assert_eq!(token(secrets.get("ada-token").await.unwrap()), made, "it was made once");
    terminate(second).await;
}
