//! `kubectl exec`, `attach` and `cp`.

use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;

use crate::harness::{Cluster, Outcome, Running, finish};

/// What a client is told to speak: WebSocket, or SPDY as older ones do.
const PROTOCOLS: [(&str, &str); 2] = [
    ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "true"),
    ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"),
];

async fn with_pod() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.running_pod("web", &["app"]).await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_its_outputs_apart_and_its_exit_code() {
    let cluster = with_pod().await;
    for (name, value) in PROTOCOLS {
        let command = ["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 3"];
        let child = cluster.kubectl(&command).env(name, value).spawn().unwrap();
        let outcome = finish(child, "").await;
        let expected = Outcome {
            code: Some(3),
            stdout: "out\n".to_owned(),
            stderr: "err\ncommand terminated with exit code 3\n".to_owned(),
        };
        assert_eq!(outcome, expected, "{name}={value}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_reaches_a_command_and_ends() {
    let cluster = with_pod().await;
    for (name, value) in PROTOCOLS {
        let command = ["exec", "-i", "web", "--", "sh", "-c", "wc -c; echo done"];
        let child = cluster
            .kubectl(&command)
            .env(name, value)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let input = "x".repeat(300_000);
        let outcome = finish(child, &input).await;
        assert_eq!(outcome.stdout, "300000\ndone\n", "{name}={value}: {outcome:?}");
        assert_eq!(outcome.code, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn much_output_comes_whole() {
    let cluster = with_pod().await;
    for (name, value) in PROTOCOLS {
        let command = [
            "exec",
            "web",
            "--",
            "sh",
            "-c",
            "head -c 5000000 /dev/zero | tr '\\0' x",
        ];
        let child = cluster.kubectl(&command).env(name, value).spawn().unwrap();
        let outcome = finish(child, "").await;
        assert_eq!(
            (outcome.code, outcome.stdout.len()),
            (Some(0), 5_000_000),
            "{name}={value}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_holds_on_to_the_output_does_not_hold_up_the_end() {
    let cluster = with_pod().await;
    let child = cluster
        .ok(&["exec", "web", "--", "sh", "-c", "sleep 600 & echo $!"])
        .await;
    let killed = std::process::Command::new("kill").arg(child.trim()).status().unwrap();
    assert!(killed.success(), "it went on by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_start_says_why() {
    let cluster = with_pod().await;
    let stderr = cluster.fails(&["exec", "web", "--", "/no/such/command"]).await;
    assert!(stderr.contains("error executing command in container"), "{stderr}");
    assert!(stderr.contains("No such file or directory"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_both_outputs_and_knows_its_size() {
    let cluster = with_pod().await;
    for (name, value) in PROTOCOLS {
        let script = "tty >/dev/null && echo terminal; echo err >&2; \
                      until [ \"$(stty size)\" = '33 101' ]; do sleep 0.02; done; stty size; exit 5";
        let kubectl = cluster.kubectl(&["exec", "-it", "web", "--", "bash", "-c", script]);
        let (mut terminal, pts) = pty_process::open().unwrap();
        terminal.resize(pty_process::Size::new(33, 101)).unwrap();
        let mut command = pty_process::Command::new(kubectl.as_std().get_program());
        for (key, value) in kubectl.as_std().get_envs() {
            command = command.env(key, value.unwrap());
        }
        let mut child = command
            .args(kubectl.as_std().get_args())
            .env(name, value)
            .kill_on_drop(true)
            .spawn(pts)
            .unwrap();
        let mut shown = Vec::new();
        // Reading a terminal fails once nobody has it open any more.
        let reading = tokio::io::AsyncReadExt::read_to_end(&mut terminal, &mut shown);
        let _ = tokio::time::timeout(crate::harness::PATIENCE, reading).await.unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("terminal\r\nerr\r\n33 101"), "{name}={value}: {shown}");
        assert_eq!(child.wait().await.unwrap().code(), Some(5), "{name}={value}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_client_takes_part_in_the_process_until_it_ends() {
    let cluster = with_pod().await;
    for (name, value) in PROTOCOLS {
        cluster.pods.start(
            "app",
            "while read line; do echo \"heard $line\"; [ $line = bye ] && exit; done",
        );
        let mut child = cluster
            .kubectl(&["attach", "-i", "web"])
            .env(name, value)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut attached = Running::of(child);
        stdin.write_all(b"hello\n").await.unwrap();
        assert_eq!(attached.line().await, "heard hello", "{name}={value}");
        stdin.write_all(b"bye\n").await.unwrap();
        assert_eq!(attached.line().await, "heard bye", "{name}={value}");
        assert_eq!(attached.child.wait().await.unwrap().code(), Some(0), "{name}={value}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_copied_in_and_out() {
    let cluster = with_pod().await;
    let (there, back) = (cluster.path("there"), cluster.path("back"));
    std::fs::write(cluster.path("here"), "precious").unwrap();
    let remote = format!("web:{}", there.display());
    cluster.ok(&["cp", "here", &remote]).await;
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "precious");
    cluster.ok(&["cp", &remote, "back"]).await;
    assert_eq!(std::fs::read_to_string(back).unwrap(), "precious");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_when_the_server_stops_and_are_told_so() {
    for (name, value) in PROTOCOLS {
        let cluster = with_pod().await;
        let mut command = cluster.kubectl(&["exec", "web", "--", "sh", "-c", "echo on; exec sleep 1000"]);
        let mut session = Running::of(command.env(name, value).spawn().unwrap());
        assert_eq!(session.line().await, "on");
        let Cluster { server, .. } = cluster;
        let stopped = server.stop(std::time::Duration::from_secs(10)).await;
        assert_eq!(stopped, moorline_apiserver::serve::Stopped::Clean);
        session.error_with("the server is stopping").await;
        assert_ne!(session.child.wait().await.unwrap().code(), Some(0), "{name}={value}");
    }
}
