//! Images from files, and back to files.

use std::fs;

use moorline_image::{ArchiveFormat, Error, Reference};
use serde_json::json;

use crate::archives::*;

#[tokio::test]
async fn an_image_is_found_by_every_form_of_its_name_and_says_how_to_run_it() {
    let place = Place::new();
    let layers = [
        layer(&[("tool", "v1"), ("etc/conf", "base")]),
        layer(&[("etc/conf", "top")]),
    ];
    write_tar(&place.path("a.tar"), &oci("docker.io/library/postgres:17", &layers));
    let store = place.store().await;
    let imported = store.import(&place.path("a.tar"), None).await.unwrap();
    assert_eq!(imported.len(), 1);
    for name in ["postgres:17", "docker.io/library/postgres:17", "library/postgres:17"] {
        assert_eq!(store.get(name).await.unwrap().id, imported[0].id);
    }
    let image = store.get(&imported[0].id.to_string()).await.unwrap();
    let by_digest = format!("postgres@{}", image.digest);
    assert_eq!(store.get(&by_digest).await.unwrap().id, image.id);
    assert_eq!(image.config.entrypoint, ["/tool"]);
    assert_eq!(image.config.cmd, ["serve"]);
    assert_eq!(image.config.user, "70:70");
    assert_eq!(image.config.volumes, ["/data"]);
    assert_eq!(image.config.stop_signal, "SIGINT");
    // The topmost first, as overlayfs wants them.
    let read = |index: usize| fs::read_to_string(image.layers[index].join("etc/conf")).unwrap();
    assert_eq!((read(0), read(1)), ("top".to_owned(), "base".to_owned()));
}

