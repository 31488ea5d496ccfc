//! Terminals.

use std::os::fd::AsFd;

use rustix::termios::{Winsize, tcsetwinsize};

use crate::{
    WindowSize,
    error::{Attempt, Result},
};

/// Tells the processes on a terminal how big it is.
pub(crate) fn set_window(terminal: impl AsFd, size: WindowSize) -> Result<()> {
    let size = Winsize {
        ws_col: size.columns,
        ws_row: size.rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).attempt(|| format!("resize a terminal to {} by {}", size.ws_col, size.ws_row))
}
