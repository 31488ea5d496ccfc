//! What is followed in the API, once for all who need it.

use std::sync::Arc;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
    storage::v1::StorageClass,
};
use kube::{Api, Client, core::PartialObjectMeta, runtime::watcher};

use crate::{kubelet, lifecycle, mirror::Mirror, registration::LEASES, scheduler, service, storage};

pub(crate) struct Sources {
    pub(crate) pods: Arc<Mirror<Pod>>,
    pub(crate) nodes: Arc<Mirror<Node>>,
    pub(crate) services: Arc<Mirror<Service>>,
    slices: Arc<Mirror<EndpointSlice>>,
    namespaces: Arc<Mirror<Namespace>>,
    claims: Arc<Mirror<PersistentVolumeClaim>>,
    volumes: Arc<Mirror<PersistentVolume>>,
    classes: Arc<Mirror<StorageClass>>,
    budgets: Arc<Mirror<PodDisruptionBudget>>,
    leases: Arc<Mirror<Lease>>,
    config_maps: Arc<Mirror<PartialObjectMeta<ConfigMap>>>,
    secrets: Arc<Mirror<PartialObjectMeta<Secret>>>,
}

impl Sources {
    pub(crate) fn follow(client: &Client) -> Self {
        let config = watcher::Config::default();
        Self {
            pods: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            nodes: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            services: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            slices: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            namespaces: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            claims: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            volumes: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            classes: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            budgets: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            leases: Arc::new(Mirror::follow(Api::namespaced(client.clone(), LEASES), config.clone())),
            // Only that they changed: the pods concerned then read them.
            config_maps: Arc::new(Mirror::follow(Api::all(client.clone()), config.clone())),
            secrets: Arc::new(Mirror::follow(Api::all(client.clone()), config)),
        }
    }

    pub(crate) fn scheduler(&self) -> scheduler::Sources {
        scheduler::Sources {
            pods: self.pods.clone(),
            nodes: self.nodes.clone(),
            namespaces: self.namespaces.clone(),
            claims: self.claims.clone(),
            volumes: self.volumes.clone(),
            classes: self.classes.clone(),
            budgets: self.budgets.clone(),
        }
    }

    pub(crate) fn storage(&self) -> storage::Sources {
        storage::Sources {
            pods: self.pods.clone(),
            nodes: self.nodes.clone(),
            claims: self.claims.clone(),
            volumes: self.volumes.clone(),
            classes: self.classes.clone(),
        }
    }

    pub(crate) fn lifecycle(&self) -> lifecycle::Sources {
        lifecycle::Sources {
            pods: self.pods.clone(),
            nodes: self.nodes.clone(),
            leases: self.leases.clone(),
        }
    }

    pub(crate) fn service(&self) -> service::Sources {
        service::Sources {
            services: self.services.clone(),
            slices: self.slices.clone(),
        }
    }

    pub(crate) fn objects(&self) -> kubelet::Objects {
        kubelet::Objects {
            pods: self.pods.clone(),
            config_maps: self.config_maps.clone(),
            secrets: self.secrets.clone(),
        }
    }
}
