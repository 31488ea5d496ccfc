//! What stands behind services, what may be disrupted, and which volume is whose.

mod world;

use k8s_openapi::api::core::v1::{Endpoints, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually, template};

async fn pod(world: &World, name: &str) {
    let mut pod = template("web", "a:1");
    pod["metadata"]["name"] = name.into();
    world.create::<Pod>(pod).await;
}

fn service() -> Value {
    json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" },
        "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] } })
}

#[tokio::test]
async fn the_slices_of_a_service_follow_the_pods_that_it_selects() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Service>(service()).await;
    eventually("a slice without endpoints", || async {
        let slices = world.list::<EndpointSlice>().await.into_iter();
        let mut slices =
            slices.filter(|slice| slice.labels().get("kubernetes.io/service-name").map(String::as_str) == Some("web"));
        slices
            .next()
            .filter(|slice| slice.endpoints.as_ref().is_none_or(Vec::is_empty))
            .map(|_| ())
    })
    .await;
    pod(&world, "a").await;
    let slice = eventually("an endpoint", || async {
        let slices = world.list::<EndpointSlice>().await.into_iter();
        let mut slices =
            slices.filter(|slice| slice.labels().get("kubernetes.io/service-name").map(String::as_str) == Some("web"));
        slices.find(|slice| {
            slice
                .endpoints
                .iter()
                .flatten()
                .any(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true))
        })
    })
    .await;
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(8080));
    let endpoints: Endpoints = world.get("web").await.unwrap();
    let subset = &endpoints.subsets.unwrap()[0];
    assert_eq!(subset.addresses.as_ref().unwrap()[0].ip, "10.0.0.7");
    world.make_unready("a").await;
    eventually("the endpoint is not ready", || async {
        let endpoints: Endpoints = world.get("web").await?;
        let subset = endpoints.subsets?.into_iter().next()?;
        (subset.addresses.is_none() && subset.not_ready_addresses.is_some()).then_some(())
    })
    .await;
    world.api::<Pod>().delete("a", &DeleteParams::default()).await.unwrap();
    eventually("no endpoint", || async {
        let endpoints: Endpoints = world.get("web").await?;
        endpoints.subsets.is_none_or(|subsets| subsets.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn endpoints_written_by_hand_are_mirrored_and_forgotten_with_them() {
    let world = World::new(Pods::Wait).await;
    let mut by_hand = service();
    by_hand["spec"].as_object_mut().unwrap().remove("selector");
    world.create::<Service>(by_hand).await;
    world
        .create::<Endpoints>(json!({ "metadata": { "name": "web" }, "subsets": [
        { "addresses": [{ "ip": "10.1.2.3" }], "ports": [{ "name": "http", "port": 80 }] }] }))
        .await;
    eventually("the mirror", || async {
        world.list::<EndpointSlice>().await.into_iter().find(|slice| {
            slice
                .endpoints
                .iter()
                .flatten()
                .any(|endpoint| endpoint.addresses == ["10.1.2.3"])
        })
    })
    .await;
    world
        .api::<Endpoints>()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    eventually("nothing is left of it", || async {
        let left = world
            .list::<EndpointSlice>()
            .await
            .into_iter()
            .filter(|slice| slice.name_any() != "kubernetes");
        (left.count() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_claim_gets_the_smallest_volume_that_fits_and_gives_it_back_when_it_goes() {
    let world = World::new(Pods::Wait).await;
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    for (name, size) in [("large", "10Gi"), ("fitting", "2Gi"), ("small", "1Gi")] {
        let volume = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": {
            "capacity": { "storage": size }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/tmp/none" },
            "persistentVolumeReclaimPolicy": "Retain" } }))
        .unwrap();
        volumes.create(&PostParams::default(), &volume).await.unwrap();
    }
    world
        .create::<PersistentVolumeClaim>(
            json!({ "metadata": { "name": "data" }, "spec": { "storageClassName": "",
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "2Gi" } } } }),
        )
        .await;
    let claim = eventually("the claim is bound", || async {
        let claim: PersistentVolumeClaim = world.get("data").await?;
        (claim.status.as_ref()?.phase.as_deref() == Some("Bound")).then_some(claim)
    })
    .await;
    assert_eq!(claim.spec.unwrap().volume_name.as_deref(), Some("fitting"));
    let phase = |wanted: &'static str| {
        let volumes = volumes.clone();
        async move {
            let volume = volumes.get("fitting").await.ok()?;
            (volume.status?.phase.as_deref() == Some(wanted)).then_some(())
        }
    };
    eventually("the volume is bound", || phase("Bound")).await;
    world
        .api::<PersistentVolumeClaim>()
        .delete("data", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the volume is released", || phase("Released")).await;
}
