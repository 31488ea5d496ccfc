//! Signals as a program expects them.

// Rust has no safe way to set what a signal does; `reset` says why this one is.
#![allow(unsafe_code)]

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};

/// Makes signals do what they do by default, and arrive. What is ignored or blocked is inherited, from whoever started
/// moorline by its shims and from those by containers: one that was started with `nohup`, or in the background of a
/// script, would run containers that no interrupt ends.
pub(super) fn reset() {
    // A broken pipe is an error to us; whoever starts a container's process makes it end that one.
    let others =
        Signal::iterator().filter(|other| !matches!(other, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGPIPE));
    for other in others {
        // SAFETY: the default is no code of ours, so nothing can run at a moment that it is not fit for.
        let _ = unsafe { signal(other, SigHandler::SigDfl) };
    }
    let _ = SigSet::empty().thread_set_mask();
}
