//! Whose the files of a volume are.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown},
    path::Path,
};

use k8s_openapi::api::core::v1::Pod;

/// The group that a pod's volumes belong to, and the user that its tokens do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ownership {
    /// Nothing leaves files as they are.
    pub(crate) group: Option<u32>,
    pub(crate) user: Option<u32>,
    /// Whether the group may only read.
    pub(crate) read_only: bool,
    /// Whether a tree whose top is right already is taken to be right throughout.
    pub(crate) only_if_top_differs: bool,
}

impl Ownership {
    /// What a pod asks for.
    pub(crate) fn of(pod: &Pod) -> Self {
        let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let policy = security.and_then(|security| security.fs_group_change_policy.as_deref());
        Self {
            group: security
                .and_then(|security| security.fs_group)
                .and_then(|group| u32::try_from(group).ok()),
            user: None,
            read_only: false,
            only_if_top_differs: policy == Some("OnRootMismatch"),
        }
    }

    /// The same for files that nobody writes to.
    pub(crate) fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Gives a tree to the group, and lets it in.
    pub(crate) fn apply(&self, place: &Path) -> io::Result<()> {
        if self.group.is_none() && self.user.is_none() {
            return Ok(());
        }
        if self.only_if_top_differs {
            let top = fs::metadata(place)?;
            let right = self.group.is_none_or(|group| top.gid() == group) && top.mode() & 0o2000 != 0;
            if right {
                return Ok(());
            }
        }
        self.give(place)
    }

    fn give(&self, place: &Path) -> io::Result<()> {
        let metadata = fs::symlink_metadata(place)?;
        lchown(place, self.user, self.group)?;
        if metadata.file_type().is_symlink() {
            return Ok(());
        }
        let mut mode = metadata.mode() & 0o7777;
        if self.group.is_some() {
            mode |= if self.read_only { 0o440 } else { 0o660 };
            if metadata.is_dir() {
                mode |= 0o2110;
            }
        }
        fs::set_permissions(place, fs::Permissions::from_mode(mode))?;
        if metadata.is_dir() {
            for entry in fs::read_dir(place)? {
                self.give(&entry?.path())?;
            }
        }
        Ok(())
    }
}
