//! `pods/exec` and `pods/attach`: a client takes part in a process.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use moorline_machinery::status::ApiError;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use super::{
    StreamCall,
    access::{AccessError, Console, ContainerRef, PodAccess, Session, StreamChoice, TerminalSize},
    multiplex::{Input, Outgoing, Output, QUEUE, write_all},
    pod::Pod,
    spdy::{self, Opened},
    upgrade::{self, Asked, Stop, Switch},
    websocket::{self, Channels, Codec},
};
use crate::body::Body;

/// The channels of a session, which are also the numbers that processes know their streams by.
const STDIN: usize = 0;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;
const STATUS: u32 = 3;
const RESIZE: usize = 4;
const CHANNELS: usize = 5;

/// How long a process that has ended may keep silent before its output is taken to have ended too. It has children that
/// hold on to it then.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is to be done in the container.
pub(super) enum Act {
    /// Run a command.
    Exec(Vec<String>),
    /// Take part in what runs.
    Attach,
}

/// How the end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// As a `Status` in JSON, which knows exit codes.
    Status,
    /// As plain text, and not at all when it went well.
    Text,
}

/// A protocol that sessions are spoken in.
struct Protocol {
    name: &'static str,
    codec: Codec,
    told: Told,
    can_close: bool,
}

/// The protocols over WebSocket. Clients that name none speak the oldest.
const WEBSOCKET_PROTOCOLS: [Protocol; 6] = [
    protocol("v5.channel.k8s.io", Codec::Binary, Told::Status, true),
    protocol("v4.channel.k8s.io", Codec::Binary, Told::Status, false),
    protocol("v4.base64.channel.k8s.io", Codec::Base64, Told::Status, false),
    protocol("channel.k8s.io", Codec::Binary, Told::Text, false),
    protocol("base64.channel.k8s.io", Codec::Base64, Told::Text, false),
    protocol("", Codec::Binary, Told::Text, false),
];

/// The protocols over SPDY, which differ in what they can tell.
const SPDY_PROTOCOLS: [&str; 4] = [
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];

const fn protocol(name: &'static str, codec: Codec, told: Told, can_close: bool) -> Protocol {
    Protocol {
        name,
        codec,
        told,
        can_close,
    }
}

/// The client's ends of a session.
struct Client {
    stdin: Option<Input>,
    resize: Option<Input>,
    stdout: Option<Output>,
    stderr: Option<Output>,
    status: Output,
    told: Told,
}

/// Everything that a session is about.
struct Plan {
    access: Arc<dyn PodAccess>,
    container: ContainerRef,
    act: Act,
    choice: StreamChoice,
}

/// Answers a request to exec or attach.
pub(super) fn answer(mut call: StreamCall<'_>, act: Act) -> Result<Response<Body>, ApiError> {
    call.permit_create()?;
    let pod = Pod::find(call.core, &call.path.namespace, &call.path.name)?;
    let container = pod.container(call.query.get("container"))?;
    let node = pod.assigned_node(call.core)?;
    let container = pod.container_ref(node, container);
    let access = call.core.streams.access()?;
    let asked = Asked::required(&call.parts.headers)?;
    let plan = Plan {
        access,
        container,
        choice: choice(&call)?,
        act,
    };
    if let Act::Exec(command) = &plan.act
        && command.is_empty()
    {
        return Err(ApiError::bad_request(
            "you must specify at least one command for the container",
        ));
    }
    match asked {
        Asked::WebSocket { key, protocols } => over_websocket(&mut call, plan, &key, &protocols),
        Asked::Spdy { protocols } => over_spdy(&mut call, plan, &protocols),
    }
}

/// Which streams a request wants.
fn choice(call: &StreamCall<'_>) -> Result<StreamChoice, ApiError> {
    let choice = StreamChoice {
        stdin: call.query.flag("stdin"),
        stdout: call.query.flag("stdout"),
        console: if call.query.flag("tty") {
            Console::Terminal
        } else {
            let stderr = call.query.flag("stderr");
            Console::Pipes { stderr }
        },
    };
    if choice.stdin || choice.stdout || choice.stderr() {
        return Ok(choice);
    }
    Err(ApiError::bad_request(
        "you must specify at least 1 of stdin, stdout, stderr",
    ))
}

