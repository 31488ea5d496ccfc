//! Tests over the workspace itself; see `tests/`.
