//! What stays, what goes, and what a crash or another process may do meanwhile.

use std::{fs, path::Path};

use moorline_image::{Credentials, Error, Options, Origin, Progress, PullPolicy, Recipe, Reference};

use crate::archives::*;

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[tokio::test]
async fn images_share_the_layers_that_they_have_in_common() {
    let place = Place::new();
    let base = layer(&[("base", "1")]);
    let store = place.store().await;
    for name in ["a:1", "b:1", "c:1"] {
        write_tar(
            &place.path("x.tar"),
            &oci(name, &[base.clone(), layer(&[("own", name)])]),
        );
        store.import(&place.path("x.tar"), None).await.unwrap();
    }
    assert_eq!(count(&place.path("store/layers")), 4);
    let (a, b) = (store.get("a:1").await.unwrap(), store.get("b:1").await.unwrap());
    assert_eq!(a.layers[1], b.layers[1]);
    store.remove("a:1").await.unwrap();
    assert_eq!(count(&place.path("store/layers")), 3);
    assert!(b.layers.iter().all(|layer| layer.exists()));
    store.remove("b:1").await.unwrap();
    store.remove("c:1").await.unwrap();
    assert_eq!(count(&place.path("store/layers")), 0);
    assert_eq!(count(&place.path("store/blobs/sha256")), 0);
}

#[tokio::test]
async fn an_image_goes_with_its_last_name() {
    let place = Place::new();
    write_tar(
        &place.path("a.tar"),
        &docker(&["a:1", "a:2"], &[layer(&[("tool", "v1")])]),
    );
    let store = place.store().await;
    store.import(&place.path("a.tar"), None).await.unwrap();
    let removed = store.remove("a:1").await.unwrap();
    assert_eq!(removed.bytes, 0);
    assert!(matches!(store.get("a:1").await.unwrap_err(), Error::Absent { .. }));
    let image = store.get("a:2").await.unwrap();
    let removed = store.remove(&image.id.to_string()).await.unwrap();
    assert_eq!(removed.names.len(), 1);
    assert!(removed.bytes > 0 && !image.layers[0].exists());
    assert!(matches!(store.remove("a:2").await.unwrap_err(), Error::Absent { .. }));
}

#[tokio::test]
async fn a_name_that_moves_to_another_image_leaves_the_old_one_to_be_collected() {
    let place = Place::new();
    let store = place.store().await;
    for version in ["v1", "v2"] {
        write_tar(&place.path("a.tar"), &oci("a:1", &[layer(&[("tool", version)])]));
        store.import(&place.path("a.tar"), None).await.unwrap();
    }
    assert_eq!(store.list().await.unwrap().len(), 1);
    assert!(store.collect_garbage().await.unwrap() > 0);
    assert_eq!(count(&place.path("store/layers")), 1);
    let image = store.get("a:1").await.unwrap();
    assert_eq!(fs::read_to_string(image.layers[0].join("tool")).unwrap(), "v2");
}

#[tokio::test]
async fn what_is_pinned_stays_until_it_is_let_go_also_over_a_restart() {
    let place = Place::new();
    write_tar(&place.path("a.tar"), &oci("a:1", &[layer(&[("tool", "v1")])]));
    let store = place.store().await;
    let image = store.import(&place.path("a.tar"), None).await.unwrap().remove(0);
    store.pin(&image, "pod-1").await.unwrap();
    store.remove("a:1").await.unwrap();
    assert!(image.layers[0].join("tool").exists());
    drop(store);
    let store = place.store().await;
    assert!(image.layers[0].join("tool").exists());
    assert_eq!(store.pins().await.unwrap()["pod-1"], image.digest);
    store.unpin("pod-1").await.unwrap();
    store.unpin("pod-1").await.unwrap();
    store.collect_garbage().await.unwrap();
    assert!(!image.layers[0].exists());
    assert!(matches!(
        store.pin(&image, "pod-2").await.unwrap_err(),
        Error::Absent { .. }
    ));
}