fn over_websocket(
    call: &mut StreamCall<'_>,
    plan: Plan,
    key: &[u8],
    offered: &[String],
) -> Result<Response<Body>, ApiError> {
    let spoken = WEBSOCKET_PROTOCOLS.map(|protocol| protocol.name);
    let name = match offered {
        [] => "",
        _ => match upgrade::choose(offered, &spoken) {
            Some(name) => name,
            None => return Ok(upgrade::websocket_refusal(offered, &spoken)),
        },
    };
    let answer = match upgrade::websocket_answer(&call.parts.headers, key, name) {
        Ok(answer) => answer,
        Err(refusal) => return Ok(*refusal),
    };
    let found = WEBSOCKET_PROTOCOLS.into_iter().find(|protocol| protocol.name == name);
    let protocol = found.expect("only what is spoken is chosen");
    Switch::of(&mut call.parts, &call.core.streams)?.then(move |io, stop| async move {
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (client, channels) = channels(plan.choice, &protocol, &queue);
        drop(queue);
        let work = run(plan, client, stop.clone());
        websocket::carry(io, channels, outgoing, stop, work).await;
    });
    Ok(answer)
}

fn over_spdy(call: &mut StreamCall<'_>, plan: Plan, offered: &[String]) -> Result<Response<Body>, ApiError> {
    let (protocol, answer) = match upgrade::spdy_answer(offered, &SPDY_PROTOCOLS) {
        Ok(agreed) => agreed,
        Err(refusal) => return Ok(*refusal),
    };
    let told = match protocol {
        "v4.channel.k8s.io" => Told::Status,
        _ => Told::Text,
    };
    // The first two versions cannot tell the size of a terminal.
    let resizes = plan.choice.terminal() && matches!(protocol, "v4.channel.k8s.io" | "v3.channel.k8s.io");
    Switch::of(&mut call.parts, &call.core.streams)?.then(move |io, stop| async move {
        let (reader, writer) = tokio::io::split(io);
        let stopping = stop.clone();
        spdy::carry(reader, writer, stop, |streams| async move {
            let gathering = gather(streams, plan.choice, resizes, told);
            if let Ok(Some((client, _alive))) = timeout(spdy::OPENING, gathering).await {
                run(plan, client, stopping).await;
            }
        })
        .await;
    });
    Ok(answer)
}

/// Waits until the client has opened every stream of a session. They are forgotten once what comes second is dropped.
async fn gather(
    mut streams: mpsc::Receiver<Opened>,
    choice: StreamChoice,
    resizes: bool,
    told: Told,
) -> Option<(Client, Vec<oneshot::Receiver<()>>)> {
    let (mut stdin, mut resize, mut stdout, mut stderr, mut status) = (None, None, None, None, None);
    let mut alive = Vec::new();
    loop {
        let missing = (choice.stdin && stdin.is_none())
            || (resizes && resize.is_none())
            || (choice.stdout && stdout.is_none())
            || (choice.stderr() && stderr.is_none());
        if !missing && let Some(status) = status.take() {
            let client = Client {
                stdin,
                resize,
                stdout,
                stderr,
                status,
                told,
            };
            return Some((client, alive));
        }
        let stream = streams.recv().await?;
        match stream.headers.get("streamtype") {
            "stdin" => stdin = Some(stream.input),
            "stdout" => stdout = Some(stream.output),
            "stderr" => stderr = Some(stream.output),
            "error" => status = Some(stream.output),
            "resize" => resize = Some(stream.input),
            _ => continue,
        }
        alive.push(stream.broken);
    }
}

/// Both ends of what a WebSocket carries for a session.
fn channels(choice: StreamChoice, protocol: &Protocol, queue: &mpsc::Sender<Outgoing>) -> (Client, Channels) {
    let mut inputs: Vec<Option<mpsc::Sender<Bytes>>> = vec![None; CHANNELS];
    let mut input = |channel: usize, wanted: bool| {
        wanted.then(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            inputs[channel] = Some(sender);
            receiver
        })
    };
    let output = |channel, wanted: bool| wanted.then(|| Output::new(channel, queue));
    let client = Client {
        stdin: input(STDIN, choice.stdin),
        resize: input(RESIZE, choice.terminal()),
        stdout: output(STDOUT, choice.stdout),
        stderr: output(STDERR, choice.stderr()),
        status: Output::new(STATUS, queue),
        told: protocol.told,
    };
    let channels = Channels {
        inputs,
        codec: protocol.codec,
        can_close: protocol.can_close,
    };
    (client, channels)
}

/// Runs a session from its start to the word about its end.
async fn run(plan: Plan, client: Client, mut stop: Stop) {
    // Clients take the first message, even an empty one, as a sign that the connection stands.
    let first = client
        .stdout
        .as_ref()
        .or(client.stderr.as_ref())
        .unwrap_or(&client.status);
    if first.send(Bytes::new()).await.is_err() {
        return;
    }
    let Client {
        stdin,
        resize,
        stdout,
        stderr,
        status,
        told,
    } = client;
    let (opened, command) = match &plan.act {
        Act::Exec(command) => (
            plan.access.exec(&plan.container, command, &plan.choice).await,
            Some(command),
        ),
        Act::Attach => (plan.access.attach(&plan.container, &plan.choice).await, None),
    };
    let ended = match opened {
        Ok(session) => tokio::select! {
            ended = take_part(session, stdin, resize, stdout, stderr) => ended,
            // Clients take silence for success.
            () = stop.wait() => Err(AccessError::Failed("the server is stopping".to_owned())),
        },
        Err(error) => Err(error),
    };
    if let Some(word) = last_word(told, &ended, command.map(Vec::as_slice)) {
        let _ = status.send(word.into()).await;
    }
    status.end().await;
}

