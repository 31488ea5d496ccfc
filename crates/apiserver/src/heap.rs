//! Giving back memory that was needed for a moment.

// The C library offers this to C alone; `give_back` says why calling it is sound.
#![allow(unsafe_code)]

/// Gives the pages that nothing lies on any more back to the machine. Otherwise they are kept for the next time, which
/// after something large and rare never comes.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes a number and no pointer, touches only what is free, and locks what it touches, so that any
        // thread may call it at any time.
        unsafe { libc::malloc_trim(0) };
    }
}
