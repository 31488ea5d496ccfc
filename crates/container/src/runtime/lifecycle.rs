//! Making, adopting and removing.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::OwnedFd,
        unix::{fs::DirBuilderExt, net::UnixListener},
    },
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use tokio::sync::broadcast;

use super::{
    Config, Container, Pod, Runtime, Shared,
    client::{ask, socket_path},
    invalid, unexpected,
};
use crate::{
    ContainerSpec, Missing, PodId, PodSpec,
    cgroup::Hierarchies,
    error::{Attempt, Error, Result, chain},
    host::missing,
    mounts::unmount_below,
    shim,
    state::{PodDir, read_json, write_json},
    wire::{Reply, Request},
};

/// How many events one who listens may be behind.
const EVENTS: usize = 4096;

pub(super) async fn open(config: Config) -> Result<Runtime> {
    if config.instance.parse::<PodId>().is_err() {
        return Err(invalid(
            "instance",
            "it has letters, digits, dots, dashes and underscores only",
        ));
    }
    let (shared, pods) = blocking(move || {
        let fatal: Vec<_> = missing().into_iter().filter(Missing::is_fatal).collect();
        if !fatal.is_empty() {
            return Err(Error::Machine(fatal));
        }
        let pods_dir = config.dir.join("pods");
        private_directory()
            .recursive(true)
            .create(&pods_dir)
            .attempt(|| format!("make {}", pods_dir.display()))?;
        let lock_path = config.dir.join("lock");
        let lock = File::create(&lock_path).attempt(|| format!("open {}", lock_path.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| Error::InUse(config.dir.clone()))?;
        let cgroup = config.cgroup_parent.join(format!("moorline-{}", config.instance));
        let pods = load(&pods_dir, &cgroup)?;
        let shared = Shared {
            hierarchies: Hierarchies::find()?,
            cgroup,
            pods: Mutex::new(BTreeMap::new()),
            events: broadcast::Sender::new(EVENTS),
            _lock: lock,
            config,
        };
        Ok((shared, pods))
    })
    .await?;
    let runtime = Runtime {
        shared: Arc::new(shared),
    };
    let mut adoptions = Vec::new();
    for (pod, standing) in pods {
        let (runtime, pod) = (runtime.clone(), Arc::new(pod));
        runtime.pods().insert(pod.spec.id.clone(), pod.clone());
        // At once: one that does not answer must not keep the others waiting.
        adoptions.push(tokio::spawn(async move { runtime.adopt(pod, standing).await }));
    }
    for adoption in adoptions {
        adoption.await.map_err(io::Error::other).attempt(|| "take over a pod")?;
    }
    Ok(runtime)
}

enum Standing {
    Alive,
    Dead,
}

/// Reads what is on disk. A directory without a specification is a pod whose maker died before it was one.
fn load(pods_dir: &Path, cgroup: &Path) -> Result<Vec<(Pod, Standing)>> {
    let mut pods = Vec::new();
    let entries = fs::read_dir(pods_dir).attempt(|| format!("list {}", pods_dir.display()))?;
    for entry in entries.flatten() {
        let dir = PodDir::new(entry.path());
        let Some(spec) = read_json::<PodSpec>(&dir.spec())? else {
            remove_all(dir.path())?;
            continue;
        };
        let standing = if shim_holds_lock(&dir)? {
            Standing::Alive
        } else {
            Standing::Dead
        };
        let pod = Pod::new(spec, dir, cgroup);
        pod.load_containers()?;
        pods.push((pod, standing));
    }
    Ok(pods)
}

fn shim_holds_lock(dir: &PodDir) -> Result<bool> {
    match File::open(dir.lock()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).attempt(|| format!("open {}", dir.lock().display())),
        Ok(lock) => Ok(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()),
    }
}

