//! Images from a registry.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use moorline_image::{Credentials, Error, Event, ImageStore, Origin, Progress, PullPolicy, Reference, Result};
use serde_json::json;

use crate::{archives::*, registry::Registry};

/// The bcrypt hash of `hunter2`, as a registry keeps it.
const HUNTER2: &str = "$2y$05$AYQZosATRIFdlMupl6W7weTVtz0c9ttmOzQ7hG5E6IdRc0A8X/qUG";

async fn ensure(store: &ImageStore, name: &str, policy: PullPolicy) -> Result<moorline_image::Image> {
    let reference: Reference = name.parse().unwrap();
    store
        .ensure(&reference, policy, &Credentials::none(), Progress::none())
        .await
}

/// An image in the registry under a tag; returns its digest.
async fn publish(registry: &Registry, repository: &str, tag: &str, layers: &[Vec<u8>], label: &str) -> String {
    let mut files = Files::new();
    let descriptor = add_image(&mut files, layers, gzip, label);
    let digest = descriptor["digest"].as_str().unwrap().to_owned();
    registry.push(repository, &files, &[(&digest, tag)]).await;
    digest
}

#[tokio::test]
async fn an_image_is_pulled_once_and_then_here() {
    let Some(registry) = Registry::start(None) else { return };
    let layers = [layer(&[("tool", "v1")]), layer(&[("more", "v2")])];
    let digest = publish(&registry, "team/app", "1", &layers, "app").await;
    let name = format!("{}/team/app:1", registry.address);
    let place = Place::new();
    let store = place.store().await;
    let downloads = Arc::new(AtomicUsize::new(0));
    let counter = downloads.clone();
    let progress = Progress::new(move |event| {
        if matches!(event, Event::Unpacking { .. }) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let reference: Reference = name.parse().unwrap();
    let none = Credentials::none();
    let asks = (0..8).map(|_| store.ensure(&reference, PullPolicy::IfNotPresent, &none, progress.clone()));
    for image in futures_util::future::join_all(asks).await {
        let image = image.unwrap();
        assert_eq!(image.digest.to_string(), digest);
        assert_eq!(image.origin, Origin::Registry);
    }
    assert_eq!(downloads.load(Ordering::SeqCst), 2);
    let image = store.get(&name).await.unwrap();
    assert_eq!(fs::read_to_string(image.layers[1].join("tool")).unwrap(), "v1");
    drop(registry);
    ensure(&store, &name, PullPolicy::IfNotPresent).await.unwrap();
    let error = ensure(&store, &name, PullPolicy::Always).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn always_gets_what_the_tag_means_now_and_only_the_layers_that_are_new() {
    let Some(registry) = Registry::start(None) else { return };
    let base = layer(&[("base", "1")]);
    let name = format!("{}/app:latest", registry.address);
    publish(
        &registry,
        "app",
        "latest",
        &[base.clone(), layer(&[("tool", "v1")])],
        "one",
    )
    .await;
    let place = Place::new();
    let store = place.store().await;
    let first = ensure(&store, &name, PullPolicy::Always).await.unwrap();
    publish(&registry, "app", "latest", &[base, layer(&[("tool", "v2")])], "two").await;
    let kept = ensure(&store, &name, PullPolicy::IfNotPresent).await.unwrap();
    assert_eq!(kept.id, first.id);
    let present = Arc::new(AtomicUsize::new(0));
    let counter = present.clone();
    let progress = Progress::new(move |event| {
        if matches!(event, Event::Present { .. }) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let reference: Reference = name.parse().unwrap();
    let second = store
        .ensure(&reference, PullPolicy::Always, &Credentials::none(), progress)
        .await
        .unwrap();
    assert_ne!(second.id, first.id);
    assert_eq!(second.layers[1], first.layers[1]);
    assert_eq!(present.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn of_an_index_the_manifest_for_this_machine_is_pulled() {
    let Some(registry) = Registry::start(None) else { return };
    let mut files = Files::new();
    let mut other = add_image(&mut files, &[layer(&[("tool", "other")])], gzip, "other");
    other["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let mut own = add_image(&mut files, &[layer(&[("tool", "own")])], zstd, "own");
    own["platform"] = json!({"os": "linux", "architecture": here()});
    let media_type = "application/vnd.oci.image.index.v1+json";
    let index = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": [other.clone(), own.clone()]});
    let (digest, _) = add_blob(&mut files, serde_json::to_vec(&index).unwrap());
    let only_other = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": [other.clone()]});
    let (only_other, _) = add_blob(&mut files, serde_json::to_vec(&only_other).unwrap());
    let (other, own) = (other["digest"].as_str().unwrap(), own["digest"].as_str().unwrap());
    let manifests = [(other, other), (own, own), (&*digest, "1"), (&*only_other, "foreign")];
    registry.push("multi", &files, &manifests).await;
    let place = Place::new();
    let store = place.store().await;
    let name = format!("{}/multi", registry.address);
    let image = ensure(&store, &format!("{name}:1"), PullPolicy::IfNotPresent)
        .await
        .unwrap();
    assert_eq!(image.config.labels["label"], "own");
    assert_eq!(image.repo_digests[0].to_string(), format!("{name}@{digest}"));
    ensure(&store, &format!("{name}@{digest}"), PullPolicy::Never)
        .await
        .unwrap();
    ensure(&store, &format!("{name}@{own}"), PullPolicy::Never)
        .await
        .unwrap();
    let error = ensure(&store, &format!("{name}:foreign"), PullPolicy::IfNotPresent)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("s390x"), "{error}");
}

#[tokio::test]
async fn an_image_that_does_not_exist_is_told_from_a_registry_that_does_not() {
    let Some(registry) = Registry::start(None) else { return };
    publish(&registry, "app", "1", &[layer(&[("tool", "v1")])], "app").await;
    let place = Place::new();
    let store = place.store().await;
    for missing in ["app:2", "other:1", &format!("app@sha256:{}", "0".repeat(64))] {
        let name = format!("{}/{missing}", registry.address);
        let error = ensure(&store, &name, PullPolicy::IfNotPresent).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{missing}: {error}");
    }
    let error = ensure(&store, "127.0.0.1:1/app:1", PullPolicy::IfNotPresent)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_registry_that_wants_a_login_gets_the_one_for_it() {
    let Some(registry) = Registry::start(Some(HUNTER2)) else {
        return;
    };
    publish(&registry, "app", "1", &[layer(&[("tool", "v1")])], "app").await;
    let reference: Reference = format!("{}/app:1", registry.address).parse().unwrap();
    let place = Place::new();
    let store = place.store().await;
    let policy = PullPolicy::IfNotPresent;
    let wrong = Credentials::basic(&registry.address, "somebody", "wrong");
    for credentials in [Credentials::none(), wrong.clone()] {
        let error = store
            .ensure(&reference, policy, &credentials, Progress::none())
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    // c29tZWJvZHk6aHVudGVyMg== is somebody:hunter2.
    let config = format!(
        r#"{{"auths":{{"{}":{{"auth":"c29tZWJvZHk6aHVudGVyMg=="}}}}}}"#,
        registry.address
    );
    let mut credentials = Credentials::from_docker_config(config.as_bytes()).unwrap();
    credentials.merge(wrong);
    let ensured = store.ensure(&reference, policy, &credentials, Progress::none()).await;
    ensured.unwrap();
}

#[tokio::test]
async fn a_blob_that_the_registry_spoiled_is_refused_and_nothing_remains() {
    let Some(registry) = Registry::start(None) else { return };
    let content = layer(&[("tool", "v1")]);
    publish(&registry, "app", "1", std::slice::from_ref(&content), "app").await;
    let hex = moorline_image::Digest::of(&gzip(&content)).hex();
    let blobs = registry.directory.path().join("data/docker/registry/v2/blobs/sha256");
    let path = blobs.join(&hex[..2]).join(&hex).join("data");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&path, bytes).unwrap();
    let place = Place::new();
    let store = place.store().await;
    let name = format!("{}/app:1", registry.address);
    let error = ensure(&store, &name, PullPolicy::IfNotPresent).await.unwrap_err();
    assert!(
        matches!(error, Error::DigestMismatch { .. } | Error::Registry { .. }),
        "{error}"
    );
    assert!(store.list().await.unwrap().is_empty());
    assert_eq!(store.disk_usage().await.unwrap().layers, 0);
}
