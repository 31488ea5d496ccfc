//! Pods that take more room on the disk than they may.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{
    adopt::labels,
    context::{Context, run_id},
};
use crate::amounts::{Amounts, Side, amount};

/// How often the room that pods take is measured.
pub(crate) const MEASURE: Duration = Duration::from_secs(10);

const STORAGE: &str = "ephemeral-storage";

/// How much room a pod may take, in bytes, with the limits as they are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    volumes: BTreeMap<String, (i64, String)>,
    containers: BTreeMap<String, (i64, String)>,
    whole: Option<i64>,
}

/// How much room a pod takes, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    volumes: BTreeMap<String, i64>,
    /// What containers wrote beside their volumes, and their logs.
    pub(crate) containers: BTreeMap<String, i64>,
}

impl Usage {
    /// All of it.
    pub(crate) fn total(&self) -> i64 {
        self.volumes.values().chain(self.containers.values()).sum()
    }
}

impl Limits {
    /// What a pod says; nothing when it says nothing.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let mut limits = Self::default();
        for volume in spec.volumes.iter().flatten() {
            let source = volume
                .empty_dir
                .as_ref()
                .filter(|source| is_on_disk(source.medium.as_deref()));
            if let Some(limit) = source.and_then(|source| source.size_limit.as_ref())
                && amount(STORAGE, limit) > 0
            {
                limits
                    .volumes
                    .insert(volume.name.clone(), (amount(STORAGE, limit), limit.0.clone()));
            }
        }
        for container in &spec.containers {
            let given = container
                .resources
                .as_ref()
                .and_then(|resources| resources.limits.as_ref());
            if let Some(limit) = given.and_then(|given| given.get(STORAGE)) {
                limits
                    .containers
                    .insert(container.name.clone(), (amount(STORAGE, limit), limit.0.clone()));
            }
        }
        limits.whole = whole(spec);
        (limits != Self::default()).then_some(limits)
    }

    /// What a pod has to be told when it takes more than it may, in a kubelet's words.
    pub(crate) fn exceeded(&self, usage: &Usage) -> Option<String> {
        for (name, (limit, text)) in &self.volumes {
            if usage.volumes.get(name).is_some_and(|used| used > limit) {
                return Some(format!(
                    "Usage of EmptyDir volume {name:?} exceeds the limit {text:?}. "
                ));
            }
        }
        if let Some(limit) = self.whole.filter(|limit| usage.total() > *limit) {
            return Some(format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
            ));
        }
        for (name, (limit, text)) in &self.containers {
            if usage.containers.get(name).is_some_and(|used| used > limit) {
                return Some(format!(
                    "Container {name} exceeded its local ephemeral storage limit {text:?}. "
                ));
            }
        }
        None
    }
}

fn is_on_disk(medium: Option<&str>) -> bool {
    medium.is_none_or(str::is_empty)
}

/// The limits of all containers together, if any has one.
fn whole(spec: &PodSpec) -> Option<i64> {
    let mut sum = Amounts::default();
    for container in &spec.containers {
        sum.add(&Side::Limits.of(container.resources.as_ref()));
    }
    Some(sum.get(STORAGE)).filter(|limit| *limit > 0)
}

/// Measures the room that a pod takes. It walks over everything that the pod wrote.
pub(crate) fn measure(context: &Context, pod: &Pod) -> Usage {
    let mut usage = Usage::default();
    let (uid, spec) = (pod.metadata.uid.as_deref().unwrap_or(""), pod.spec.as_ref());
    for volume in spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let on_disk = volume
            .empty_dir
            .as_ref()
            .is_some_and(|source| is_on_disk(source.medium.as_deref()));
        if on_disk {
            let place = context.empty_dir(uid, &volume.name);
            usage.volumes.insert(volume.name.clone(), size(&place));
        }
    }
    for container in spec.iter().flat_map(|spec| &spec.containers) {
        let mut places = vec![context.log_directory(pod).join(&container.name)];
        places.extend(written(context, pod, &container.name));
        let used = places.iter().map(|place| size(place)).sum();
        usage.containers.insert(container.name.clone(), used);
    }
    usage
}