#[tokio::test]
async fn holders_cannot_name_files_elsewhere() {
    let place = Place::new();
    write_tar(&place.path("a.tar"), &oci("a:1", &[layer(&[("tool", "v1")])]));
    let store = place.store().await;
    let image = store.import(&place.path("a.tar"), None).await.unwrap().remove(0);
    for holder in ["", "..", "../x", "a/b", ".hidden", "a\0b"] {
        assert!(store.pin(&image, holder).await.is_err(), "{holder:?}");
        assert!(store.unpin(holder).await.is_err(), "{holder:?}");
    }
}

#[tokio::test]
async fn what_a_crash_left_is_gone_after_the_next_opening() {
    let place = Place::new();
    write_tar(&place.path("a.tar"), &oci("a:1", &[layer(&[("tool", "v1")])]));
    let store = place.store().await;
    store.import(&place.path("a.tar"), None).await.unwrap();
    drop(store);
    // Half-made work of a process that is gone, and content that was placed but never named.
    fs::create_dir_all(place.path("store/work/123-dead/layer-0/tree")).unwrap();
    fs::write(place.path("store/work/123-dead/lock"), "").unwrap();
    fs::write(place.path("store/work/stray"), "").unwrap();
    fs::create_dir_all(place.path("store/layers/00112233445566778899aabbccddeeff/tree")).unwrap();
    fs::write(place.path("store/blobs/sha256").join("0".repeat(64)), "orphan").unwrap();
    let store = place.store().await;
    assert_eq!(count(&place.path("store/work")), 1);
    assert_eq!(count(&place.path("store/layers")), 1);
    assert_eq!(count(&place.path("store/blobs/sha256")), 3);
    store.get("a:1").await.unwrap();
}

#[tokio::test]
async fn the_work_of_a_process_that_still_runs_is_left_alone() {
    let place = Place::new();
    let first = place.store().await;
    assert_eq!(count(&place.path("store/work")), 1);
    let second = place.store().await;
    assert_eq!(count(&place.path("store/work")), 2);
    drop((first, second));
    assert_eq!(count(&place.path("store/work")), 0);
}

#[tokio::test]
async fn an_index_that_cannot_be_read_is_never_taken_for_an_empty_store() {
    let place = Place::new();
    write_tar(&place.path("a.tar"), &oci("a:1", &[layer(&[("tool", "v1")])]));
    let store = place.store().await;
    store.import(&place.path("a.tar"), None).await.unwrap();
    drop(store);
    fs::write(place.path("store/index.json"), "{").unwrap();
    let store = place.store().await;
    assert!(matches!(store.list().await.unwrap_err(), Error::Damaged { .. }));
    assert!(matches!(
        store.collect_garbage().await.unwrap_err(),
        Error::Damaged { .. }
    ));
    assert_eq!(count(&place.path("store/blobs/sha256")), 3);
}

