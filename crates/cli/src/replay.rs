//! `moorline replay`: builds the plan of a recorded reconcile once more, and says whether it is the same.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::say;

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 if the plan is the same, 1 if it is another, 2 if the record cannot be replayed"
)]
pub(crate) struct Arguments {
    /// A record, as `moorline up --record DIR` writes them
    file: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let replayed = moorline_builtins::replayers().replay_file(&arguments.file)?;
    say(replayed.to_string().trim_end())?;
    if !replayed.is_same() {
        bail!("the same snapshot gives another plan now");
    }
    Ok(())
}
