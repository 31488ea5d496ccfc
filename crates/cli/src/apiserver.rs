//! `moorline apiserver`: the embedded Kubernetes API, alone.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use kube::Client;
use moorline_apiserver::{
    serve::Stopped,
    server::{ApiServer, Config},
};
use moorline_runtime::{Ground, Settings};
use tokio::signal::unix::{SignalKind, signal};

/// How long answers under way may take to finish once the server was told to stop.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Arguments {
    /// Keep everything in this directory
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "ephemeral",
        conflicts_with = "ephemeral"
    )]
    data_dir: Option<PathBuf>,
    /// Keep everything in memory; it is gone when the server stops
    #[arg(long)]
    ephemeral: bool,
    /// Listen here; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Write the administrator's kubeconfig to this file once the server answers
    #[arg(long, value_name = "FILE")]
    write_kubeconfig: Option<PathBuf>,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(serve(arguments))
}

async fn serve(arguments: Arguments) -> Result<()> {
    // Signals are caught from the start, so that one that comes early is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let config = Config {
        directory: arguments.data_dir,
        listen: arguments.listen,
        ..Config::ephemeral()
    };
    let server = ApiServer::start(config).await.context("the API server did not start")?;
    for cut in server.recovery().into_iter().flat_map(|recovery| &recovery.cut) {
        tracing::warn!(
            file = cut.file,
            offset = cut.offset,
            bytes = cut.bytes,
            "cut off what a crash left half written"
        );
    }
    if let Some(path) = &arguments.write_kubeconfig {
        server.write_kubeconfig(path).context("cannot write the kubeconfig")?;
    }
    tracing::info!(address = %server.address(), "serving");
    // Deployments, jobs and the like are looked after from now on; nobody has to wait for that to talk to the server.
    let client = Client::new(server.service(), "default");
    let controllers =
        tokio::spawn(async move { moorline_builtins::start(&Ground::new(client), &Settings::default()).await });
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    if controllers.is_finished()
        && let Ok(controllers) = controllers.await
    {
        controllers.stop(PATIENCE).await;
    }
    if let Stopped::CutOff(connections) = server.stop(PATIENCE).await {
        tracing::warn!(connections, "answers under way were cut off");
    }
    Ok(())
}
