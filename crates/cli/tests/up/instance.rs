//! An instance to test on.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
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
    /// What `moorline` is run with.
    program: Vec<OsString>,
    /// The control group that the test made for it, if it did.
    group: Option<String>,
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
            program: vec![env!("CARGO_BIN_EXE_moorline").into()],
            group: None,
            temporary,
        };
        instance.import_an_image();
        Some(instance)
    }

    /// The same for somebody who is not root.
    #[expect(clippy::print_stderr, reason = "a test that did not run has to say so")]
    pub(crate) fn of_plain_user() -> Option<Self> {
        let mut reason = moorline_fixtures::why_no_containers();
        if Command::new("newuidmap").output().is_err() {
            reason = reason.or(Some("newuidmap is missing (apt-get install uidmap)"));
        }
        if let Some(reason) = reason {
            eprintln!("SKIPPED: {reason}");
            return None;
        }
        let temporary = tempfile::tempdir().unwrap();
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // Where others can read it, wherever it was built.
        let moorline = temporary.path().join("moorline");
        fs::copy(env!("CARGO_BIN_EXE_moorline"), &moorline).unwrap();
        let ids = temporary.path().join("ids");
        fs::write(&ids, "nobody:1000000:65536\n").unwrap();
        let home = temporary.path().join("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(65_534), Some(65_534)).unwrap();
        let group = format!("moorline-test-{}", std::process::id());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/up/as-plain-user");
        let instance = Self {
            directory: home.join("instance"),
            kubectl: find_kubectl(),
            program: vec![
                "unshare".into(),
                "--mount".into(),
                script.into(),
                ids.into(),
                group.clone().into(),
                moorline.into(),
            ],
            group: Some(group),
            temporary,
        };
        instance.import_an_image();
        Some(instance)
    }

    fn import_an_image(&self) {
        let archive = moorline_fixtures::busybox_archive(self.temporary.path());
        self.ok(&["image", "import", archive.to_str().unwrap()]);
    }

    pub(crate) fn moorline(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program[0]);
        command
            .args(&self.program[1..])
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

    /// Where the control group that the test made is, if it is there: in a hierarchy of its own or beside others.
    pub(crate) fn groups(&self) -> Vec<PathBuf> {
        let group = self.group.iter();
        let places = group
            .flat_map(|group| ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(|root| Path::new(root).join(group)));
        places.filter(|place| place.exists()).collect()
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
        for group in self.groups() {
            let _ = fs::remove_dir(group);
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
