//! A shim by itself: for processes that cannot be their own, such as the harness of a test.

use std::process::ExitCode;

fn main() -> ExitCode {
    moorline_container::shim::run_if_asked().unwrap_or(ExitCode::FAILURE)
}
