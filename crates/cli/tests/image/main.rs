//! `moorline image` as a person runs it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn moorline(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_moorline"))
            .arg("image")
            .args(arguments)
            .arg("--data-dir")
            .arg(self.path("data"))
            .output()
            .unwrap()
    }

    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.moorline(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{complaint}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.moorline(arguments);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{complaint}");
        complaint
    }

    /// What `docker save` would write for an image with one file.
    fn archive(&self, name: &str) -> PathBuf {
        let script = r#"
            mkdir a && echo content > a/file && tar -C a -cf layer.tar file && cd .
            case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
            printf '{"architecture":"%s","os":"linux","config":{"Cmd":["/file"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
                "$arch" "$(sha256sum < layer.tar | cut -d' ' -f1)" > config.json
            printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$1" > manifest.json
            tar -cf archive.tar config.json manifest.json layer.tar"#;
        let made = Command::new("sh")
            .args(["-euc", script, "sh", name])
            .current_dir(self.directory.path())
            .status();
        assert!(made.unwrap().success());
        self.path("archive.tar")
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn an_image_is_imported_listed_exported_and_removed() {
    let place = Place::new();
    let archive = place.archive("demo:1");
    assert!(place.succeeds(&["import", text(&archive)]).starts_with("demo:1  "));
    let table = place.succeeds(&["list"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("NAME") && lines[1].starts_with("demo:1"),
        "{table}"
    );
    assert!(lines[1].ends_with("import"), "{table}");
    assert!(place.succeeds(&["list", "-o", "wide"]).contains("sha256:"));

    let json: Value = serde_json::from_str(&place.succeeds(&["list", "-o", "json"])).unwrap();
    assert_eq!(json[0]["names"][0], "docker.io/library/demo:1");
    assert_eq!(json[0]["config"]["Cmd"][0], "/file");
    assert!(
        place
            .succeeds(&["list", "-o", "yaml"])
            .contains("docker.io/library/demo:1")
    );

    for format in ["oci", "docker"] {
        let copy = place.path(&format!("{format}.tar"));
        place.succeeds(&["export", "demo:1", "-f", text(&copy), "--format", format]);
        let other = Place::new();
        other.succeeds(&["import", text(&copy)]);
        let there: Value = serde_json::from_str(&other.succeeds(&["list", "-o", "json"])).unwrap();
        assert_eq!(there[0]["id"], json[0]["id"], "{format}");
    }
    let removed = place.succeeds(&["remove", "docker.io/library/demo:1"]);
    assert!(
        removed.contains("removed demo:1") && removed.contains("freed"),
        "{removed}"
    );
    assert_eq!(place.succeeds(&["list"]).lines().count(), 1);
}

#[test]
fn what_fails_is_said_and_does_not_keep_the_rest_from_being_done() {
    let place = Place::new();
    let archive = place.archive("demo:1");
    let complaint = place.fails(&["import", "/nowhere.tar", text(&archive)], 1);
    assert!(complaint.contains("/nowhere.tar"), "{complaint}");
    assert!(place.succeeds(&["list"]).contains("demo:1"));
    let complaint = place.fails(&["remove", "absent:1"], 1);
    assert!(complaint.contains("there is no image absent:1"), "{complaint}");
    let complaint = place.fails(&["export", "absent:1", "-f", text(&place.path("x.tar"))], 1);
    assert!(complaint.contains("absent:1"), "{complaint}");
    assert!(!place.path("x.tar").exists() && !place.path("x.tar.part").exists());
    let complaint = place.fails(&["pull", "NOT/A/NAME"], 1);
    assert!(complaint.contains("not the name of an image"), "{complaint}");
    let complaint = place.fails(&["pull", "127.0.0.1:1/demo:1"], 1);
    assert!(complaint.contains("cannot reach registry 127.0.0.1:1"), "{complaint}");
    let complaint = place.fails(&["build", "absent"], 1);
    assert!(complaint.contains("postgres-17"), "{complaint}");
    place.fails(&["pull"], 2);
    place.fails(&["list", "-o", "xml"], 2);
}

#[test]
fn the_recipes_are_listed_without_a_store() {
    let place = Place::new();
    let table = place.succeeds(&["list", "--recipes"]);
    assert!(
        table.contains("postgres-17") && table.contains("valkey/valkey:8"),
        "{table}"
    );
    assert!(!place.path("data").exists());
    let json: Value = serde_json::from_str(&place.succeeds(&["list", "--recipes", "-o", "json"])).unwrap();
    assert!(json.as_array().unwrap().len() >= 3);
}
