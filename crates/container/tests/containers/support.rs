//! A root file system of one static busybox, and a runtime that is purged at the end.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use moorline_container::{
    Config, ContainerId, ContainerSpec, ExecSpec, Exit, LogOptions, LogSpec, Network, PodId, PodSpec, Runtime, State,
};
use tokio::io::AsyncReadExt;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The places where Debian and others put a busybox that needs no libraries.
const BUSYBOXES: [&str; 3] = ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox-static"];

/// Why the tests of real containers cannot run here, if they cannot.
pub(crate) fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("they need root");
    }
    if busybox().is_none() {
        return Some("they need a static busybox: apt-get install busybox-static");
    }
    None
}

/// Says so and leaves the test when it cannot run here.
macro_rules! needs_containers {
    () => {
        if let Some(reason) = crate::support::missing() {
            eprintln!(
                "SKIPPED {}: {reason}",
                std::thread::current().name().unwrap_or("a test")
            );
            return;
        }
    };
}
pub(crate) use needs_containers;

fn busybox() -> Option<&'static str> {
    let is_static = |path: &&str| {
        // A dynamic executable names its interpreter near its beginning.
        fs::read(path).is_ok_and(|bytes| !bytes[..bytes.len().min(4096)].windows(8).any(|w| w == b"/ld-linu"))
    };
    BUSYBOXES
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .find(is_static)
}

/// A runtime in a directory of its own. Purge it at the end; a test that fails is purged when it is dropped.
pub(crate) struct Bench {
    pub(crate) runtime: Option<Runtime>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) instance: String,
}

impl Bench {
    pub(crate) async fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer");
        for directory in ["bin", "etc", "tmp", "proc", "dev", "sys"] {
            fs::create_dir_all(layer.join(directory)).unwrap();
        }
        fs::copy(busybox().unwrap(), layer.join("bin/busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", layer.join("bin").join(applet)).unwrap();
        }
        fs::write(
            layer.join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
        )
        .unwrap();
        fs::set_permissions(layer.join("tmp"), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        let instance = format!("test-{name}-{}", std::process::id());
        let runtime = Some(Self::open(dir.path(), &instance).await.unwrap());
        Self { runtime, dir, instance }
    }

    pub(crate) async fn open(dir: &Path, instance: &str) -> moorline_container::Result<Runtime> {
        Runtime::open(Self::config(dir, instance)).await
    }

