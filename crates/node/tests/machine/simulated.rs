//! Nodes that only seem to run pods.
