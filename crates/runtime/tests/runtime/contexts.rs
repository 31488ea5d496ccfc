//! Members as a manager has them: from the contexts of a kubeconfig, and with its manners.

use std::time::Duration;

use kube::Api;
use moorline_apiserver::server::{ApiServer, Config};
use moorline_runtime::{Controller, Ground, Manager, ManagerError, Options, Settings};
use serde_json::json;

use crate::{
    managers::quiet,
    members::{Pages, Placed, member},
    scene::{rest, server},
};

/// A kubeconfig of contexts, each of which leads to a port.
fn kubeconfig(contexts: &[(&str, u16)]) -> String {
    let named = |part: &dyn Fn(&str, u16) -> serde_json::Value| {
        let parts = contexts.iter().map(|(name, port)| part(name, *port));
        parts.collect::<Vec<_>>()
    };
    let contexts = named(&|name, _| json!({ "name": name, "context": { "cluster": name, "user": name } }));
    let clusters =
        named(&|name, port| json!({ "name": name, "cluster": { "server": format!("http://127.0.0.1:{port}") } }));
    let users = named(&|name, _| json!({ "name": name, "user": {} }));
    json!({ "contexts": contexts, "clusters": clusters, "users": users }).to_string()
}

#[tokio::test(start_paused = true)]
async fn the_members_of_a_manager_follow_the_contexts_of_a_kubeconfig() {
    let (_home, client) = server().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("members");
    // Nobody listens on these ports.
    std::fs::write(&path, kubeconfig(&[("east", 1), ("left-out", 1)])).unwrap();
    let options = Options {
        member_kubeconfig: Some(path.clone()),
        member_contexts: vec!["east".to_owned(), "west".to_owned()],
        ..quiet()
    };
    let manager = Manager::new(client.clone(), options, Settings::default()).controller("pages", Placed);
    let clusters = manager.ground().clusters.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(manager.run(async { drop(stopped.await) }));
    let pages = Pages(Api::default_namespaced(client));
    for place in ["east", "west", "left-out"] {
        pages.create(place, place).await;
    }
    pages.tells("east", "the cluster east does not answer").await;
    pages.tells("west", "the cluster west is not known here").await;
    pages.tells("left-out", "the cluster left-out is not known here").await;
    std::fs::write(&path, kubeconfig(&[("west", 1)])).unwrap();
    pages.tells("west", "the cluster west does not answer").await;
    pages.tells("east", "the cluster east is not known here").await;
    assert_eq!(clusters.names(), ["west".into()]);
    // A file that is being written is not one without contexts.
    std::fs::write(&path, "{").unwrap();
    rest(Duration::from_mins(1)).await;
    assert_eq!(clusters.names(), ["west".into()]);
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert!(clusters.names().is_empty(), "nothing goes on for members after the end");
}

#[tokio::test(start_paused = true)]
async fn a_manager_without_the_kubeconfig_of_its_members_does_not_run() {
    let (_home, client) = server().await;
    let options = Options {
        member_kubeconfig: Some("/nowhere/members".into()),
        ..quiet()
    };
    let manager = Manager::new(client, options, Settings::default()).controller("pages", Placed);
    let error = manager.run(std::future::pending()).await.unwrap_err();
    assert!(matches!(error, ManagerError::Members(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn the_clients_of_a_managers_members_say_who_they_are() {
    let (_home, client) = server().await;
    let east = member().await;
    let options = Options {
        user_agent: "ours".to_owned(),
        ..quiet()
    };
    let manager = Manager::new(client.clone(), options, Settings::default()).controller("pages", Placed);
    manager.ground().clusters.add("east", east.wire.client());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(manager.run(async { drop(stopped.await) }));
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "east").await;
    pages.is_ready("a").await;
    assert_eq!(east.wire.agents(), ["ours"]);
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_context_that_makes_no_sense_keeps_no_other_out() {
    let (_home, client) = server().await;
    let real = ApiServer::start(Config::ephemeral()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("members");
    real.write_kubeconfig(&path).unwrap();
    let mut file = kube::config::Kubeconfig::read_from(&path).unwrap();
    let mut wrong = file.contexts[0].clone();
    file.contexts[0].name = "real".to_owned();
    wrong.name = "wrong".to_owned();
    wrong.context.as_mut().unwrap().cluster = "nowhere".to_owned();
    file.contexts.insert(0, wrong);
    std::fs::write(&path, serde_json::to_string(&file).unwrap()).unwrap();
    let ground = Ground::new(client.clone());
    let error = ground.clusters.add_contexts(&path, &[]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the context \"wrong\" from the kubeconfig"
    );
    let running = Controller::warm_up(&Placed, &ground, Settings::default()).start();
    let pages = Pages(Api::default_namespaced(client));
    pages.create("a", "real").await;
    pages.is_ready("a").await;
    pages.create("b", "wrong").await;
    pages.tells("b", "the cluster wrong is not known here").await;
    assert!(running.stop(Duration::from_secs(5)).await);
    real.stop(Duration::from_secs(5)).await;
}