    pub(crate) fn config(dir: &Path, instance: &str) -> Config {
        let mut config = Config::new(dir.join("run"), instance);
        config.program = Some(PathBuf::from(env!("CARGO_BIN_EXE_moorline-shim")));
        config
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    /// A pod without a network.
    pub(crate) async fn pod(&self, name: &str) -> PodId {
        let id: PodId = name.parse().unwrap();
        self.runtime()
            .create_pod(PodSpec::new(id.clone(), Network::Isolated))
            .await
            .unwrap();
        id
    }

    /// A container that runs a script.
    pub(crate) fn script(&self, name: &str, script: &str) -> ContainerSpec {
        script_in(self.dir.path(), name, script)
    }

    pub(crate) async fn start(&self, pod: &PodId, spec: ContainerSpec) -> ContainerId {
        let id = spec.id.clone();
        self.runtime().create_container(pod, spec).await.unwrap();
        self.runtime().start(pod, &id).await.unwrap();
        id
    }

    pub(crate) async fn exit(&self, pod: &PodId, container: &ContainerId) -> Exit {
        match self.runtime().wait(pod, container, PATIENCE).await.unwrap() {
            State::Exited(exit) => exit,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn log(&self, pod: &PodId, container: &ContainerId) -> String {
        self.log_with(pod, container, LogOptions::default()).await
    }

    pub(crate) async fn log_with(&self, pod: &PodId, container: &ContainerId, options: LogOptions) -> String {
        let mut reader = self.runtime().logs(pod, container, options).await.unwrap();
        let mut text = Vec::new();
        while let Some(entry) = reader.next().await.unwrap() {
            text.extend(entry.text);
        }
        String::from_utf8(text).unwrap()
    }

    /// Runs a script to its end and returns its log.
    pub(crate) async fn output_of(&self, pod: &PodId, spec: ContainerSpec) -> String {
        let id = self.start(pod, spec).await;
        let exit = self.exit(pod, &id).await;
        let log = self.log(pod, &id).await;
        assert_eq!(exit.code, 0, "{log}");
        log
    }

    /// Runs a command in a container and returns its exit code and output.
    pub(crate) async fn run(&self, pod: &PodId, container: &ContainerId, args: &[&str]) -> (i32, String) {
        let spec = ExecSpec::new(args.iter().map(|arg| (*arg).to_owned()).collect());
        let mut session = self.runtime().exec(pod, container, spec).await.unwrap();
        let mut text = String::new();
        session
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut text)
            .await
            .unwrap();
        session
            .stderr
            .as_mut()
            .unwrap()
            .read_to_string(&mut text)
            .await
            .unwrap();
        (session.wait().await.unwrap().code, text)
    }

    /// Waits until a container has written `text` to its log.
    pub(crate) async fn has_said(&self, pod: &PodId, container: &ContainerId, text: &str) {
        let options = LogOptions {
            follow: true,
            ..LogOptions::default()
        };
        let mut reader = self.runtime().logs(pod, container, options).await.unwrap();
        let said = async {
            while let Some(entry) = reader.next().await.unwrap() {
                if String::from_utf8_lossy(&entry.text).contains(text) {
                    return;
                }
            }
            panic!("the container ended without saying {text}");
        };
        tokio::time::timeout(PATIENCE, said).await.unwrap();
    }

    pub(crate) async fn purge(mut self) {
        let runtime = self.runtime.take().unwrap();
        runtime.purge().await.unwrap();
        nothing_left_behind(&self.instance, self.dir.path()).await;
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let runner = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    let _ = runner.block_on(runtime.purge());
                });
            });
        }
    }
}

pub(crate) fn script_in(dir: &Path, name: &str, script: &str) -> ContainerSpec {
    let args = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let mut spec = ContainerSpec::new(name.parse().unwrap(), vec![dir.join("layer")], args);
    spec.log = Some(LogSpec::new(dir.join("logs").join(format!("{name}.log"))));
    spec
}

/// Waits until nothing of an instance is there. A container of another test that starts meanwhile carries a copy
/// of every mount of the host until it has entered its own root, so one look may be too early.
pub(crate) async fn nothing_left_behind(instance: &str, dir: &Path) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let found = left_behind(instance, dir);
        if found.is_empty() {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "still there: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Cgroups, processes, mounts and sockets of an instance that are still there.
pub(crate) fn left_behind(instance: &str, dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for root in fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
    {
        for path in [
            root.join(format!("moorline-{instance}")),
            root.with_file_name(format!("moorline-{instance}")),
        ] {
            if path.exists() {
                found.push(format!("cgroup {}", path.display()));
            }
        }
    }
    let dir_text = dir.to_str().unwrap();
    for process in fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
        let read = |file: &str| -> io::Result<String> {
            Ok(String::from_utf8_lossy(&fs::read(process.join(file))?).into_owned())
        };
        let own = process.file_name().unwrap().to_str() == Some(&std::process::id().to_string());
        if !own && read("cmdline").is_ok_and(|line| line.contains(dir_text)) {
            found.push(format!("process {}", process.display()));
        }
        if !own && read("mountinfo").is_ok_and(|table| table.contains(dir_text)) {
            found.push(format!("mount in {}", process.display()));
        }
    }
    if let Ok(pods) = fs::read_dir(dir.join("run/pods")) {
        found.extend(pods.flatten().map(|entry| format!("pod {}", entry.path().display())));
    }
    found
}

const APPLETS: [&str; 36] = [
    "sh", "cat", "echo", "sleep", "ls", "id", "env", "hostname", "touch", "mkdir", "rm", "true", "false", "kill", "ps",
    "grep", "tty", "stty", "mount", "dd", "wc", "head", "tail", "pwd", "stat", "ln", "readlink", "yes", "seq", "cut",
    "mknod", "tr", "ipcs", "sysctl", "cp", "test",
];
