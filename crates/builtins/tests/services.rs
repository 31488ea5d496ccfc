//! What stands behind services.

mod world;

use k8s_openapi::api::core::v1::{Endpoints, Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use world::{Pods, World, eventually, template};

async fn pod(world: &World, name: &str) {
    let mut pod = template("web", "a:1");
    pod["metadata"]["name"] = name.into();
    world.create::<Pod>(pod).await;
}

async fn slices(world: &World) -> Vec<EndpointSlice> {
    let slices = world.list::<EndpointSlice>().await.into_iter();
    slices
        .filter(|slice| slice.labels().get("kubernetes.io/service-name").map(String::as_str) == Some("web"))
        .collect()
}

fn endpoints_of(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

fn ports_of(slice: &EndpointSlice) -> Vec<i32> {
    slice.ports.iter().flatten().filter_map(|port| port.port).collect()
}

/// Waits until there is one slice, and it is like this.
async fn one_slice(world: &World, what: &str, is_so: impl Fn(&EndpointSlice) -> bool) -> EndpointSlice {
    eventually(what, || async {
        let mut slices = slices(world).await;
        (slices.len() == 1 && is_so(&slices[0])).then(|| slices.remove(0))
    })
    .await
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
async fn a_pod_that_ends_is_told_of_in_slices_only() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Service>(service()).await;
    let mut lasting = template("web", "a:1");
    lasting["metadata"]["name"] = "a".into();
    lasting["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create::<Pod>(lasting).await;
    one_slice(&world, "an endpoint", |slice| endpoints_of(slice).len() == 1).await;
    world.api::<Pod>().delete("a", &DeleteParams::default()).await.unwrap();
    one_slice(&world, "an endpoint that ends", |slice| {
        let mut endpoints = endpoints_of(slice).iter();
        endpoints.any(|endpoint| endpoint.conditions.as_ref().and_then(|all| all.terminating) == Some(true))
    })
    .await;
    eventually("no address at all", || async {
        let endpoints: Endpoints = world.get("web").await?;
        endpoints.subsets.is_none_or(|subsets| subsets.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn endpoints_go_with_their_service_whoever_wrote_them() {
    let world = World::new(Pods::Wait).await;
    let mut by_hand = service();
    by_hand["spec"].as_object_mut().unwrap().remove("selector");
    world.create::<Service>(by_hand).await;
    world
        .create::<Endpoints>(json!({ "metadata": { "name": "web" }, "subsets": [
            { "addresses": [{ "ip": "10.1.2.3" }], "ports": [{ "port": 80 }] }] }))
        .await;
    let services = world.api::<Service>();
    let only_asked = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    services.delete("web", &only_asked).await.unwrap();
    assert!(world.get::<Endpoints>("web").await.is_some());
    services.delete("web", &DeleteParams::default()).await.unwrap();
    assert!(world.get::<Endpoints>("web").await.is_none());

    world.create::<Service>(service()).await;
    let endpoints = eventually("endpoints", || world.get::<Endpoints>("web")).await;
    assert_eq!(endpoints.metadata.owner_references, None);
    services.delete("web", &DeleteParams::orphan()).await.unwrap();
    eventually("no endpoints", || async {
        let left = world.get::<Endpoints>("web").await;
        left.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_service_that_prefers_what_is_near_says_so_in_its_slices() {
    let world = World::new(Pods::BecomeReady).await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = json!({ "metadata": { "name": "n", "labels": { "topology.kubernetes.io/zone": "west" } } });
    let node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let mut placed = template("web", "a:1");
    placed["metadata"]["name"] = "a".into();
    placed["spec"]["nodeName"] = "n".into();
    world.create::<Pod>(placed).await;
    let mut near = service();
    near["spec"]["trafficDistribution"] = "PreferSameNode".into();
    world.create::<Service>(near).await;
    let hints = |slice: &EndpointSlice| serde_json::to_value(&endpoints_of(slice).first()?.hints).ok();
    let both = json!({ "forNodes": [{ "name": "n" }], "forZones": [{ "name": "west" }] });
    one_slice(&world, "hints of zone and node", |slice| {
        hints(slice).as_ref() == Some(&both)
    })
    .await;
    let close = json!({ "spec": { "trafficDistribution": "PreferClose" } });
    world.patch::<Service>("web", close).await;
    let zone = json!({ "forZones": [{ "name": "west" }] });
    one_slice(&world, "hints of the zone", |slice| {
        hints(slice).as_ref() == Some(&zone)
    })
    .await;
    world.make_unready("a").await;
    one_slice(&world, "no hints for what is not ready", |slice| {
        hints(slice) == Some(Value::Null)
    })
    .await;
}

#[tokio::test]
async fn a_slice_is_changed_and_not_replaced_when_pods_come_and_go_and_ports_change() {
    let world = World::new(Pods::BecomeReady).await;
    world.create::<Service>(service()).await;
    let first = one_slice(&world, "a slice", |slice| endpoints_of(slice).is_empty()).await;
    let made = first.metadata.creation_timestamp.clone();
    let told = "endpoints.kubernetes.io/last-change-trigger-time";
    let since: k8s_openapi::jiff::Timestamp = first.annotations()[told].parse().unwrap();
    assert!(
        since <= made.unwrap().0,
        "nothing has changed since the service was made"
    );
    pod(&world, "a").await;
    let second = one_slice(&world, "an endpoint", |slice| endpoints_of(slice).len() == 1).await;
    assert_eq!(ports_of(&second), [8080]);
    let moved = json!({ "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 9090 }] } });
    world.patch::<Service>("web", moved).await;
    let third = one_slice(&world, "another port", |slice| ports_of(slice) == [9090]).await;
    world.api::<Pod>().delete("a", &DeleteParams::default()).await.unwrap();
    let fourth = one_slice(&world, "no endpoint", |slice| endpoints_of(slice).is_empty()).await;
    assert_eq!(fourth.annotations().get(told), None, "no pod that is there has changed");
    for later in [second, third, fourth] {
        assert_eq!(later.metadata.uid, first.metadata.uid);
    }
}

#[tokio::test]
async fn slices_that_another_service_of_the_name_left_behind_are_removed() {
    let world = World::new(Pods::BecomeReady).await;
    let labels = json!({ "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io" });
    world
        .create::<EndpointSlice>(json!({ "metadata": { "name": "stale", "labels": labels },
            "addressType": "IPv4", "endpoints": [{ "addresses": ["10.9.9.9"] }], "ports": [] }))
        .await;
    world.create::<Service>(service()).await;
    one_slice(&world, "the service's own slice alone", |slice| {
        slice.name_any() != "stale"
    })
    .await;
}

#[tokio::test]
async fn mirrored_slices_are_told_apart_by_family_and_ports() {
    let world = World::new(Pods::Wait).await;
    let mut by_hand = service();
    by_hand["spec"].as_object_mut().unwrap().remove("selector");
    world.create::<Service>(by_hand).await;
    let subset = |port: i32, last: i32| {
        json!({ "addresses": [{ "ip": format!("10.1.2.{last}") }, { "ip": format!("fd00::{last}") }],
            "ports": [{ "name": format!("p{port}"), "port": port }] })
    };
    let written = json!({ "metadata": { "name": "web", "annotations": { "note": "kept",
            "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z" } },
        "subsets": [subset(80, 1), subset(81, 2)] });
    world.create::<Endpoints>(written).await;
    let seen = |slices: &[EndpointSlice]| {
        let mut seen: Vec<_> = slices
            .iter()
            .map(|slice| {
                let address = endpoints_of(slice)[0].addresses[0].clone();
                (ports_of(slice), address, slice.metadata.uid.clone())
            })
            .collect();
        seen.sort();
        seen
    };
    let mirrored = |wanted: [&'static str; 4]| {
        let world = &world;
        async move {
            eventually("all four slices", || async {
                let slices = slices(world).await;
                let seen = seen(&slices);
                let addresses: Vec<&str> = seen.iter().map(|(_, address, _)| address.as_str()).collect();
                (addresses == wanted).then_some((seen, slices))
            })
            .await
        }
    };
    let (before, slices) = mirrored(["10.1.2.1", "fd00::1", "10.1.2.2", "fd00::2"]).await;
    for slice in &slices {
        let annotations: Vec<_> = slice.annotations().keys().collect();
        assert_eq!(annotations, ["note"]);
    }
    let changed = json!({ "subsets": [subset(81, 3), subset(80, 1)] });
    world.patch::<Endpoints>("web", changed).await;
    let (after, _) = mirrored(["10.1.2.1", "fd00::1", "10.1.2.3", "fd00::3"]).await;
    let uids =
        |seen: &[(Vec<i32>, String, Option<String>)]| seen.iter().map(|(.., uid)| uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&before), uids(&after));
}

#[tokio::test]
async fn no_more_addresses_are_mirrored_than_fit_and_that_is_told() {
    let world = World::new(Pods::Wait).await;
    let mut by_hand = service();
    by_hand["spec"].as_object_mut().unwrap().remove("selector");
    world.create::<Service>(by_hand).await;
    let addresses: Vec<Value> = (0..1001)
        .map(|number| json!({ "ip": format!("10.1.{}.{}", number / 250, number % 250 + 1) }))
        .collect();
    world
        .create::<Endpoints>(json!({ "metadata": { "name": "web" }, "subsets": [
            { "addresses": addresses, "ports": [{ "port": 80 }] }] }))
        .await;
    one_slice(&world, "a full slice", |slice| endpoints_of(slice).len() == 1000).await;
    let events = world.api::<Event>();
    eventually("that one is missing is told", || async {
        let mut events = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        events.find(|event| {
            event.reason.as_deref() == Some("TooManyAddressesToMirror")
                && event
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains("1 addresses were skipped"))
        })
    })
    .await;
}
