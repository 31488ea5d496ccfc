//! `moorline node`: lets nodes of this machine fail, and mends them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use crate::{
    control::{self, NodeMode, Request, Status},
    instance::Instance,
    say,
};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory of the instance [default: /var/lib/moorline for root, ~/.local/share/moorline for others]
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// How to show the nodes
    #[arg(short, long, value_enum, default_value_t = Output::Table, global = true)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Wide,
    Json,
    Yaml,
}

#[derive(Subcommand)]
enum Command {
    /// List the nodes and how they are
    List,
    /// Kill everything on a node, as a power loss would
    Stop {
        /// The node
        name: String,
    },
    /// Let a node and its pods stand still
    Freeze {
        /// The node
        name: String,
    },
    /// Cut a node off: its pods run on, with no way to the API, to names or to other nodes
    Partition {
        /// The node
        name: String,
    },
    /// Start a node again, whatever had become of it
    Start {
        /// The node
        name: String,
    },
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let instance = Instance::at(arguments.data_dir)?;
    if instance.runner()?.is_none() {
        bail!(
            "nothing runs in {}; `moorline up` starts it",
            instance.directory().display()
        );
    }
    let request = match arguments.command {
        Command::List => Request::Status,
        Command::Stop { name } => Request::SetMode {
            node: name,
            mode: NodeMode::Stopped,
        },
        Command::Freeze { name } => Request::SetMode {
            node: name,
            mode: NodeMode::Frozen,
        },
        Command::Partition { name } => Request::SetMode {
            node: name,
            mode: NodeMode::CutOff,
        },
        Command::Start { name } => Request::SetMode {
            node: name,
            mode: NodeMode::Running,
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let status = runtime.block_on(control::ask(&instance.socket(), &request))?;
    show(&status, arguments.output)
}

fn show(status: &Status, output: Output) -> Result<()> {
    let nodes: Vec<_> = status
        .nodes
        .iter()
        .map(|(name, mode)| json!({ "name": name, "mode": mode }))
        .collect();
    let text = match output {
        Output::Json => serde_json::to_string_pretty(&nodes)?,
        Output::Yaml => serde_saphyr::to_string(&nodes)?.trim_end().to_owned(),
        Output::Table | Output::Wide => {
            let mut lines = vec![format!("{:<16} MODE", "NAME")];
            for (name, mode) in &status.nodes {
                let mode = match mode {
                    NodeMode::Running => "running",
                    NodeMode::Stopped => "stopped",
                    NodeMode::Frozen => "frozen",
                    NodeMode::CutOff => "cut off",
                };
                lines.push(format!("{name:<16} {mode}"));
            }
            lines.join("\n")
        }
    };
    say(&text)
}
