//! Running processes in containers, and attaching.

use std::time::Duration;

use moorline_container::{Error, ExecSpec, StdinPolicy, User, WindowSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Bench, PATIENCE, needs_containers};

fn exec(args: &[&str]) -> ExecSpec {
    ExecSpec::new(args.iter().map(|arg| (*arg).to_owned()).collect())
}

#[tokio::test]
async fn a_process_in_a_container_has_its_own_streams_and_exit_code() {
    needs_containers!();
    let bench = Bench::new("exec").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    let mut spec = exec(&["sh", "-c", "cat; echo $GREETING; echo bad >&2; exit 9"]);
    spec.stdin = true;
    spec.env = vec![("GREETING".to_owned(), "hello".to_owned())];
    let mut session = bench.runtime().exec(&pod, &id, spec).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"typed\n").await.unwrap();
    stdin.shutdown().await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.as_mut().unwrap().read_to_string(&mut out).await.unwrap();
    session.stderr.as_mut().unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("typed\nhello\n", "bad\n"));
    assert_eq!(session.wait().await.unwrap().code, 9);
    bench.purge().await;
}

#[tokio::test]
async fn a_process_runs_as_the_containers_user_or_another() {
    needs_containers!();
    let bench = Bench::new("execuser").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "sleep 1000");
    spec.user = User {
        uid: 65534,
        gid: 65534,
        additional_gids: vec![7],
    };
    let id = bench.start(&pod, spec).await;
    assert_eq!(
        bench.run(&pod, &id, &["sh", "-c", "id -u; id -G"]).await,
        (0, "65534\n65534 7\n".to_owned())
    );
    // A pipe is opened anew by name, which asks for its owner.
    assert_eq!(
        bench.run(&pod, &id, &["sh", "-c", "echo x >/dev/stdout"]).await,
        (0, "x\n".to_owned())
    );
    let mut spec = exec(&["id", "-u"]);
    spec.user = Some(User::default());
    let mut session = bench.runtime().exec(&pod, &id, spec).await.unwrap();
    let mut out = String::new();
    session.stdout.as_mut().unwrap().read_to_string(&mut out).await.unwrap();
    assert_eq!(out, "0\n");
    bench.purge().await;
}

#[tokio::test]
async fn a_terminal_has_a_size_and_passes_interrupts() {
    needs_containers!();
    let bench = Bench::new("tty").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    let mut spec = exec(&["sh"]);
    spec.terminal = Some(WindowSize { columns: 100, rows: 30 });
    spec.stdin = true;
    let mut session = bench.runtime().exec(&pod, &id, spec).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    let mut stdout = session.stdout.take().unwrap();
    stdin.write_all(b"stty size; tty\n").await.unwrap();
    let said = read_until(&mut stdout, "/dev/pts/").await;
    assert!(said.contains("30 100"), "{said}");
    session
        .terminal
        .as_ref()
        .unwrap()
        .resize(WindowSize { columns: 90, rows: 20 })
        .unwrap();
    stdin.write_all(b"stty size\n").await.unwrap();
    read_until(&mut stdout, "20 90").await;
    // The quotes tell what was run from the echo of what was typed.
    stdin
        .write_all(b"sh -c \"echo star''ted; sleep 1000\"\n")
        .await
        .unwrap();
    read_until(&mut stdout, "started").await;
    stdin.write_all(b"\x03").await.unwrap();
    // A shell throws away what was typed before it asks again.
    read_until(&mut stdout, "# ").await;
    stdin.write_all(b"echo alive $((40+2))\n").await.unwrap();
    read_until(&mut stdout, "alive 42").await;
    stdin.write_all(b"exit 4\n").await.unwrap();
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).await.unwrap();
    assert_eq!(session.wait().await.unwrap().code, 4);
    bench.purge().await;
}

async fn read_until(stream: &mut (impl AsyncReadExt + Unpin), wanted: &str) -> String {
    let mut text = String::new();
    let reading = async {
        let mut chunk = [0; 1024];
        while !text.contains(wanted) {
            let length = stream.read(&mut chunk).await.unwrap();
            assert!(length > 0, "ended at {text:?}");
            text.push_str(&String::from_utf8_lossy(&chunk[..length]));
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, reading).await.is_ok(),
        "no {wanted:?} in {text:?}"
    );
    text
}