impl Runtime {
    async fn adopt(&self, pod: Arc<Pod>, standing: Standing) {
        if let Standing::Alive = standing {
            let Err(error) = self.watch(&pod).await else {
                return;
            };
            tracing::warn!(pod = %pod.spec.id, error = %chain(&error), "the shim of a pod does not answer; ending it");
            let (dir, patience) = (pod.dir.clone(), self.shared.config.patience);
            if let Err(error) = blocking(move || end_shim(&dir, patience)).await {
                tracing::warn!(pod = %pod.spec.id, error = %chain(&error), "the shim of a pod cannot be ended");
            }
        }
        self.lose(&pod).await;
    }

    pub(super) async fn make_pod(&self, spec: PodSpec) -> Result<()> {
        let id = spec.id.clone();
        let dir = PodDir::of(&self.shared.config.dir.join("pods"), &id);
        let pod = Arc::new(Pod::new(spec, dir, &self.shared.cgroup));
        // Holding the name keeps a second maker away, and a remover sees what there is to remove.
        {
            let mut pods = self.pods();
            if pods.contains_key(&id) {
                return Err(Error::PodExists(id));
            }
            pods.insert(id.clone(), pod.clone());
        }
        let made = self.begin_pod(&pod).await;
        if made.is_err() {
            let _ = self.discard_pod(pod).await;
        }
        made
    }

    async fn begin_pod(&self, pod: &Arc<Pod>) -> Result<()> {
        let gone = pod.gone.lock().await;
        if *gone {
            return Err(Error::PodLost(pod.spec.id.clone()));
        }
        let (this, made) = (self.clone(), pod.clone());
        let mut shim = blocking(move || this.spawn_shim(&made)).await?;
        drop(gone);
        // Reaps it, should it end before we do; it is not ours to end.
        tokio::spawn(async move { shim.wait().await });
        let patience = self.shared.config.patience;
        let setup = |reason: String| Error::PodSetup {
            pod: pod.spec.id.clone(),
            reason,
        };
        match ask(&pod.dir, &Request::Hello, &[], patience, "set up a pod").await? {
            Some((_, Reply::Done)) => self.watch(pod).await,
            Some((_, reply)) => Err(setup(unexpected(reply))),
            None => {
                let log = fs::read_to_string(pod.dir.shim_log()).unwrap_or_default();
                Err(setup(format!("its shim died: {}", log.trim())))
            }
        }
    }

