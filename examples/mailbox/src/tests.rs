//! The example does what its documentation says, on the embedded API server.

use std::{sync::Arc, time::Duration};

use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use moorline_apiserver::{core::RealWorld, server::Embedded};

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
    install(&client, "mailbox", &[Exchange::crd(), Mailbox::crd()])
        .await
        .unwrap();
    let options = Options {
        health_address: None,
        metrics_address: None,
        ..Options::default()
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(manager(client.clone(), options).run(async { drop(stopped.await) }));

    let exchanges: Api<Exchange> = Api::default_namespaced(client.clone());
    let mailboxes: Api<Mailbox> = Api::default_namespaced(client.clone());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let spec = MailboxSpec {
        exchange: "main".to_owned(),
    };
    let mailbox = Mailbox::new("ada", spec);
    mailboxes.create(&PostParams::default(), &mailbox).await.unwrap();
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
        let ready = |condition: &&_| matches!(condition, k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition { type_, status, .. } if type_ == "Ready" && status == "True");
        conditions.iter().find(ready).map(drop)
    })
    .await;
    let kept = secrets.get("ada-token").await.unwrap().data.unwrap()["token"].clone();
    assert_eq!(kept, token, "it was made once");

    mailboxes.delete("ada", &DeleteParams::default()).await.unwrap();
    eventually("what it owned is collected", || async {
        maps.get_opt("ada").await.unwrap().is_none().then_some(())
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
