//! Names of users and groups, as an image knows them.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::User;

/// The image knows no such user or group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownUser {
    /// No such user.
    #[error("no user {0:?} in the image's /etc/passwd")]
    User(String),
    /// No such group.
    #[error("no group {0:?} in the image's /etc/group")]
    Group(String),
}

/// Finds the numbers behind `user`, or `user:group`, each a name or a number, in the image made of `layers`, lowest
/// first. Without a group it is the user's own; groups that list the user as a member are added. Numbers that the image
/// does not know stand for themselves.
pub fn resolve_user(layers: &[PathBuf], wanted: &str) -> Result<User, UnknownUser> {
    resolve(&read(layers, "etc/passwd"), &read(layers, "etc/group"), wanted)
}

fn resolve(passwd: &str, group: &str, wanted: &str) -> Result<User, UnknownUser> {
    let (user, wanted_group) = match wanted.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (wanted, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number = user.parse::<u32>().ok();
    let entry = passwd.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let (name, uid, gid) = (
            *fields.first()?,
            fields.get(2)?.parse().ok()?,
            fields.get(3)?.parse().ok()?,
        );
        (name == user || number == Some(uid)).then(|| (name.to_owned(), uid, gid))
    });
    let (name, uid, own_gid) = match (entry, number) {
        (Some((name, uid, gid)), _) => (Some(name), uid, gid),
        (None, Some(uid)) => (None, uid, 0),
        (None, None) => return Err(UnknownUser::User(user.to_owned())),
    };
    let groups = || {
        group.lines().filter_map(|line| {
            let fields: Vec<_> = line.split(':').collect();
            let members = fields.get(3).copied().unwrap_or_default();
            Some((
                (*fields.first()?).to_owned(),
                fields.get(2)?.parse::<u32>().ok()?,
                members.to_owned(),
            ))
        })
    };
    if let Some(wanted) = wanted_group {
        let gid = groups()
            .find(|(name, ..)| name == wanted)
            .map(|(_, gid, _)| gid)
            .or_else(|| wanted.parse().ok())
            .ok_or_else(|| UnknownUser::Group(wanted.to_owned()))?;
        return Ok(User {
            uid,
            gid,
            additional_gids: Vec::new(),
        });
    }
    let member = |members: &str| {
        name.as_deref()
            .is_some_and(|name| members.split(',').any(|member| member == name))
    };
    let additional_gids = groups()
        .filter(|(_, gid, members)| *gid != own_gid && member(members))
        .map(|(_, gid, _)| gid)
        .collect();
    Ok(User {
        uid,
        gid: own_gid,
        additional_gids,
    })
}

/// The file of the highest layer that has it; empty where none has.
fn read(layers: &[PathBuf], path: &str) -> String {
    layers
        .iter()
        .rev()
        .find_map(|layer| read_inside(layer, path).ok())
        .unwrap_or_default()
}

/// An image is foreign: its links must not lead to files of the host.
fn read_inside(layer: &Path, path: &str) -> io::Result<String> {
    const MOST: u64 = 4 << 20;
    let root: OwnedFd = openat2(
        CWD,
        layer,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::empty(),
    )?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(
        root,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?;
    let mut text = String::new();
    File::from(file).take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104::/var/lib/postgresql:/bin/bash\n";
    const GROUP: &str = "root:x:0:\npostgres:x:104:\nssl-cert:x:103:postgres,other\ntape:x:26:\n";

    fn user(uid: u32, gid: u32, additional_gids: &[u32]) -> User {
        User {
            uid,
            gid,
            additional_gids: additional_gids.to_vec(),
        }
    }

    #[test]
    fn a_name_brings_its_group_and_its_memberships() {
        assert_eq!(resolve(PASSWD, GROUP, "postgres").unwrap(), user(101, 104, &[103]));
        assert_eq!(resolve(PASSWD, GROUP, "101").unwrap(), user(101, 104, &[103]));
    }

    #[test]
    fn an_explicit_group_stands_alone() {
        assert_eq!(resolve(PASSWD, GROUP, "postgres:tape").unwrap(), user(101, 26, &[]));
        assert_eq!(resolve(PASSWD, GROUP, "999:998").unwrap(), user(999, 998, &[]));
    }

    #[test]
    fn a_number_that_the_image_does_not_know_stands_for_itself() {
        assert_eq!(resolve("", "", "1234").unwrap(), user(1234, 0, &[]));
        assert_eq!(resolve("", "", "").unwrap(), user(0, 0, &[]));
    }

    #[test]
    fn a_name_that_the_image_does_not_know_is_an_error() {
        assert_eq!(
            resolve(PASSWD, GROUP, "nobody"),
            Err(UnknownUser::User("nobody".to_owned()))
        );
        assert_eq!(
            resolve(PASSWD, GROUP, "root:none"),
            Err(UnknownUser::Group("none".to_owned()))
        );
    }

    #[test]
    fn the_highest_layer_that_has_the_file_counts_and_its_links_stay_inside() {
        let (low, high) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for layer in [&low, &high] {
            std::fs::create_dir(layer.path().join("etc")).unwrap();
        }
        std::fs::write(low.path().join("etc/passwd"), "a:x:1:1::/:\n").unwrap();
        std::fs::write(high.path().join("etc/real"), "a:x:2:2::/:\n").unwrap();
        std::os::unix::fs::symlink("/etc/real", high.path().join("etc/passwd")).unwrap();
        let layers = [low.path().to_owned(), high.path().to_owned()];
        assert_eq!(resolve_user(&layers, "a").unwrap(), user(2, 2, &[]));
    }
}