#[tokio::test]
async fn a_process_whose_session_is_dropped_is_killed() {
    needs_containers!();
    let bench = Bench::new("execdrop").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    let session = bench.runtime().exec(&pod, &id, exec(&["sleep", "4711"])).await.unwrap();
    let process = format!("/proc/{}", session.pid);
    assert!(std::path::Path::new(&process).exists());
    drop(session);
    let gone = async {
        while std::path::Path::new(&process).exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    bench.purge().await;
}

#[tokio::test]
async fn a_process_that_cannot_be_run_is_an_error() {
    needs_containers!();
    let bench = Bench::new("execbad").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    let result = bench.runtime().exec(&pod, &id, exec(&["/no/such/thing"])).await;
    assert!(matches!(result, Err(Error::Exec { reason, .. }) if reason.contains("/no/such/thing")));
    bench.runtime().kill(&pod, &id).await.unwrap();
    bench.exit(&pod, &id).await;
    let result = bench.runtime().exec(&pod, &id, exec(&["true"])).await;
    assert!(matches!(result, Err(Error::WrongState { .. })));
    bench.purge().await;
}

#[tokio::test]
async fn one_who_attaches_writes_input_and_reads_output_which_is_logged_too() {
    needs_containers!();
    let bench = Bench::new("attach").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "cat; echo end >&2; exit 6");
    spec.stdin = StdinPolicy::OpenOnce;
    let id = bench.start(&pod, spec).await;
    let mut attached = bench.runtime().attach(&pod, &id).await.unwrap();
    let mut stdin = attached.stdin.take().unwrap();
    stdin.write_all(b"over the wire\n").await.unwrap();
    drop(stdin);
    let (mut out, mut err) = (String::new(), String::new());
    attached
        .stdout
        .as_mut()
        .unwrap()
        .read_to_string(&mut out)
        .await
        .unwrap();
    attached
        .stderr
        .as_mut()
        .unwrap()
        .read_to_string(&mut err)
        .await
        .unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("over the wire\n", "end\n"));
    assert_eq!(attached.wait().await.unwrap().code, 6);
    assert_eq!(bench.log(&pod, &id).await, "over the wire\nend\n");
    bench.purge().await;
}

#[tokio::test]
async fn much_output_reaches_one_who_is_attached_and_reads_late() {
    needs_containers!();
    let bench = Bench::new("attachmuch").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "read go; seq 1 100000");
    spec.stdin = StdinPolicy::Open;
    let id = bench.start(&pod, spec).await;
    let mut attached = bench.runtime().attach(&pod, &id).await.unwrap();
    attached.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
    // More than two pipes hold: the container waits for us, and ends only when we have read.
    let early = bench.runtime().wait(&pod, &id, Duration::from_millis(200)).await;
    assert!(matches!(early, Err(Error::Deadline { .. })));
    let mut out = String::new();
    attached
        .stdout
        .as_mut()
        .unwrap()
        .read_to_string(&mut out)
        .await
        .unwrap();
    assert_eq!(out.lines().count(), 100_000);
    assert!(out.ends_with("\n100000\n"));
    assert_eq!(attached.wait().await.unwrap().code, 0);
    bench.purge().await;
}

#[tokio::test]
async fn a_container_with_a_terminal_can_be_attached_to() {
    needs_containers!();
    let bench = Bench::new("attachtty").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "tty; read line; echo got $line; stty size");
    spec.terminal = true;
    spec.stdin = StdinPolicy::Open;
    let id = bench.start(&pod, spec).await;
    let mut attached = bench.runtime().attach(&pod, &id).await.unwrap();
    attached
        .terminal
        .as_ref()
        .unwrap()
        .resize(WindowSize { columns: 77, rows: 11 })
        .unwrap();
    attached.stdin.as_mut().unwrap().write_all(b"it\n").await.unwrap();
    read_until(attached.stdout.as_mut().unwrap(), "got it\r\n11 77\r\n").await;
    assert_eq!(attached.wait().await.unwrap().code, 0);
    assert!(bench.log(&pod, &id).await.contains("/dev/pts/0"));
    bench.purge().await;
}