/// Where the last attempt at a container writes what is on no volume.
fn written(context: &Context, pod: &Pod, container: &str) -> Option<PathBuf> {
    let id = run_id(pod).ok()?;
    let status = context.runtime.pod(&id).ok()?;
    let attempts = status
        .containers
        .iter()
        .filter(|found| found.spec.labels.get(labels::CONTAINER).map(String::as_str) == Some(container));
    let number = |found: &&moorline_container::ContainerStatus| -> Option<u32> {
        found.spec.labels.get(labels::ATTEMPT)?.parse().ok()
    };
    let last = attempts.max_by_key(number)?;
    context.runtime.written(&id, &last.spec.id).ok()
}

/// The room that everything below a directory takes on the disk. What goes away meanwhile takes none.
fn size(place: &Path) -> i64 {
    let mut seen = HashSet::new();
    let mut places = vec![place.to_owned()];
    let mut blocks: u64 = 0;
    while let Some(place) = places.pop() {
        let Ok(found) = fs::symlink_metadata(&place) else {
            continue;
        };
        if found.nlink() > 1 && !found.is_dir() && !seen.insert((found.dev(), found.ino())) {
            continue;
        }
        blocks += found.blocks();
        if found.is_dir()
            && let Ok(entries) = fs::read_dir(&place)
        {
            places.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    // The kernel counts blocks of 512 bytes, whatever the file system has.
    i64::try_from(blocks * 512).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn limits(spec: &Value) -> Option<Limits> {
        Limits::of(&serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap())
    }

    fn usage(volume: i64, containers: [i64; 2]) -> Usage {
        Usage {
            volumes: [("v".to_owned(), volume)].into(),
            containers: [("a".to_owned(), containers[0]), ("b".to_owned(), containers[1])].into(),
        }
    }

    #[test]
    fn a_pod_that_takes_more_than_it_may_is_told_what_was_too_much() {
        let mebibyte = 1 << 20;
        let limits = limits(&json!({
            "volumes": [
                { "name": "v", "emptyDir": { "sizeLimit": "1Mi" } },
                { "name": "m", "emptyDir": { "sizeLimit": "1Mi", "medium": "Memory" } },
            ],
            "containers": [
                { "name": "a", "resources": { "limits": { "ephemeral-storage": "1Mi" } } },
                { "name": "b", "resources": { "limits": { "ephemeral-storage": "2Mi" } } },
            ],
        }))
        .unwrap();
        assert!(!limits.volumes.contains_key("m"), "memory is limited by the kernel");
        assert_eq!(limits.exceeded(&usage(mebibyte, [mebibyte, mebibyte])), None);
        let told = |usage| limits.exceeded(&usage).unwrap();
        assert_eq!(
            told(usage(mebibyte + 1, [0, 0])),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
        );
        assert_eq!(
            told(usage(0, [mebibyte + 1, 0])),
            "Container a exceeded its local ephemeral storage limit \"1Mi\". "
        );
        assert_eq!(
            told(usage(mebibyte, [mebibyte, mebibyte + 1])),
            "Pod ephemeral local storage usage exceeds the total limit of containers 3145728. "
        );
    }

    #[test]
    fn a_pod_without_limits_is_not_measured() {
        let spec = json!({ "volumes": [{ "name": "v", "emptyDir": {} }], "containers": [{ "name": "a" }] });
        assert_eq!(limits(&spec), None);
    }

    #[test]
    fn room_is_what_the_disk_gives_and_a_file_with_two_names_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let empty = size(directory.path());
        fs::write(directory.path().join("one"), vec![1; 64 << 10]).unwrap();
        let with_one = size(directory.path());
        assert!(with_one >= empty + (64 << 10), "{empty} {with_one}");
        fs::hard_link(directory.path().join("one"), directory.path().join("two")).unwrap();
        assert_eq!(size(directory.path()), with_one);
    }
}
