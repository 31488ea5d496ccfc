//! The example does what its documentation says, on the embedded API server.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use moorline_apiserver::{core::RealWorld, server::Embedded};
use moorline_runtime::{Manager, Options, Settings};

use super::*;

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_mailbox_waits_for_its_exchange_and_keeps_its_token() {
    let server = Embedded::ephemeral(Arc::new(RealWorld)).await.unwrap();
    let client = Client::new(server.service(), "default");
    install(&client).await.unwrap();
    let options = Options {
        health_address: None,
        metrics_address: None,
        ..Options::default()
    };
    let manager = Manager::new(
        client.clone(),
        options,
        Settings {
            field_owner: "mailbox".into(),
            ..Settings::default()
        },
    );
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let manager = manager.controller("mail", Exchanges).controller("mail", Mailboxes);
    let running = tokio::spawn(manager.run(async { drop(stopped.await) }));

    let (exchanges, mailboxes) = (
        Api::default_namespaced(client.clone()),
        Api::default_namespaced(client.clone()),
    );
    let (maps, secrets): (Api<ConfigMap>, Api<Secret>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client));
    let mailbox = Mailbox::new(
        "ada",
        MailboxSpec {
            exchange: "main".to_owned(),
        },
    );
    eventually("the kind is served", || async {
        mailboxes.create(&PostParams::default(), &mailbox).await.ok()
    })
    .await;
    eventually("it tells what it waits for", || async {
        let conditions = mailboxes.get("ada").await.ok()?.status?.conditions;
        let unmet = conditions
            .into_iter()
            .find(|condition| condition.type_ == "DependenciesReady")?;
        (unmet.message == "Exchange default/main does not exist").then_some(())
    })
    .await;
    let token = secrets.get("ada-token").await.unwrap().data.unwrap()["token"].clone();
    assert!(maps.get_opt("ada").await.unwrap().is_none());

    let exchange = Exchange::new("main", ExchangeSpec { port: 25 });
    exchanges.create(&PostParams::default(), &exchange).await.unwrap();
    let map = eventually("the address is written", || async {
        maps.get_opt("ada").await.unwrap()
    })
    .await;
    assert_eq!(map.data.unwrap()["address"], "main.default.svc:25");
    eventually("it is ready", || async {
        let conditions = mailboxes.get("ada").await.ok()?.status?.conditions;
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
            .then_some(())
    })
    .await;
    assert_eq!(
        secrets.get("ada-token").await.unwrap().data.unwrap()["token"],
        token,
        "it was made once"
    );

    mailboxes.delete("ada", &DeleteParams::default()).await.unwrap();
    eventually("what it owned is collected", || async {
        maps.get_opt("ada").await.unwrap().is_none().then_some(())
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