/// Copies between client and process until the process has ended and all that it said is sent.
async fn take_part(
    session: Session,
    stdin: Option<Input>,
    resize: Option<Input>,
    stdout: Option<Output>,
    stderr: Option<Output>,
) -> Result<i32, AccessError> {
    let (exited, exit_seen) = watch::channel(false);
    let exit = async {
        let ended = session.exit.await;
        exited.send_replace(true);
        ended
    };
    let enough = || {
        let mut exit_seen = exit_seen.clone();
        async move {
            // The sender lives as long as this.
            let _ = exit_seen.wait_for(|exited| *exited).await;
            sleep(LAST_WORDS).await;
        }
    };
    let copy = async |reader, output: Option<Output>| {
        if let (Some(reader), Some(output)) = (reader, output)
            && output.send_all(reader, enough).await.is_ok()
        {
            output.end().await;
        }
    };
    let inputs = async {
        let stdin = async {
            if let (Some(input), Some(writer)) = (stdin, session.stdin) {
                write_all(input, writer).await;
            }
        };
        let resize = async {
            if let (Some(input), Some(sizes)) = (resize, session.resize) {
                follow_size(input, &sizes).await;
            }
        };
        tokio::join!(stdin, resize);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        (ended, (), ()) = async { tokio::join!(exit, copy(session.stdout, stdout), copy(session.stderr, stderr)) } => ended,
        () = inputs => unreachable!("it never ends by itself"),
    }
}

/// Passes on the sizes of the client's terminal.
async fn follow_size(mut input: Input, sizes: &watch::Sender<TerminalSize>) {
    /// The most bytes that may come without making up a size.
    const LIMIT: usize = 4096;
    let mut text = Vec::new();
    while let Some(bytes) = input.recv().await {
        text.extend_from_slice(&bytes);
        let mut values = serde_json::Deserializer::from_slice(&text).into_iter::<TerminalSize>();
        let mut latest = None;
        while let Some(Ok(size)) = values.next() {
            latest = Some(size);
        }
        let read = values.byte_offset();
        text.drain(..read);
        if let Some(size) = latest {
            sizes.send_replace(size);
        }
        if text.len() > LIMIT {
            return;
        }
    }
}

/// What the client is told about the end, if anything.
fn last_word(told: Told, ended: &Result<i32, AccessError>, command: Option<&[String]>) -> Option<String> {
    let status = match (ended, command) {
        // An attached client is told by the pod how its process ended.
        (Ok(0), _) | (Ok(_), None) => json!({ "metadata": {}, "status": "Success" }),
        (Ok(code), Some(command)) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!(
                "command terminated with non-zero exit code: error executing command [{}], exit code {code}",
                command.join(" ")
            ),
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        (Err(error), command) => {
            let what = match command {
                Some(_) => "error executing command in container",
                None => "error attaching to container",
            };
            json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("Internal error occurred: {what}: {error}"),
            })
        }
    };
    match told {
        Told::Status => Some(status.to_string()),
        Told::Text => status["message"].as_str().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_told_as_kubernetes_tells_it() {
        let command = ["sh".to_owned(), "-c".to_owned(), "exit 3".to_owned()];
        let told = last_word(Told::Status, &Ok(3), Some(&command)).unwrap();
        let status: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["details"]["causes"],
            json!([{ "reason": "ExitCode", "message": "3" }])
        );
        assert!(
            last_word(Told::Status, &Ok(0), Some(&command))
                .unwrap()
                .contains("Success")
        );
        assert_eq!(last_word(Told::Text, &Ok(0), Some(&command)), None);
        assert!(last_word(Told::Status, &Ok(3), None).unwrap().contains("Success"));
    }

    #[tokio::test]
    async fn of_the_sizes_that_came_the_last_one_counts() {
        let (sizes, seen) = watch::channel(TerminalSize::default());
        let (sender, input) = mpsc::channel(4);
        for text in [r#"{"Width":80,"Height":24}{"Wid"#, r#"th":120,"Height":40}"#, "\n"] {
            sender.send(Bytes::from_static(text.as_bytes())).await.unwrap();
        }
        drop(sender);
        follow_size(input, &sizes).await;
        assert_eq!(*seen.borrow(), TerminalSize { columns: 120, rows: 40 });
    }
}
