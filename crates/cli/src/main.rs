//! `moorline`: databases on Kubernetes, and a Kubernetes where there is none.
//!
//! Exit codes: 0 when what was asked for was done, 1 when it failed, 2 when the command line was not understood.

#![forbid(unsafe_code)]

mod access;
mod apiserver;
mod control;
mod down;
mod image;
mod instance;
mod node;
mod replay;
mod up;

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

#[derive(Parser)]
#[command(
    name = "moorline",
    version,
    about = "Databases on Kubernetes, and a Kubernetes where there is none"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring up a Kubernetes on this machine: the API and nodes that run pods as containers
    Up(up::Arguments),
    /// End it and its pods
    Down(down::Arguments),
    /// Let nodes of this machine fail, and mend them
    Node(node::Arguments),
    /// Plan a recorded reconcile once more, and say whether the plan is the same
    Replay(replay::Arguments),
    /// Run the embedded Kubernetes API server alone
    Apiserver(apiserver::Arguments),
    /// List, fetch, take in, write out, build and remove images
    Image(image::Arguments),
}

fn main() -> ExitCode {
    // Shims of pods are this executable too; they want nothing of what follows.
    if let Some(ended) = moorline_node::container::shim::run_if_asked() {
        return ended;
    }
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("MOORLINE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let output = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(output).init();
    let result = match arguments.command {
        Command::Up(arguments) => up::run(&arguments),
        Command::Down(arguments) => down::run(&arguments),
        Command::Node(arguments) => node::run(arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Apiserver(arguments) => apiserver::run(arguments),
        Command::Image(arguments) => image::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            // That a record cannot be read is something else than that it gives another plan.
            if error.is::<moorline_runtime::ReplayError>() {
                return ExitCode::from(2);
            }
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the one place where a failure is told to the person at the terminal"
)]
fn report(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

/// Writes what a command was asked for. Whoever reads it may leave early, which is no failure.
fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
    {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
