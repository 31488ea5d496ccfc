//! What a machine is to be.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Taint;
use moorline_network as net;

use super::Error;
use crate::{pressure::PressureConfig, simulated::SimulatedConfig};

/// What a machine is to be.
#[derive(Clone)]
pub struct MachineConfig {
    /// Everything is kept below this directory.
    pub directory: PathBuf,
    /// Where secrets are shown to pods; it must lie in memory. Without one, a directory of this instance below `/run`.
    pub private: Option<PathBuf>,
    /// Tells this machine's cgroups, links and tables from those of other instances.
    pub instance: String,
    /// The control group that those of pods are made in.
    pub cgroup_parent: PathBuf,
    /// The nodes that run containers.
    pub nodes: Vec<NodeConfig>,
    /// Nodes that only seem to.
    pub simulated: Option<SimulatedConfig>,
    /// The addresses of pods and services; chosen free when none are given. Services get theirs from the API, which
    /// must know the same range.
    pub ranges: Option<net::Ranges>,
    /// Whether pods reach the world outside the machine, and are reached from it.
    pub outside: net::Outside,
    /// The domain of service names.
    pub domain: String,
    /// Where images lie, if not below `directory`.
    pub images: Option<PathBuf>,
    /// What can be built, and in which order images are looked for.
    pub image_options: moorline_image::Options,
    /// The executable that shims are made of, if not this one.
    pub shim: Option<PathBuf>,
    /// When the machine is short of memory or disk, so that pods have to end.
    pub pressure: PressureConfig,
}

/// What a node is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// Its labels beside those that every node has.
    pub labels: BTreeMap<String, String>,
    /// The zone it says to be in.
    pub zone: Option<String>,
    /// Taints that it begins with.
    pub taints: Vec<Taint>,
}

impl NodeConfig {
    /// A node without labels of its own.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            labels: BTreeMap::new(),
            zone: None,
            taints: Vec::new(),
        }
    }
}

impl MachineConfig {
    /// A machine with one node, of the name `node-1`, that keeps to itself.
    pub fn new(directory: impl Into<PathBuf>, instance: impl Into<String>) -> Self {
        Self {
            directory: directory.into(),
            private: None,
            instance: instance.into(),
            cgroup_parent: PathBuf::from("/"),
            nodes: vec![NodeConfig::new("node-1")],
            simulated: None,
            ranges: None,
            outside: net::Outside::Closed,
            domain: "cluster.local".to_owned(),
            images: None,
            image_options: moorline_image::Options::default(),
            shim: None,
            pressure: PressureConfig::default(),
        }
    }

    pub(super) fn images(&self) -> PathBuf {
        self.images.clone().unwrap_or_else(|| self.directory.join("images"))
    }

    pub(super) fn private(&self) -> PathBuf {
        self.private
            .clone()
            .unwrap_or_else(|| Path::new("/run").join(format!("moorline-{}", self.instance)))
    }

    pub(super) fn containers(&self) -> moorline_container::Config {
        moorline_container::Config {
            cgroup_parent: self.cgroup_parent.clone(),
            program: self.shim.clone(),
            ..moorline_container::Config::new(self.directory.join("containers"), &self.instance)
        }
    }

    pub(super) fn instance_name(&self) -> Result<net::InstanceName, Error> {
        net::InstanceName::new(self.instance.clone()).map_err(|source| Error::Network {
            attempted: "use the instance's name".to_owned(),
            source: source.into(),
        })
    }
}
