//! A server in a temporary directory, and kubectl run against it.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc, LazyLock, Mutex, Weak,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// How long anything may take before a test calls it stuck. Far more than needed, because test machines are busy.
const PATIENCE: Duration = Duration::from_mins(1);

/// A namespace of its own on the shared server: what one test works in.
pub(crate) struct Namespace {
    pub(crate) name: String,
    server: Arc<Server>,
}

impl Namespace {
    /// A namespace that no other test has, with its default service account.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // The process id keeps runs apart that share one reference cluster.
        let name = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let server = Server::shared();
        server.ok(&format!("create namespace {name}"));
        Self { name, server }
    }

    /// What kubectl prints for a command in this namespace, which must exit 0.
    pub(crate) fn ok(&self, command: &str) -> String {
        self.server.ok(&format!("-n {} {command}", self.name))
    }

    /// As [`Namespace::ok`], with `input` as the command's standard input.
    pub(crate) fn ok_with(&self, command: &str, input: &str) -> String {
        self.server
            .run(&format!("-n {} {command}", self.name), input)
            .succeeded()
    }

    /// What kubectl complains for a command in this namespace, which must not exit 0.
    pub(crate) fn fails(&self, command: &str) -> String {
        self.fails_with(command, "")
    }

    /// As [`Namespace::fails`], with `input` as the command's standard input.
    pub(crate) fn fails_with(&self, command: &str, input: &str) -> String {
        self.server.run(&format!("-n {} {command}", self.name), input).failed()
    }

    /// Runs a command in this namespace, whatever comes of it.
    pub(crate) fn run(&self, command: &str, input: &str) -> Outcome {
        self.server.run(&format!("-n {} {command}", self.name), input)
    }

    /// The path of a file with this text, apart from the files of other tests.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.server.directory.path().join(format!("{}.{name}", self.name));
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// The path of a directory that holds one file with this text.
    pub(crate) fn directory(&self, file: &str, text: &str) -> String {
        let path = self.server.directory.path().join(&self.name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join(file), text).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// What `kubectl edit` prints when `editor` is the command that edits the file.
    pub(crate) fn edit(&self, editor: &str, object: &str) -> String {
        let edit = format!("-n {} edit {object}", self.name);
        let output = self.server.kubectl(&edit).env("KUBE_EDITOR", editor).output().unwrap();
        Outcome::of(&edit, output).succeeded()
    }

    /// Starts a command in this namespace that goes on by itself.
    pub(crate) fn start(&self, command: &str) -> Running {
        self.server.start_kubectl(&format!("-n {} {command}", self.name))
    }

    /// Runs a command again and again until `wanted` accepts how it ended.
    pub(crate) fn eventually(&self, command: &str, wanted: impl Fn(&Outcome) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let outcome = self.run(command, "");
            if wanted(&outcome) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "did not come to pass: kubectl {}: {outcome:?}",
                outcome.command
            );
        }
    }
}

/// A server process, and the directory that it and its kubectl keep everything in. Killed when dropped.
pub(crate) struct Server {
    process: Option<Child>,
    kubeconfig: PathBuf,
    directory: Arc<tempfile::TempDir>,
}

/// Where a server of the tests keeps its objects.
#[derive(Clone, Copy)]
pub(crate) enum Storage {
    /// Gone when it stops.
    Memory,
    /// In its directory, from which another server can start again.
    Disk,
}

