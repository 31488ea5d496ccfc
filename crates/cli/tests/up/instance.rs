//! An instance to test on.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::Value;

/// Longer than anything here takes, on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// An instance of its own, which is gone when the test ends, however it ends.
pub(crate) struct Instance {
    pub(crate) directory: PathBuf,
    kubectl: PathBuf,
    pub(crate) temporary: tempfile::TempDir,
}

impl Instance {
    #[expect(clippy::print_stderr, reason = "a test that did not run has to say so")]
    pub(crate) fn new() -> Option<Self> {
        if let Some(reason) = moorline_fixtures::why_no_containers() {
            eprintln!("SKIPPED: {reason}");
            return None;
        }
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("instance");
        let instance = Self {
            directory,
            kubectl: find_kubectl(),
            temporary,
        };
        let archive = moorline_fixtures::busybox_archive(instance.temporary.path());
        instance.ok(&["image", "import", archive.to_str().unwrap()]);
        Some(instance)
    }

    pub(crate) fn moorline(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_moorline"));
        command
            .args(arguments)
            .arg("--data-dir")
            .arg(&self.directory)
            .output()
            .unwrap()
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        said(&format!("{arguments:?}"), &self.moorline(arguments))
    }

    pub(crate) fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .env("KUBECONFIG", self.directory.join("kubeconfig"))
            .args(arguments);
        command
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl_command(arguments).output().unwrap()
    }

    pub(crate) fn kubectl_ok(&self, arguments: &[&str]) -> String {
        said(&format!("kubectl {arguments:?}"), &self.kubectl(arguments))
    }

    pub(crate) fn get(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["get", "-o", "json"];
        all.extend(arguments);
        serde_json::from_str(&self.kubectl_ok(&all)).unwrap()
    }

    pub(crate) fn process(&self) -> i32 {
        fs::read_to_string(self.directory.join("lock"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.directory.exists() {
            self.moorline(&["down", "--purge"]);
        }
    }
}

pub(crate) fn said(what: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what} failed: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

pub(crate) fn find_kubectl() -> PathBuf {
    if let Some(named) = std::env::var_os("KUBECTL") {
        return named.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubectl");
    said("scripts/kubectl", &Command::new(script).output().unwrap())
        .trim()
        .into()
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "never came about: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
