//! Binding of claims to volumes: each claim gets one volume, each volume one claim.
//!
//! ```text
//!   claim ──► a volume that names it, or the smallest that fits ──► volume.claimRef ──► volume is Bound
//!         │                                                               claim is Bound ◄── claim.volumeName
//!         └─► none fits: the default class, if it has none; or whoever provisions its class is told by annotation
//! ```
//!
//! The volume is written first: of two claims that want one volume, one loses that write and looks again. It is also told
//! to be bound first, for one that is not can be deleted at any moment.

mod claim;
mod class;
mod fit;
mod reclaim;
mod volume;

pub(crate) use self::{claim::Claims, volume::Volumes};

pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(crate) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(crate) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(crate) const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
