//! The `kube` client, which has its own way of speaking.

use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{AttachParams, LogParams},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_run_with_input_output_and_exit_code() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.socket_client().await);
    let params = AttachParams::default().stdin(true).stderr(true);
    let command = ["sh", "-c", "read line; echo got $line; echo bad >&2; exit 4"];
    let mut process = pods.exec("web", command, &params).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    stdin.write_all(b"that\n").await.unwrap();
    stdin.flush().await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    process.stdout().unwrap().read_to_string(&mut out).await.unwrap();
    process.stderr().unwrap().read_to_string(&mut err).await.unwrap();
    let status = process.take_status().unwrap().await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("got that\n", "bad\n"));
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
    assert_eq!(status.details.unwrap().causes.unwrap()[0].message.as_deref(), Some("4"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_streamed_without_a_socket_too() {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    cluster.pods.start("app", "echo one; echo two");
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let params = LogParams {
        follow: true,
        ..LogParams::default()
    };
    let lines: Vec<String> = pods
        .log_stream("web", &params)
        .await
        .unwrap()
        .lines()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(lines, ["one", "two"]);
}