#[tokio::test]
async fn every_kind_of_archive_gives_the_same_image() {
    let place = Place::new();
    let layers = [layer(&[("tool", "v1")]), layer(&[("other", "v2")])];
    let oci_files = oci("a:1", &layers);
    write_directory(&place.path("directory"), &oci_files);
    write_tar(&place.path("oci.tar"), &oci_files);
    fs::write(place.path("oci.tar.gz"), gzip(&as_tar(&oci_files))).unwrap();
    fs::write(place.path("oci.tar.zst"), zstd(&as_tar(&oci_files))).unwrap();
    write_tar(&place.path("docker.tar"), &docker(&["a:1"], &layers));
    fs::write(place.path("docker.tar.gz"), gzip(&as_tar(&docker(&["a:1"], &layers)))).unwrap();
    let mut ids = Vec::new();
    for source in [
        "directory",
        "oci.tar",
        "oci.tar.gz",
        "oci.tar.zst",
        "docker.tar",
        "docker.tar.gz",
    ] {
        let store = place.store().await;
        let images = store.import(&place.path(source), None).await.unwrap();
        assert_eq!(images[0].layers.len(), 2, "{source}");
        ids.push(images[0].id);
        store.remove("a:1").await.unwrap();
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn layers_packed_with_zstd_are_unpacked() {
    let place = Place::new();
    let mut files = Files::new();
    let descriptor = add_image(&mut files, &[layer(&[("tool", "v1")])], zstd, "z");
    finish_oci(&mut files, &[named(descriptor, "z:1")]);
    write_tar(&place.path("z.tar"), &files);
    let store = place.store().await;
    store.import(&place.path("z.tar"), None).await.unwrap();
    let image = store.get("z:1").await.unwrap();
    assert_eq!(fs::read_to_string(image.layers[0].join("tool")).unwrap(), "v1");
}

#[tokio::test]
async fn several_tags_of_one_image_are_one_image() {
    let place = Place::new();
    write_tar(
        &place.path("a.tar"),
        &docker(&["a:1", "a:latest", "b:2"], &[layer(&[("tool", "v1")])]),
    );
    let store = place.store().await;
    let images = store.import(&place.path("a.tar"), None).await.unwrap();
    let names: Vec<String> = images[0].names.iter().map(Reference::familiar).collect();
    assert_eq!(names, ["a:1", "a:latest", "b:2"]);
    assert_eq!(store.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn of_an_index_the_image_for_this_machine_is_taken() {
    let place = Place::new();
    let mut files = Files::new();
    let mut other = add_image(&mut files, &[layer(&[("tool", "other")])], gzip, "other");
    other["platform"] = json!({"os": "linux", "architecture": "pdp11"});
    let mut own = add_image(&mut files, &[layer(&[("tool", "own")])], gzip, "own");
    own["platform"] = json!({"os": "linux", "architecture": here()});
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [other, own]});
    let (digest, size) = add_blob(&mut files, serde_json::to_vec(&index).unwrap());
    let entry = json!({"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": size});
    finish_oci(&mut files, &[named(entry, "multi:1")]);
    write_tar(&place.path("a.tar"), &files);
    let store = place.store().await;
    store.import(&place.path("a.tar"), None).await.unwrap();
    let image = store.get("multi:1").await.unwrap();
    assert_eq!(image.config.labels["label"], "own");
    // By the digest of the index too, which is the one that people pin.
    assert_eq!(store.get(&format!("multi@{digest}")).await.unwrap().id, image.id);
}

#[tokio::test]
async fn an_image_without_a_name_needs_one() {
    let place = Place::new();
    let mut files = Files::new();
    let descriptor = add_image(&mut files, &[layer(&[("tool", "v1")])], gzip, "x");
    finish_oci(&mut files, &[descriptor]);
    write_tar(&place.path("a.tar"), &files);
    let store = place.store().await;
    let error = store.import(&place.path("a.tar"), None).await.unwrap_err();
    assert!(error.to_string().contains("no name"), "{error}");
    let name = "given:1".parse().unwrap();
    store.import(&place.path("a.tar"), Some(name)).await.unwrap();
    store.get("given:1").await.unwrap();
}

#[tokio::test]
async fn content_that_is_not_what_its_digest_says_is_refused_and_nothing_remains() {
    let place = Place::new();
    let good = oci("a:1", &[layer(&[("tool", "v1")])]);
    let blobs: Vec<&String> = good.keys().filter(|name| name.starts_with("blobs/")).collect();
    assert_eq!(blobs.len(), 3);
    for blob in blobs {
        let mut files = good.clone();
        files.get_mut(blob).unwrap().push(b' ');
        write_tar(&place.path("a.tar"), &files);
        let store = place.store().await;
        let error = store.import(&place.path("a.tar"), None).await.unwrap_err();
        assert!(matches!(error, Error::DigestMismatch { .. }), "{blob}: {error}");
        assert!(store.list().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_layer_that_is_not_the_one_in_the_configuration_is_refused() {
    let place = Place::new();
    let mut files = docker(&["a:1"], &[layer(&[("tool", "v1")])]);
    files.insert("0/layer.tar".to_owned(), layer(&[("tool", "evil")]));
    write_tar(&place.path("a.tar"), &files);
    let store = place.store().await;
    let error = store.import(&place.path("a.tar"), None).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert!(store.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn archives_that_are_cut_off_or_altered_are_errors_and_leave_nothing() {
    let place = Place::new();
    let archives = [
        as_tar(&oci("a:1", &[layer(&[("tool", "v1")])])),
        gzip(&as_tar(&oci("a:1", &[layer(&[("tool", "v1")])]))),
        as_tar(&docker(&["a:1"], &[layer(&[("tool", "v1")])])),
    ];
    let store = place.store().await;
    let mut random = fastrand::Rng::with_seed(3);
    for archive in archives {
        for _ in 0..40 {
            let mut bytes = archive.clone();
            if random.bool() {
                bytes.truncate(random.usize(..bytes.len()));
            } else {
                for _ in 0..random.usize(1..20) {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
            fs::write(place.path("a.tar"), &bytes).unwrap();
            if store.import(&place.path("a.tar"), None).await.is_ok() {
                for image in store.list().await.unwrap() {
                    store.remove(&image.id.to_string()).await.unwrap();
                }
            }
        }
    }
    assert!(store.list().await.unwrap().is_empty());
    assert_eq!(store.collect_garbage().await.unwrap(), 0);
    let usage = store.disk_usage().await.unwrap();
    assert_eq!((usage.blobs, usage.layers), (0, 0));
}

#[tokio::test]
async fn what_is_no_archive_of_images_is_refused_in_words() {
    let place = Place::new();
    let store = place.store().await;
    fs::write(place.path("text"), "hello").unwrap();
    fs::create_dir(place.path("empty")).unwrap();
    write_tar(&place.path("other.tar"), &[("a".to_owned(), b"b".to_vec())].into());
    for name in ["text", "empty", "other.tar"] {
        let error = store.import(&place.path(name), None).await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{name}: {error}");
    }
    let error = store.import(&place.path("absent"), None).await.unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
}

#[tokio::test]
async fn what_is_exported_can_be_imported_with_all_its_names() {
    let place = Place::new();
    let base = layer(&[("base", "1")]);
    write_tar(
        &place.path("a.tar"),
        &docker(&["a:1", "a:2"], &[base.clone(), layer(&[("a", "1")])]),
    );
    write_tar(&place.path("b.tar"), &oci("b:1", &[base, layer(&[("b", "1")])]));
    let store = place.store().await;
    store.import(&place.path("a.tar"), None).await.unwrap();
    store.import(&place.path("b.tar"), None).await.unwrap();
    for format in [ArchiveFormat::Oci, ArchiveFormat::Docker] {
        let out = fs::File::create(place.path("out.tar")).unwrap();
        let names = ["a:1".to_owned(), "b:1".to_owned()];
        store.export(&names, format, out).await.unwrap();
        let other = Place::new();
        let copy = other.store().await;
        let images = copy.import(&place.path("out.tar"), None).await.unwrap();
        assert_eq!(images.len(), 2, "{format:?}");
        for name in ["a:1", "a:2", "b:1"] {
            let (ours, theirs) = (store.get(name).await.unwrap(), copy.get(name).await.unwrap());
            assert_eq!(ours.id, theirs.id, "{format:?} {name}");
            if format == ArchiveFormat::Oci {
                assert_eq!(ours.digest, theirs.digest);
            }
        }
    }
}
