//! `moorline up`: a Kubernetes on this machine.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{ErrorKind, IsTerminal as _, Write as _},
    net::{SocketAddr, TcpListener},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, api::ListParams};
use moorline_apiserver::server::{ApiServer, Config};
use moorline_node::{
    Machine, SimulatedConfig, Thresholds,
    container::{
        self, Missing,
        rootless::{self, Net, Stay},
    },
};
use moorline_runtime::{Ground, Recorder, Ring, Settings};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    access::Pods,
    control::{self, About, Request, Status},
    instance::{Instance, is_root},
    say,
};

/// How long answers under way may take to finish once the server was told to stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an instance may take to answer, or to be gone.
const ANSWER: Duration = Duration::from_secs(10);
/// How long an instance in the background may take to start.
const START: Duration = Duration::from_mins(2);

#[derive(Args)]
pub(crate) struct Arguments {
    /// Keep everything in this directory [default: /var/lib/moorline for root, ~/.local/share/moorline for others]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How many nodes this machine plays
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=200))]
    nodes: u8,
    /// Add so many nodes whose pods become ready without running anything
    #[arg(long, value_name = "N", default_value_t = 0)]
    simulated: usize,
    /// How long a pod on a simulated node takes to become ready, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    simulated_delay: u64,
    /// How many of a thousand pods on simulated nodes fail
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    simulated_failures: u16,
    /// Listen here; without it, on a free port of this machine that stays the same from start to start
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Let pods reach the world outside this machine, under its address
    #[arg(long)]
    outside: bool,
    /// End pods when less than this is left, as a kubelet does: memory.available, nodefs.available and nodefs.inodesFree,
    /// each with an amount or a percentage; '' for never [default: 100Mi of memory, 1Gi of disk, 1% of inodes, and never
    /// more than 5%]
    #[arg(long, value_name = "SIGNAL<AMOUNT,...")]
    eviction_hard: Option<Thresholds>,
    /// For how long nodes say that the machine runs short after it last did
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    eviction_pressure_transition_period: jiff::SignedDuration,
    /// Keep the last 1,000 reconciles of the controllers in this directory, for `moorline replay`
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Go to the background once it is up
    #[arg(long)]
    detach: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let instance = Instance::at(arguments.data_dir.clone())?;
    // One thread alone: what follows may enter other namespaces, which no process with more can do.
    let asking = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let asked = asking.context("cannot start")?.block_on(running(&instance))?;
    if let Some(status) = asked {
        return say(&format!(
            "already up: {} at {}\n{}{}",
            counted(status.nodes.len(), status.simulated),
            status.server,
            warned(&status.warnings),
            how_to_reach(&instance)
        ));
    }
    if !is_root() && arguments.nodes > 0 {
        without_root(&instance, arguments)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = if arguments.detach {
        runtime.block_on(detach(&instance))
    } else {
        runtime.block_on(serve(&instance, arguments))
    };
    // Threads that wait for pods wait for as long as those run; nothing is lost with them.
    runtime.shutdown_background();
    result
}

/// Enters namespaces in which this user is root, and starts there anew; a process that is to go to the background does
/// so once it is there.
fn without_root(instance: &Instance, arguments: &Arguments) -> Result<()> {
    let missing = rootless::lacking(Stay::Lasting);
    if !missing.is_empty() {
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let missing = missing.join("\n- ");
        bail!(
            "running containers without root needs what this machine lacks:\n- {missing}\nor start it with sudo, or with \
             --nodes 0 --simulated 3 for nodes that only seem to run pods, or run `moorline apiserver` for the API alone"
        );
    }
    if arguments.outside {
        bail!("--outside needs root: pods of a plain user are in a network of their own, without a way out of it");
    }
    if arguments.detach {
        return Ok(());
    }
    // Clients are on the machine's own network, which cannot be reached from inside.
    let listener = listen(instance, arguments)?;
    let inside = rootless::enter(
        instance.directory(),
        Stay::Lasting,
        Net::Pods,
        OwnedFd::from(listener).into(),
    );
    match inside.context("cannot run without root")? {}
}