#[tokio::test]
async fn a_document_that_was_altered_on_disk_is_noticed() {
    let place = Place::new();
    write_tar(&place.path("a.tar"), &oci("a:1", &[layer(&[("tool", "v1")])]));
    let store = place.store().await;
    let image = store.import(&place.path("a.tar"), None).await.unwrap().remove(0);
    let path = place.path("store/blobs/sha256").join(image.id.hex());
    fs::write(path, "{\"rootfs\":{\"type\":\"layers\"}}").unwrap();
    assert!(matches!(store.get("a:1").await.unwrap_err(), Error::Damaged { .. }));
    // Taking it in again heals it.
    store.import(&place.path("a.tar"), None).await.unwrap();
    store.get("a:1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_stores_on_one_directory_import_and_remove_at_once_without_losing_anything() {
    let place = Place::new();
    let base = layer(&[("base", "1")]);
    for number in 0..4 {
        let name = format!("image-{number}:1");
        let own = layer(&[("own", &name)]);
        write_tar(&place.path(&format!("{number}.tar")), &oci(&name, &[base.clone(), own]));
    }
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..4 {
        let store = place.store().await;
        let path = place.path(&format!("{number}.tar"));
        workers.spawn(async move {
            let name = format!("image-{number}:1");
            for _ in 0..5 {
                store.import(&path, None).await.unwrap();
                store.get(&name).await.unwrap();
                store.remove(&name).await.unwrap();
            }
            store.import(&path, None).await.unwrap();
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    let store = place.store().await;
    let images = store.list().await.unwrap();
    assert_eq!(images.len(), 4);
    assert!(
        images
            .iter()
            .all(|image| image.layers.iter().all(|layer| layer.exists()))
    );
    assert_eq!(count(&place.path("store/layers")), 5);
}

#[tokio::test]
async fn the_store_is_a_layout_that_can_itself_be_imported() {
    let place = Place::new();
    write_tar(&place.path("a.tar"), &docker(&["a:1"], &[layer(&[("tool", "v1")])]));
    let store = place.store().await;
    let image = store.import(&place.path("a.tar"), None).await.unwrap().remove(0);
    let other = Place::new();
    let copies = other.store().await.import(&place.path("store"), None).await.unwrap();
    assert_eq!(copies[0].digest, image.digest);
    assert_eq!(copies[0].names, image.names);
}

#[tokio::test]
async fn an_image_of_a_program_runs_with_nothing_but_what_is_in_it() {
    let place = Place::new();
    let store = place.store().await;
    let name: Reference = "localhost/true:1".parse().unwrap();
    let image = store
        .add_executable(Path::new("/bin/true"), name.clone())
        .await
        .unwrap();
    assert_eq!(image.origin, Origin::Executable);
    assert_eq!(image.config.entrypoint, ["/true"]);
    assert!(image.config.labels["moorline.libraries"].contains("libc.so"));
    let again = store.add_executable(Path::new("/bin/true"), name).await.unwrap();
    assert_eq!(again.digest, image.digest);
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can change its root directory to run the program");
        return;
    }
    let status = std::process::Command::new("chroot")
        .arg(&image.layers[0])
        .arg("/true")
        .status();
    assert!(status.unwrap().success());
}

#[tokio::test]
async fn what_was_imported_satisfies_every_policy_and_never_asks_a_registry() {
    let place = Place::new();
    // Nothing listens there, so asking would fail.
    let name = "localhost:1/a:1";
    write_tar(&place.path("a.tar"), &docker(&[name], &[layer(&[("tool", "v1")])]));
    let store = place.store().await;
    store.import(&place.path("a.tar"), None).await.unwrap();
    let reference: Reference = name.parse().unwrap();
    for policy in [PullPolicy::Always, PullPolicy::IfNotPresent, PullPolicy::Never] {
        let ensured = store
            .ensure(&reference, policy, &Credentials::none(), Progress::none())
            .await;
        ensured.unwrap();
    }
    let absent: Reference = "localhost:1/b:1".parse().unwrap();
    let error = store
        .ensure(&absent, PullPolicy::Never, &Credentials::none(), Progress::none())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NeverPull(_)), "{error}");
}

#[tokio::test]
async fn a_recipe_that_is_built_and_has_another_version_is_not_built_again_to_find_out() {
    let place = Place::new();
    let recipe = place.path("demo-17.yaml");
    fs::write(
        &recipe,
        "image: localhost:1/demo:17\nversion: {package: demo}\nsuite: trixie\npackages: [demo]\n",
    )
    .unwrap();
    let mut files = docker(&["localhost:1/demo:17"], &[layer(&[("tool", "v1")])]);
    let config = String::from_utf8(files["config.json"].clone()).unwrap();
    let config = config.replace(r#""label":"#, r#""moorline.version":"17.6-1+deb13u1","label":"#);
    files.insert("config.json".to_owned(), config.into_bytes());
    write_tar(&place.path("a.tar"), &files);
    drop(place.store().await.import(&place.path("a.tar"), None).await.unwrap());
    let index = place.path("store/index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace(r#""import""#, r#""recipe""#)).unwrap();

    let options = Options {
        recipes: Recipe::read_all(place.directory.path()).unwrap(),
        ..Options::default()
    };
    let store = moorline_image::ImageStore::open(place.path("store"), options)
        .await
        .unwrap();
    let wanted: Reference = "localhost:1/demo:17.5".parse().unwrap();
    let error = store
        .ensure(
            &wanted,
            PullPolicy::IfNotPresent,
            &Credentials::none(),
            Progress::none(),
        )
        .await
        .unwrap_err();
    let Error::NoWay { attempts, .. } = &error else {
        panic!("{error}")
    };
    assert!(matches!(attempts[0], Error::WrongVersion { .. }), "{error}");
    assert!(matches!(attempts[1], Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("17.6-1+deb13u1"), "{error}");
}
