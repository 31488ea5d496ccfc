//! `moorline`: databases on Kubernetes, and a Kubernetes where there is none.
//!
//! Exit codes: 0 when what was asked for was done, 1 when it failed, 2 when the command line was not understood.

#![forbid(unsafe_code)]

mod apiserver;

use std::process::ExitCode;

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
    /// Run the embedded Kubernetes API server alone
    Apiserver(apiserver::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("MOORLINE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let output = fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(output).init();
    let result = match arguments.command {
        Command::Apiserver(arguments) => apiserver::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
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
