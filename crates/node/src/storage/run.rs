//! Acting on what was decided about claims and volumes, and making the claims that pods bring along.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{
    CLASS, PROVISIONER,
    decide::{self, ClaimStep, Remains, World, volume_name},
};
use crate::{
    events::{Recorder, Severity},
    key::Key,
    mirror::Mirror,
};

/// What it reads.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) pods: Arc<Mirror<Pod>>,
    pub(crate) nodes: Arc<Mirror<Node>>,
    pub(crate) claims: Arc<Mirror<PersistentVolumeClaim>>,
    pub(crate) volumes: Arc<Mirror<PersistentVolume>>,
    pub(crate) classes: Arc<Mirror<StorageClass>>,
}

/// After a failure, and even if nothing seems to have changed.
const AGAIN: Duration = Duration::from_secs(15);

/// Makes the default storage class unless it is there.
pub(crate) async fn ensure_class(client: &Client) -> kube::Result<()> {
    let api: Api<StorageClass> = Api::all(client.clone());
    let class = serde_json::from_value(json!({
        "metadata": {
            "name": CLASS,
            "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    }));
    let class: StorageClass = class.map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &class).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes volumes and destroys them until it is dropped. Volumes are directories below `directory`.
pub(crate) async fn run(client: Client, sources: Sources, directory: PathBuf, recorder: Recorder) {
    sources.claims.synced().await;
    sources.volumes.synced().await;
    sources.classes.synced().await;
    sources.pods.synced().await;
    let mut changes = (
        sources.claims.subscribe(),
        sources.volumes.subscribe(),
        sources.classes.subscribe(),
        sources.pods.subscribe(),
    );
    let keeper = Keeper {
        client,
        sources,
        directory,
        recorder: recorder.on_behalf_of("persistentvolume-controller", None),
    };
    loop {
        keeper.look().await;
        tokio::select! {
            change = changes.0.recv() => if change.is_none() { return },
            change = changes.1.recv() => if change.is_none() { return },
            change = changes.2.recv() => if change.is_none() { return },
            change = changes.3.recv() => if change.is_none() { return },
            () = tokio::time::sleep(AGAIN) => {}
        }
        while changes.0.try_recv().is_ok()
            || changes.1.try_recv().is_ok()
            || changes.2.try_recv().is_ok()
            || changes.3.try_recv().is_ok()
        {}
    }
}

struct Keeper {
    client: Client,
    sources: Sources,
    directory: PathBuf,
    recorder: Recorder,
}

impl Keeper {
    async fn look(&self) {
        let by_name = |volume: &Arc<PersistentVolume>| (Key::of(&**volume).name, (**volume).clone());
        let volumes: BTreeMap<_, _> = self.sources.volumes.all().iter().map(by_name).collect();
        let classes: BTreeMap<_, _> = self
            .sources
            .classes
            .all()
            .iter()
            .map(|class| (Key::of(&**class).name, (**class).clone()))
            .collect();
        let claims = self.sources.claims.all();
        let pods = self.sources.pods.all();
        if claims.is_empty() && volumes.is_empty() && !pods.iter().any(|pod| wants_claims(pod)) {
            return;
        }
        self.make_ephemeral(&pods).await;
        let world = World {
            volumes: &volumes,
            classes: &classes,
        };
        for claim in &claims {
            if let Some(step) = decide::claim(&world, claim)
                && let Err(error) = self.claim(claim, step, &world).await
            {
                tracing::debug!(claim = %Key::of(&**claim), %error, "a step for a claim did not succeed");
            }
        }
        for (name, volume) in &volumes {
            let holder = volume
                .spec
                .as_ref()
                .and_then(|spec| spec.claim_ref.as_ref())
                .and_then(|reference| {
                    let key = Key::new(reference.namespace.clone()?, reference.name.clone()?);
                    self.sources.claims.get(&key)
                });
            if let Some(remains) = decide::remains(volume, holder.as_deref())
                && let Err(error) = self.destroy(name, volume, remains).await
            {
                tracing::debug!(volume = name, %error, "a volume could not be destroyed");
            }
        }
    }

    /// Claims for the ephemeral volumes of pods, owned by them.
    async fn make_ephemeral(&self, pods: &[Arc<Pod>]) {
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            let key = Key::of(&**pod);
            for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
                let template = volume
                    .ephemeral
                    .as_ref()
                    .and_then(|source| source.volume_claim_template.as_ref());
                let Some(template) = template else { continue };
                let name = format!("{}-{}", key.name, volume.name);
                if self.sources.claims.get(&Key::new(&key.namespace, &name)).is_some() {
                    continue;
                }
                let mut claim = PersistentVolumeClaim {
                    metadata: template.metadata.clone().unwrap_or_default(),
                    spec: Some(template.spec.clone()),
                    status: None,
                };
                claim.metadata.name = Some(name);
                claim.metadata.namespace = Some(key.namespace.clone());
                claim.metadata.owner_references =
                    kube::Resource::controller_owner_ref(&**pod, &()).map(|owner| vec![owner]);
                let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
                if let Err(error) = api.create(&PostParams::default(), &claim).await
                    && !matches!(&error, kube::Error::Api(status) if status.is_already_exists())
                {
                    let message = format!("PVC creation failed: {error}");
                    self.recorder.tell(&**pod, Severity::Warning, "FailedBinding", message);
                }
            }
        }
    }

    async fn claim(&self, claim: &PersistentVolumeClaim, step: ClaimStep, world: &World<'_>) -> kube::Result<()> {
        match step {
            ClaimStep::Provision { class, node } => self.provision(claim, &class, node, world).await,
            ClaimStep::Grow(volume) => self.grow(claim, &volume, world).await,
        }
    }

    /// Says that there is more room: a directory has as much as its disk.
    async fn grow(&self, claim: &PersistentVolumeClaim, volume: &str, world: &World<'_>) -> kube::Result<()> {
        let key = Key::of(claim);
        let params = PatchParams::default();
        let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let size = requests
            .and_then(|resources| resources.requests.as_ref())
            .and_then(|map| map.get("storage"));
        let seen = world.volumes.get(volume).map(|volume| &volume.metadata);
        let patch = json!({
            "metadata": seen.map(|seen| json!({ "uid": seen.uid, "resourceVersion": seen.resource_version })),
            "spec": { "capacity": { "storage": size } },
        });
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.patch(volume, &params, &Patch::Merge(patch)).await?;
        let patch = json!({
            "metadata": { "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version },
            "status": { "capacity": { "storage": size }, "conditions": null },
        });
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        api.patch_status(&key.name, &params, &Patch::Merge(patch)).await?;
        let message = "MountVolume.NodeExpandVolume succeeded";
        self.recorder
            .tell(claim, Severity::Normal, "FileSystemResizeSuccessful", message);
        Ok(())
    }

    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &str,
        node: Option<String>,
        world: &World<'_>,
    ) -> kube::Result<()> {
        let recorder = self.recorder.on_behalf_of(PROVISIONER, None);
        let failed = |message: String| recorder.tell(claim, Severity::Warning, "ProvisioningFailed", message);
        let spec = claim.spec.clone().unwrap_or_default();
        if spec.volume_mode.as_deref() == Some("Block") {
            failed("volumes of this machine are directories: volumeMode must be Filesystem".to_owned());
            return Ok(());
        }
        let node = match node {
            Some(node) => Some(node),
            // Without a choice any node does; all are on this machine, and the first keeps it simple to find.
            None => self.sources.nodes.all().iter().map(|node| Key::of(&**node).name).min(),
        };
        let name = volume_name(claim);
        let path = self.directory.join(&name);
        let made = tokio::task::spawn_blocking({
            let path = path.clone();
            move || make_directory(&path)
        });
        if let Err(error) = made.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            failed(format!("failed to make the directory of volume {name}: {error}"));
            return Ok(());
        }
        let definition = world.classes.get(class);
        let policy = definition
            .and_then(|class| class.reclaim_policy.clone())
            .unwrap_or_else(|| "Delete".to_owned());
        let affinity = node.as_ref().map(|node| {
            json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
            ] }] } })
        });
        let volume = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "annotations": { "pv.kubernetes.io/provisioned-by": PROVISIONER },
            },
            "spec": {
                "capacity": spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()),
                "accessModes": spec.access_modes,
                "persistentVolumeReclaimPolicy": policy,
                "storageClassName": class,
                "volumeMode": "Filesystem",
                "mountOptions": definition.and_then(|class| class.mount_options.as_ref()),
                "local": { "path": path },
                "nodeAffinity": affinity,
                "claimRef": reference(claim),
            },
        }));
        let volume: PersistentVolume = volume.map_err(kube::Error::SerdeError)?;
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), &volume).await {
            Ok(_) => {
                let message = format!("Successfully provisioned volume {name}");
                recorder.tell(claim, Severity::Normal, "ProvisioningSucceeded", message);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn destroy(&self, name: &str, volume: &PersistentVolume, remains: Remains) -> kube::Result<()> {
        let path = match remains {
            Remains::Made => self.directory.join(name),
            Remains::OfMachine(path) => path,
        };
        let gone = tokio::task::spawn_blocking(move || remove_directory(&path)).await;
        if let Err(error) = gone.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            let message = format!("failed to delete the directory of volume {name}: {error}");
            self.recorder
                .tell(volume, Severity::Warning, "VolumeFailedDelete", message);
            return Ok(());
        }
        let this = DeleteParams {
            preconditions: Some(Preconditions {
                uid: volume.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        api.delete(name, &this).await?;
        Ok(())
    }
}

fn reference(claim: &PersistentVolumeClaim) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid,
    })
}

fn make_directory(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
}

fn remove_directory(path: &std::path::Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn wants_claims(pod: &Pod) -> bool {
    pod.spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .any(|volume| volume.ephemeral.is_some())
}