    fn spawn_shim(&self, pod: &Pod) -> Result<tokio::process::Child> {
        let dir = &pod.dir;
        let attempted = || format!("make the pod directory {}", dir.path().display());
        private_directory().create(dir.path()).attempt(attempted)?;
        for inside in [dir.containers(), dir.oci(), dir.memory("")] {
            private_directory().create(inside).attempt(attempted)?;
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.lock())
            .attempt(attempted)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).attempt(|| "lock a new pod")?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.shim_log())
            .attempt(attempted)?;
        let directory = File::open(dir.path()).attempt(attempted)?;
        let listener = UnixListener::bind(socket_path(&directory)).attempt(|| "make the socket of a pod")?;
        // Last, because it makes the directory a pod.
        write_json(&dir.spec(), &pod.spec)?;
        let program = self.shared.config.program.as_deref().unwrap_or(Path::new(shim::SELF));
        tokio::process::Command::new(program)
            .arg(shim::SHIM)
            .arg(dir.path())
            .arg(&self.shared.cgroup)
            .env_clear()
            .stdin(OwnedFd::from(listener))
            .stdout(lock)
            .stderr(log)
            .spawn()
            .attempt(|| format!("run {} as the shim of pod {}", program.display(), pod.spec.id))
    }

    pub(super) async fn discard_container(&self, pod: Arc<Pod>, container: Arc<Container>) -> Result<()> {
        let id = container.spec.id.clone();
        if !pod.is_lost() {
            match self
                .ask(
                    &pod,
                    &Request::Forget { container: id.clone() },
                    &[],
                    "forget a container",
                )
                .await
            {
                Ok((_, Reply::Done)) | Err(Error::PodLost(_)) => {}
                Ok((_, reply)) => return Err(Self::refused(&pod, "forget a container", reply)),
                Err(error) => return Err(error),
            }
        }
        let gone = pod.gone.lock().await;
        if *gone {
            return Ok(());
        }
        let (this, place) = (self.clone(), pod.clone());
        blocking(move || {
            let patience = this.shared.config.patience;
            let cgroup = place.cgroup.join(container.spec.id.as_str());
            let group = this.shared.hierarchies.group(&cgroup);
            group.kill(patience)?;
            group.remove(patience)?;
            remove_all(&place.dir.oci().join(container.spec.id.as_str()))?;
            remove_all(container.dir.path())
        })
        .await?;
        pod.containers().remove(&id);
        Ok(())
    }

    pub(super) async fn discard_pod(&self, pod: Arc<Pod>) -> Result<()> {
        pod.begin_removal();
        let mut gone = pod.gone.lock().await;
        if *gone {
            return Ok(());
        }
        if !pod.is_lost() {
            // What the shim does not do, we do ourselves below.
            let _ = ask(
                &pod.dir,
                &Request::Shutdown,
                &[],
                self.shared.config.patience,
                "stop a pod",
            )
            .await;
        }
        let (this, ended) = (self.clone(), pod.clone());
        blocking(move || {
            let patience = this.shared.config.patience;
            end_shim(&ended.dir, patience)?;
            let group = this.shared.hierarchies.group(&ended.cgroup);
            group.kill(patience)?;
            group.remove(patience)?;
            remove_all(ended.dir.path())
        })
        .await?;
        for container in pod.all_containers() {
            container.lose();
        }
        self.pods().remove(&pod.spec.id);
        *gone = true;
        Ok(())
    }

    pub(super) async fn discard_all(&self) -> Result<()> {
        let pods: Vec<_> = self.pods().values().cloned().collect();
        let mut first_error = Ok(());
        for pod in pods {
            let removed = self.discard_pod(pod).await;
            first_error = first_error.and(removed);
        }
        first_error?;
        let this = self.clone();
        blocking(move || {
            let patience = this.shared.config.patience;
            let group = this.shared.hierarchies.group(&this.shared.cgroup);
            group.kill(patience)?;
            group.remove(patience)
        })
        .await
    }
}

pub(super) async fn make_container(pod: Arc<Pod>, spec: ContainerSpec) -> Result<()> {
    let dir = pod.dir.container(&spec.id);
    let id = spec.id.clone();
    let (place, file) = (dir.clone(), spec.clone());
    let exists = Error::ContainerExists(pod.spec.id.clone(), id.clone());
    blocking(move || {
        match private_directory().create(place.path()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(exists),
            other => other.attempt(|| format!("make {}", place.path().display()))?,
        }
        write_json(&place.spec(), &file).inspect_err(|_| drop(fs::remove_dir_all(place.path())))
    })
    .await?;
    pod.containers().insert(id, Arc::new(Container::new(spec, dir)));
    Ok(())
}

/// Makes sure that a shim is gone, one that no longer answers included.
fn end_shim(dir: &PodDir, patience: Duration) -> Result<()> {
    let start = std::time::Instant::now();
    let half = patience / 2;
    while shim_holds_lock(dir)? {
        let waited = start.elapsed();
        if waited > patience {
            return Err(Error::Deadline {
                attempted: format!("end the shim of {}", dir.path().display()),
                after: patience,
            });
        }
        if waited > half
            && let Some(pid) = fs::read_to_string(dir.lock())
                .ok()
                .and_then(|text| text.trim().parse().ok())
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn remove_all(path: &Path) -> Result<()> {
    unmount_below(path)?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.attempt(|| format!("remove {}", path.display())),
    }
}

/// Sockets of shims are the keys to their pods.
fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::Io {
                attempted: "finish".to_owned(),
                source: io::Error::other(error),
            }),
        },
    }
}