impl Server {
    /// The server that most tests share. It lives as long as a test has it.
    fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        // A test that fails while a server starts leaves nothing half made behind.
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(match env::var_os("REFERENCE_KUBECONFIG") {
                Some(kubeconfig) => Self {
                    process: None,
                    kubeconfig: kubeconfig.into(),
                    directory: Arc::new(tempfile::tempdir().unwrap()),
                },
                None => Self::start(Storage::Memory),
            });
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Starts a server on a free port and waits until its kubeconfig is there.
    pub(crate) fn start(storage: Storage) -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().unwrap()), storage)
    }

    fn start_in(directory: Arc<tempfile::TempDir>, storage: Storage) -> Self {
        let kubeconfig = directory.path().join("kubeconfig");
        let process = serve(directory.path(), storage)
            .arg("--write-kubeconfig")
            .arg(&kubeconfig)
            .spawn()
            .expect("the server starts");
        let mut server = Self {
            process: Some(process),
            kubeconfig,
            directory,
        };
        let deadline = Instant::now() + PATIENCE;
        while !server.kubeconfig.exists() {
            let ended = server.process.as_mut().and_then(|process| process.try_wait().unwrap());
            assert!(ended.is_none(), "the server ended before it served: {ended:?}");
            assert!(Instant::now() < deadline, "the server wrote no kubeconfig");
            thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Asks the server to stop, and says how it ended.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the server was not stopped before");
        signal("TERM", process.id());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = process.try_wait().unwrap() {
                return status;
            }
            if Instant::now() >= deadline {
                process.kill().unwrap();
                panic!("the server did not stop when told to");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the server, and starts another one on what it kept.
    pub(crate) fn restarted(mut self) -> Self {
        assert_eq!(self.terminate().code(), Some(0));
        fs::remove_file(&self.kubeconfig).unwrap();
        Self::start_in(Arc::clone(&self.directory), Storage::Disk)
    }

    /// How a second server on this one's directory ends.
    pub(crate) fn second_on_the_same_directory(&self) -> Output {
        serve(self.directory.path(), Storage::Disk).output().unwrap()
    }

    /// What kubectl prints for a command, which must exit 0.
    pub(crate) fn ok(&self, command: &str) -> String {
        self.run(command, "").succeeded()
    }

    /// Runs kubectl to its end.
    pub(crate) fn run(&self, command: &str, input: &str) -> Outcome {
        let mut child = self
            .kubectl(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        // A command that reads no input may end before it is written.
        let _ = child
            .stdin
            .take()
            .expect("the pipe that was asked for")
            .write_all(input.as_bytes());
        let process = child.id();
        let (ended, end) = mpsc::channel();
        thread::spawn(move || ended.send(child.wait_with_output()));
        let Ok(output) = end.recv_timeout(PATIENCE) else {
            signal("KILL", process);
            panic!("kubectl {command}: still running after {PATIENCE:?}");
        };
        Outcome::of(command, output.unwrap())
    }

    /// Starts a kubectl that goes on by itself.
    pub(crate) fn start_kubectl(&self, command: &str) -> Running {
        let mut child = self
            .kubectl(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let output = BufReader::new(child.stdout.take().expect("the pipe that was asked for"));
        let (said, lines) = mpsc::channel();
        thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| said.send(line))
        });
        Running { child, lines }
    }

    fn kubectl(&self, command: &str) -> Command {
        static KUBECTL: LazyLock<PathBuf> = LazyLock::new(find_kubectl);
        let home = self.directory.path();
        let mut kubectl = Command::new(&*KUBECTL);
        kubectl
            .args(words(command))
            .env("HOME", home)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", home.join("cache"))
            .current_dir(home);
        kubectl
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// How a kubectl ended, and what it said.
#[derive(Debug)]
pub(crate) struct Outcome {
    command: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    fn of(command: &str, output: Output) -> Self {
        Self {
            command: command.to_owned(),
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(crate) fn succeeded(self) -> String {
        assert_eq!(
            self.code,
            Some(0),
            "kubectl {}\n{}{}",
            self.command,
            self.stdout,
            self.stderr
        );
        self.stdout
    }

    pub(crate) fn failed(self) -> String {
        assert_ne!(
            self.code,
            Some(0),
            "kubectl {}\n{}{}",
            self.command,
            self.stdout,
            self.stderr
        );
        self.stderr
    }
}

/// A kubectl that goes on by itself, such as `get --watch`. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    /// Reads on until a line has `text` in it, and returns that line.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(reason) => panic!("no line with {text:?}: {reason}"),
            }
        }
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "kubectl did not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(directory: &Path, storage: Storage) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moorline"));
    command
        .args(["apiserver", "--listen", "127.0.0.1:0"])
        .stdin(Stdio::null());
    match storage {
        Storage::Memory => command.arg("--ephemeral"),
        Storage::Disk => command.arg("--data-dir").arg(directory.join("data")),
    };
    command
}

/// The words of a command line: apart at spaces, together within single quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in command.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().expect("never empty").push(other),
        }
    }
    words
}

fn find_kubectl() -> PathBuf {
    if let Some(named) = env::var_os("KUBECTL") {
        return named.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kubectl");
    let found = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
    assert!(found.status.success(), "there is no kubectl");
    String::from_utf8(found.stdout).unwrap().trim().into()
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill")
        .args(["-s", name, &process.to_string()])
        .status()
        .unwrap();
    assert!(sent.success(), "{name} was not sent to {process}");
}
