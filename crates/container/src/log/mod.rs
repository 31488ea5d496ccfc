//! Output of containers, in files of the format that the Container Runtime Interface prescribes:
//!
//! ```text
//!   2016-10-06T00:17:09.669794202Z stdout F a whole line
//!   2016-10-06T00:17:10.113242941Z stderr P a piece of a line that goes on in the next entry of its stream
//! ```

mod reader;
mod writer;

use std::{ffi::OsString, path::Path, path::PathBuf};

use serde::{Deserialize, Serialize};

pub use reader::{Entry, LogOptions, LogReader};
pub(crate) use writer::LogWriter;

/// Which stream something was written to. A terminal has only the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl LogStream {
    /// As it stands in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The name of the part that was put aside `age` rotations ago.
fn rotated(path: &Path, age: u32) -> PathBuf {
    if age == 0 {
        return path.to_owned();
    }
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    PathBuf::from(name)
}