/// The socket that clients connect to; [`without_root`] has opened it if this process is inside.
fn listener(instance: &Instance, arguments: &Arguments) -> Result<TcpListener> {
    if rootless::inside().is_none() {
        return listen(instance, arguments);
    }
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).context("cannot take over the socket")?;
    Ok(TcpListener::from(socket))
}

/// Listens where clients found it the last time, or at a port that nobody gets by chance: those of services and those
/// that the kernel hands out begin above.
fn listen(instance: &Instance, arguments: &Arguments) -> Result<TcpListener> {
    const PORTS: std::ops::Range<u16> = 20_000..30_000;
    const TRIED: u16 = 100;
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let failed = |address: SocketAddr| format!("cannot listen on {address}");
    if let Some(address) = arguments.listen {
        return TcpListener::bind(address).with_context(|| failed(address));
    }
    if let Some(last) = instance.last_port() {
        match TcpListener::bind(at(last)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                tracing::warn!(
                    port = last,
                    "somebody else has taken the port; the kubeconfig names another now"
                );
            }
            bound => return bound.with_context(|| failed(at(last))),
        }
    }
    let mut hash = DefaultHasher::new();
    instance.directory().hash(&mut hash);
    let span = PORTS.end - PORTS.start;
    let first = u16::try_from(hash.finish() % u64::from(span)).unwrap_or(0);
    let ports = (0..TRIED).map(|more| PORTS.start + (first + more) % span);
    // If all of them are taken, the kernel knows one that is not.
    for port in ports.chain([0]) {
        match TcpListener::bind(at(port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return bound.with_context(|| failed(at(port))),
        }
    }
    bail!("cannot listen on 127.0.0.1: all ports are taken; name one with --listen")
}

/// What is not as with root.
fn without_root_lacks() -> Vec<String> {
    if rootless::inside().is_none() {
        return Vec::new();
    }
    let mut lacks = vec![
        "without root: pods are reached by kubectl port-forward, exec and logs; their addresses exist in a network of \
         their own"
            .to_owned(),
        "without root: images are not fetched when a pod asks for them; fetch them with `moorline image pull`, or build \
         or import them"
            .to_owned(),
    ];
    let controllers = container::missing().into_iter().filter_map(|what| match what {
        Missing::Controller(name) => Some(name),
        _ => None,
    });
    let controllers: Vec<String> = controllers.collect();
    if !controllers.is_empty() {
        lacks.push(format!(
            "without root: limits that need the control group controllers {} are not kept; nobody gave them to this user",
            controllers.join(", ")
        ));
    }
    lacks
}

