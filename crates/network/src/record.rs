//! What an instance remembers on disk.
//!
//! ```text
//! <directory>/network.json      ranges, nodes, who is cut off
//!            /services.json     the services that were told last
//!            /pods/<id>.json    one pod each, written before anything of it is made
//!            /netns/<id>        its network namespace
//!            /lock              held by the process that has the instance open
//! ```
//!
//! A record is written before the thing that it describes is made and removed after it is gone. So whatever a crash
//! leaves behind, there is a record of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::on_file;
use crate::{Error, HostPort, NodeName, PodId, Ranges, Result, ServiceRules};

/// The instance as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    pub(crate) ranges: Ranges,
    /// Which part of the pod range each node has.
    pub(crate) nodes: BTreeMap<NodeName, u32>,
    pub(crate) cut: BTreeSet<NodeName>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodRecord {
    pub(crate) id: PodId,
    pub(crate) node: NodeName,
    pub(crate) address: Ipv4Addr,
    pub(crate) link: String,
    pub(crate) host_ports: Vec<HostPort>,
    pub(crate) progress: Progress,
}

/// How far a pod's network had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// Being made or taken down; found like this after a crash, it is cleaned away.
    Unfinished,
    /// All of it is there.
    Attached,
}

/// Keeps other processes out of a directory until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(fs::File);

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that is being started at this moment still has a copy of the file, which closing would wait for.
        let _ = self.0.unlock();
    }
}

/// The directory of an instance.
#[derive(Clone, Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        for part in [path.to_owned(), path.join("pods"), path.join("netns")] {
            fs::create_dir_all(&part).map_err(on_file("cannot make directory", part))?;
        }
        // Namespaces are told to other processes by path, which then must not depend on where this one was started.
        let path = path.canonicalize().map_err(on_file("cannot resolve", path))?;
        Ok(Self(path))
    }

    /// Keeps other processes out.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let path = self.0.join("lock");
        let file = fs::File::create(&path).map_err(on_file("cannot make", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(fs::TryLockError::WouldBlock) => Err(Error::InUse(self.0.clone())),
            Err(fs::TryLockError::Error(error)) => Err(on_file("cannot lock", path)(error)),
        }
    }

    pub(crate) fn namespace(&self, pod: &PodId) -> PathBuf {
        self.0.join("netns").join(pod.as_str())
    }

    pub(crate) fn namespaces(&self) -> Result<Vec<PathBuf>> {
        entries(&self.0.join("netns"))
    }

    pub(crate) fn read_instance(&self) -> Result<Option<InstanceRecord>> {
        read(&self.0.join("network.json"))
    }

    pub(crate) fn write_instance(&self, record: &InstanceRecord) -> Result<()> {
        write(&self.0.join("network.json"), record)
    }

    pub(crate) fn read_services(&self) -> Result<Vec<ServiceRules>> {
        Ok(read(&self.0.join("services.json"))?.unwrap_or_default())
    }

    pub(crate) fn write_services(&self, services: &[ServiceRules]) -> Result<()> {
        write(&self.0.join("services.json"), &services)
    }

    pub(crate) fn read_pods(&self) -> Result<Vec<PodRecord>> {
        let mut pods = Vec::new();
        for path in entries(&self.0.join("pods"))? {
            if path.extension().is_some_and(|extension| extension == "json") {
                pods.extend(read(&path)?);
            } else {
                remove(&path)?;
            }
        }
        Ok(pods)
    }

    pub(crate) fn write_pod(&self, record: &PodRecord) -> Result<()> {
        write(&self.pod_path(&record.id), record)
    }

    pub(crate) fn remove_pod(&self, pod: &PodId) -> Result<()> {
        remove(&self.pod_path(pod))
    }

    /// Removes everything, the directory itself too.
    pub(crate) fn remove(&self) -> Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(on_file("cannot remove", &self.0)(error)),
            _ => Ok(()),
        }
    }

    fn pod_path(&self, pod: &PodId) -> PathBuf {
        self.0.join("pods").join(format!("{pod}.json"))
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(on_file("cannot list", directory))? {
        paths.push(entry.map_err(on_file("cannot list", directory))?.path());
    }
    Ok(paths)
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => {
            let value = serde_json::from_slice(&bytes);
            Ok(Some(value.map_err(|source| Error::Damaged {
                path: path.to_owned(),
                source,
            })?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(on_file("cannot read", path)(error)),
    }
}

/// Whole or not at all for a process that dies. Not synced: nothing that a record describes survives the machine.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let bytes = serde_json::to_vec(value).expect("records have string keys and finite numbers");
    let aside = path.with_extension("tmp");
    fs::write(&aside, bytes).map_err(on_file("cannot write", &aside))?;
    fs::rename(&aside, path).map_err(on_file("cannot write", path))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(on_file("cannot remove", path)(error)),
        _ => Ok(()),
    }
}
