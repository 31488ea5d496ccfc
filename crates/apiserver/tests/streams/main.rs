//! Into running pods, as clients go: the real kubectl and the `kube` client against a server whose pods are processes
//! of this machine.
//!
//! `$KUBECTL` names the kubectl to use, else `scripts/kubectl` finds or installs one. The expectations hold for every
//! kubectl from 1.32 on.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "every function here belongs to a test")]

mod harness;
mod kube_client;
mod local_pods;
mod logs;
mod permissions;
mod ports;
mod processes;
mod proxies;
mod usage;
