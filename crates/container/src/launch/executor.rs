//! The last step of a container's process: becoming the command.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    process::Command,
    rc::Rc,
};

use libcontainer::{
    oci_spec::runtime::Spec,
    workload::{self, ExecutorError, ExecutorValidationError, default::DefaultExecutor},
};

use super::read_all;
use crate::error::{Attempt, Error, Result};

/// Runs the command as a standard process: signals as they are by default, and failure told to the launcher.
#[derive(Clone)]
pub(super) struct Executor {
    failure: Rc<io::PipeWriter>,
}

/// What became of it.
pub(super) struct Outcome(io::PipeReader);

impl Executor {
    pub(super) fn new() -> Result<(Self, Outcome)> {
        let (reader, writer) = io::pipe().attempt(|| "make a pipe")?;
        let executor = Self {
            failure: Rc::new(writer),
        };
        Ok((executor, Outcome(reader)))
    }
}

impl Outcome {
    /// Waits until the command runs, which closes the pipe, or has failed to. The executor is dropped before.
    pub(super) fn wait(self) -> Result<()> {
        let failure = read_all(self.0).attempt(|| "hear whether the command runs")?;
        if failure.is_empty() {
            return Ok(());
        }
        Err(Error::Io {
            attempted: "run the command".to_owned(),
            source: io::Error::other(failure),
        })
    }
}

impl workload::Executor for Executor {
    fn exec(&self, spec: &Spec) -> std::result::Result<(), ExecutorError> {
        let args = spec.process().as_ref().and_then(|process| process.args().as_ref());
        let Some((command, args)) = args.and_then(|args| args.split_first()) else {
            return Err(ExecutorError::InvalidArg);
        };
        // The standard library unblocks signals and gives SIGPIPE its usual meaning back, which it took away from
        // this process when it began.
        let error = Command::new(command).args(args).exec();
        let _ = write!(&*self.failure, "{command}: {error}");
        Err(ExecutorError::Other(format!("{command}: {error}")))
    }

    fn validate(&self, spec: &Spec) -> std::result::Result<(), ExecutorValidationError> {
        DefaultExecutor {}.validate(spec)
    }
}