/// How an instance is that somebody runs; `None` if nobody does.
///
/// One that was killed a moment ago still holds its lock, and one that has just been started does not answer yet: both
/// get some time to become what they will be.
async fn running(instance: &Instance) -> Result<Option<Status>> {
    let asked = Instant::now();
    loop {
        if instance.runner()?.is_none() {
            return Ok(None);
        }
        match control::ask(&instance.socket(), &Request::Status).await {
            Ok(status) => return Ok(Some(status)),
            Err(error) if asked.elapsed() >= ANSWER => {
                return Err(error.context("it is running and does not answer; `moorline down` ends it"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The nodes of both kinds, in words.
fn counted(nodes: usize, simulated: usize) -> String {
    let plural = |count| if count == 1 { "" } else { "s" };
    match (nodes, simulated) {
        (_, 0) => format!("{nodes} node{}", plural(nodes)),
        (0, _) => format!("{simulated} simulated node{}", plural(simulated)),
        _ => format!("{nodes} node{} and {simulated} simulated", plural(nodes)),
    }
}

fn warned(warnings: &[String]) -> String {
    warnings
        .iter()
        .flat_map(|warning| ["warning: ", warning, "\n"])
        .collect()
}

fn how_to_reach(instance: &Instance) -> String {
    format!("export KUBECONFIG={}", instance.kubeconfig().display())
}

/// Starts the same command in a process of its own, and waits until it answers.
async fn detach(instance: &Instance) -> Result<()> {
    drop(instance.hold()?);
    let log = File::options()
        .create(true)
        .append(true)
        .open(instance.log())
        .context("cannot open the log")?;
    let program = std::env::current_exe().context("cannot find this executable")?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot open the log twice")?)
        .stderr(log)
        // A Ctrl-C at the terminal is not meant for it.
        .process_group(0)
        .spawn()
        .context("cannot start in the background")?;
    let mut progress = Progress::new("starting");
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tick.tick().await;
        if let Ok(status) = control::ask(&instance.socket(), &Request::Status).await {
            progress.clear();
            return say(&format!(
                "up: {} at {}, in {:.1} s\n{}{}",
                counted(status.nodes.len(), status.simulated),
                status.server,
                started.elapsed().as_secs_f64(),
                warned(&status.warnings),
                how_to_reach(instance)
            ));
        }
        if let Some(ended) = child.try_wait().context("cannot look after the process")? {
            progress.clear();
            bail!(
                "it ended at once with {ended}; {} says why:\n{}",
                instance.log().display(),
                last_lines(instance)
            );
        }
        if started.elapsed() > START {
            progress.clear();
            bail!(
                "it does not answer after {} s; see {}",
                START.as_secs(),
                instance.log().display()
            );
        }
        progress.show();
    }
}

fn last_lines(instance: &Instance) -> String {
    let log = std::fs::read_to_string(instance.log()).unwrap_or_default();
    let lines: Vec<&str> = log.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

async fn serve(instance: &Instance, arguments: &Arguments) -> Result<()> {
    // Signals are caught from the start, so that one that comes early is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let _hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let Some(held) = instance.hold()? else {
        bail!("another process has just started this instance")
    };
    let simulated = (arguments.simulated > 0).then(|| SimulatedConfig {
        nodes: arguments.simulated,
        ready_after: Duration::from_millis(arguments.simulated_delay),
        failing_per_mille: arguments.simulated_failures,
        ..SimulatedConfig::default()
    });
    let mut config = instance.machine(usize::from(arguments.nodes), simulated);
    if arguments.outside {
        config.outside = moorline_network::Outside::Open;
    }
    if let Some(thresholds) = arguments.eviction_hard.clone() {
        config.pressure.thresholds = thresholds;
    }
    config.pressure.hold = Duration::try_from(arguments.eviction_pressure_transition_period)
        .context("--eviction-pressure-transition-period is less than nothing")?;
    config.ranges = instance.last_ranges()?;
    let purged = config.clone();
    let network = Machine::open_network(&config)
        .await
        .context("cannot open the network of pods")?;
    let ranges = network.ranges();
    instance.remember_ranges(&ranges)?;
    let server = ApiServer::start(Config {
        directory: Some(instance.directory().join("api")),
        listener: Some(listener(instance, arguments)?),
        for_pods: Some(ranges.host_address().into()),
        services: ranges.services().to_string(),
        ..Config::ephemeral()
    })
    .await
    .context("the API server did not start")?;
    instance.remember_port(server.address().port())?;
    server
        .write_kubeconfig(&instance.kubeconfig())
        .context("cannot write the kubeconfig")?;
    let client = Client::new(server.service(), "default");
    let mut ground = Ground::new(client.clone());
    if let Some(directory) = arguments.record.clone() {
        let ring = Ring {
            directory,
            records: 1000,
        };
        ground.recorder = Some(Recorder::start(ring).context("cannot record reconciles")?);
    }
    let controllers = moorline_builtins::start(&ground, &Settings::default()).await;
    let machine = Machine::start_on(config, network, client.clone())
        .await
        .context("the nodes did not start")?;
    let machine = Arc::new(machine);
    server.set_pod_access(Arc::new(Pods::new(Arc::clone(&machine))));
    let address = format!("https://{}", server.address());
    // Another firewall that drops what pods send is the owner's to mend; everything else works all the same.
    let mut warnings = without_root_lacks();
    if let Err(error) = machine.verify_network().await {
        let error = anyhow::Error::from(error);
        tracing::warn!("{error:#}");
        warnings.push(format!("{error:#}"));
    }
    if std::io::stdout().is_terminal() {
        say(&format!(
            "up: {} at {address}\n{}{}\nCtrl-C ends it and its pods",
            counted(machine.node_names().len(), arguments.simulated),
            warned(&warnings),
            how_to_reach(instance)
        ))?;
    }
    let about = About {
        server: address,
        simulated: arguments.simulated,
        warnings,
    };
    let answering = control::answer(&instance.socket(), about, Arc::clone(&machine))?;
    let why = tokio::select! {
        _ = terminate.recv() => Ending::LeavePods,
        _ = interrupt.recv() => Ending::EndPods,
        never = tell_status(client) => match never {},
    };
    drop(answering);
    let _ = std::fs::remove_file(instance.socket());
    tracing::info!("ending: controllers");
    controllers.stop(PATIENCE).await;
    tracing::info!("ending: nodes");
    // The API server still has a hand on it, and lets go when it stops.
    if let Some(machine) = Arc::into_inner(machine) {
        machine.stop().await;
    }
    tracing::info!("ending: API server");
    server.stop(PATIENCE).await;
    if why == Ending::EndPods {
        Machine::purge_stopped(&purged).await.context("cannot end the pods")?;
        rootless::release(instance.directory()).context("cannot give up the namespaces of the pods")?;
    }
    drop(held);
    Ok(())
}

/// What becomes of the pods when this process ends.
#[derive(PartialEq, Eq)]
enum Ending {
    /// They go on, and the next start takes them over: an upgrade, a restart.
    LeavePods,
    /// Somebody at the terminal has had enough.
    EndPods,
}

/// Keeps one line at the bottom of a terminal that says how things are.
async fn tell_status(client: Client) -> std::convert::Infallible {
    if !std::io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let mut line = Progress::new("");
    loop {
        let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await;
        let pods = Api::<Pod>::all(client.clone()).list(&ListParams::default()).await;
        if let (Ok(nodes), Ok(pods)) = (nodes, pods) {
            let is_ready = |conditions: Vec<(&str, &str)>| conditions.contains(&("Ready", "True"));
            let ready_nodes = nodes.items.iter().filter(|node| {
                let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
                is_ready(
                    conditions
                        .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
                        .collect(),
                )
            });
            let ready_pods = pods.items.iter().filter(|pod| {
                let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
                is_ready(
                    conditions
                        .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
                        .collect(),
                )
            });
            let (ready_nodes, ready_pods) = (ready_nodes.count(), ready_pods.count());
            line.what = format!(
                "nodes {ready_nodes}/{} ready, pods {ready_pods}/{} ready",
                nodes.items.len(),
                pods.items.len()
            );
            line.show();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A line that is written over and over, on a terminal only.
struct Progress {
    what: String,
    since: Instant,
    shown: Option<String>,
}

impl Progress {
    fn new(what: &str) -> Self {
        Self {
            what: what.to_owned(),
            since: Instant::now(),
            shown: None,
        }
    }

    fn show(&mut self) {
        let line = format!("{} ({} s)", self.what, self.since.elapsed().as_secs());
        if self.shown.as_ref() != Some(&line) && std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            self.shown = Some(line);
        }
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_by_kind() {
        assert_eq!(counted(1, 0), "1 node");
        assert_eq!(counted(0, 50), "50 simulated nodes");
        assert_eq!(counted(3, 50), "3 nodes and 50 simulated");
    }
}
