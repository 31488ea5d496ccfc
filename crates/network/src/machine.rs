//! What the instances of one machine share: who may choose ranges, and which settings of the machine are changed.
//!
//! It lives where it is forgotten when the machine starts anew, for then the settings are forgotten too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::error::on_file;
use crate::names::Tag;
use crate::netlink::{LOOPBACK, Netlink, ROUTE_ORIGIN};
use crate::wiring::{host_net, setting_path};
use crate::{InstanceName, Ranges, Result, files, record};

const SHARED: &str = "/run/moorline-network";

/// Held by whoever chooses ranges or changes settings of the machine.
pub(crate) struct Turn {
    settings: PathBuf,
    lock: File,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Not left to closing: a process that is being started at this moment has a copy of the file.
        let _ = self.lock.unlock();
    }
}

/// A setting that some instances need.
#[derive(Debug, Serialize, Deserialize)]
struct Changed {
    was: String,
    needed_by: BTreeSet<InstanceName>,
}

impl Turn {
    /// Waits for its turn.
    pub(crate) fn take() -> Result<Self> {
        let directory = Path::new(SHARED);
        fs::create_dir_all(directory).map_err(on_file("cannot make directory", directory))?;
        let path = directory.join("lock");
        let lock = File::create(&path).map_err(on_file("cannot make", &path))?;
        lock.lock().map_err(on_file("cannot lock", path))?;
        Ok(Self {
            settings: directory.join("settings.json"),
            lock,
        })
    }

    /// Switches forwarding on for the links of the machine's default routes.
    pub(crate) fn forward_from_outside(&self, instance: &InstanceName, netlink: &mut Netlink) -> Result<()> {
        let mut changed = self.changed()?;
        let mut off = Vec::new();
        for link in uplinks(netlink)? {
            let path = setting_path("ipv4", &link, "forwarding");
            let value = fs::read_to_string(&path).map_err(on_file("cannot read", &path))?;
            let was = value.trim().to_owned();
            if was != "1" {
                off.push(path.clone());
            }
            // On already, and not by an instance: then it is the machine's own affair.
            if was != "1" || changed.contains_key(&path) {
                let entry = changed.entry(path).or_insert_with(|| Changed {
                    was,
                    needed_by: BTreeSet::new(),
                });
                entry.needed_by.insert(instance.clone());
            }
        }
        record::write(&self.settings, &changed)?;
        for path in off {
            fs::write(&path, "1").map_err(on_file("cannot write", path))?;
        }
        Ok(())
    }

    /// Puts back what no other instance needs.
    pub(crate) fn put_back(&self, instance: &InstanceName) -> Result<()> {
        let mut changed = self.changed()?;
        if !changed.values().any(|setting| setting.needed_by.contains(instance)) {
            return Ok(());
        }
        for setting in changed.values_mut() {
            setting.needed_by.remove(instance);
        }
        for (path, setting) in changed.extract_if(.., |_, setting| setting.needed_by.is_empty()) {
            // The link can be gone, and its setting with it.
            if path.exists() {
                fs::write(&path, &setting.was).map_err(on_file("cannot write", path))?;
            }
        }
        record::write(&self.settings, &changed)
    }

    fn changed(&self) -> Result<BTreeMap<PathBuf, Changed>> {
        Ok(record::read(&self.settings)?.unwrap_or_default())
    }
}

fn uplinks(netlink: &mut Netlink) -> Result<Vec<String>> {
    let default = netlink.routes()?.into_iter().filter(|route| route.to.prefix_len() == 0);
    let indexes: BTreeSet<u32> = default.filter_map(|route| route.way.link()).collect();
    let links = netlink.links()?.into_iter();
    Ok(links
        .filter(|(index, _)| indexes.contains(index))
        .map(|(_, name)| name)
        .collect())
}

/// A range that something else on this machine uses, and what that is.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) range: Ipv4Net,
    pub(crate) by: String,
}

/// The ranges that the machine and its other instances use. `own` are those of this instance, which do not count.
pub(crate) fn taken(netlink: &mut Netlink, tag: Tag, own: Option<Ranges>) -> Result<Vec<Taken>> {
    let is_own = |range: Ipv4Net| {
        range.prefix_len() == 32
            && own.is_some_and(|own| own.pods().contains(&range) || own.services().contains(&range))
    };
    let mut taken = Vec::new();
    for route in netlink.routes()? {
        let ours = route.origin == ROUTE_ORIGIN && (route.metric == Some(tag.metric()) || route.metric.is_none());
        if route.to.prefix_len() > 0 && !ours {
            taken.push(Taken {
                range: route.to.trunc(),
                by: format!("route {}", route.to),
            });
        }
    }
    for address in netlink.addresses()? {
        if !(address.index == LOOPBACK && is_own(address.net)) {
            taken.push(Taken {
                range: address.net.trunc(),
                by: format!("address {}", address.net),
            });
        }
    }
    for resolver in files::Resolvers::of_machine().nameservers {
        if let std::net::IpAddr::V4(address) = resolver {
            taken.push(Taken {
                range: host_net(address),
                by: format!("name server {address}"),
            });
        }
    }
    Ok(taken)
}
