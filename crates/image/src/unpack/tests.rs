use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use tar::{Builder, Header};
use tempfile::TempDir;

use super::*;

/// An archive made entry by entry, with names that a well-meaning library would refuse to write.
#[derive(Default)]
struct Crafted(Vec<u8>);

impl Crafted {
    fn entry(mut self, kind: EntryType, name: &str, link: &str, content: &[u8], mode: u32) -> Self {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(u64::from(rustix::process::geteuid().as_raw()));
        header.set_gid(u64::from(rustix::process::getegid().as_raw()));
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content.as_bytes(), 0o644)
    }

    fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", b"", 0o755)
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, b"", 0o777)
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, b"", 0o644)
    }

    fn unpack(&self) -> (TempDir, PathBuf, io::Result<u64>) {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let result = unpack(&*self.0, &tree, Ownership::here());
        (directory, tree, result)
    }
}

fn is_whiteout(path: &Path) -> bool {
    let meta = fs::symlink_metadata(path).unwrap();
    meta.mode() & 0o170_000 == 0o020_000 && meta.rdev() == 0
}

fn is_opaque(path: &Path) -> bool {
    let mut value = [0; 1];
    rustix::fs::getxattr(path, Ownership::here().opaque_attribute(), &mut value).is_ok() && value == *b"y"
}

fn as_root() -> bool {
    let root = Ownership::here() == Ownership::Kept;
    if !root {
        eprintln!("skipped: only root can keep owners, devices and capabilities");
    }
    root
}

#[test]
fn files_directories_and_links_come_out_as_they_went_in() {
    let (_keep, tree, result) = Crafted::default()
        .directory("./")
        .directory("usr/")
        .entry(EntryType::Regular, "usr/tool", "", b"hello", 0o4755)
        .symlink("bin", "usr")
        .link("usr/other", "usr/tool")
        .file("implied/parents/file", "x")
        .unpack();
    assert_eq!(result.unwrap(), 6);
    assert_eq!(fs::read_to_string(tree.join("bin/tool")).unwrap(), "hello");
    let tool = fs::metadata(tree.join("usr/tool")).unwrap();
    assert_eq!(tool.mode() & 0o7777, 0o4755);
    assert_eq!(tool.mtime(), 1_000_000_000);
    assert_eq!(fs::metadata(tree.join("usr/other")).unwrap().ino(), tool.ino());
    assert_eq!(fs::metadata(tree.join("usr")).unwrap().mtime(), 1_000_000_000);
    assert_eq!(fs::metadata(tree.join("implied")).unwrap().mode() & 0o777, 0o755);
}

#[test]
fn a_path_that_leads_out_is_refused() {
    for name in ["../evil", "a/../../evil", "a/../evil", ".."] {
        let (keep, _, result) = Crafted::default().directory("a").file(name, "x").unpack();
        let error = result.unwrap_err().to_string();
        assert!(error.contains("leads out of the layer"), "{name}: {error}");
        assert!(!keep.path().join("evil").exists());
    }
    let (_keep, tree, result) = Crafted::default().file("/etc/absolute", "x").unpack();
    result.unwrap();
    assert!(tree.join("etc/absolute").exists());
}

#[test]
fn a_symbolic_link_that_leads_out_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("victim"), "unharmed").unwrap();
    let target = outside.path().to_str().unwrap();
    for crafted in [
        Crafted::default().symlink("a", target).file("a/victim", "harmed"),
        Crafted::default().symlink("a", "..").file("a/victim", "harmed"),
        Crafted::default().symlink("a", target).directory("a/sub"),
        Crafted::default().symlink("a", target).link("mine", "a/victim"),
        Crafted::default().symlink("a", target).file("a/.wh.victim", ""),
        Crafted::default().symlink("a", target).file("a/.wh..wh..opq", ""),
        Crafted::default().symlink("a", "b").symlink("b", "a").file("a/x", "x"),
        Crafted::default().link("mine", "../../victim"),
    ] {
        let (_keep, tree, result) = crafted.unpack();
        assert!(result.is_err());
        assert!(!tree.join("mine").exists());
        assert_eq!(fs::read_to_string(outside.path().join("victim")).unwrap(), "unharmed");
    }
}

#[test]
fn a_file_replaces_a_link_instead_of_writing_through_it() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "unharmed").unwrap();
    let (_keep, tree, result) = Crafted::default()
        .symlink("a", victim.to_str().unwrap())
        .file("a", "mine")
        .unpack();
    result.unwrap();
    assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(victim).unwrap(), "unharmed");
}

#[test]
fn a_directory_that_was_replaced_by_a_link_is_not_used_from_memory() {
    let (_keep, tree, result) = Crafted::default()
        .directory("real")
        .file("a/one", "1")
        .symlink("a", "real")
        .file("a/two", "2")
        .unpack();
    result.unwrap();
    assert_eq!(fs::read_to_string(tree.join("real/two")).unwrap(), "2");
    assert!(!tree.join("real/one").exists());
}

#[test]
fn whiteouts_become_those_of_overlayfs() {
    let (_keep, tree, result) = Crafted::default()
        .directory("d")
        .file("d/.wh..wh..opq", "")
        .file("d/new", "x")
        .file(".wh.gone", "")
        .file(".wh..wh.plnk", "")
        .unpack();
    result.unwrap();
    assert!(is_opaque(&tree.join("d")));
    assert!(is_whiteout(&tree.join("gone")));
    assert_eq!(fs::read_dir(&tree).unwrap().count(), 2);
    assert_eq!(fs::read_dir(tree.join("d")).unwrap().count(), 1);
}

#[test]
fn a_whiteout_hides_what_lies_below_and_never_what_the_layer_brings_itself() {
    for order in [true, false] {
        let mut crafted = Crafted::default();
        for whiteout in [order, !order] {
            crafted = if whiteout {
                crafted.file(".wh.file", "").file(".wh.dir", "")
            } else {
                crafted.file("file", "x").directory("dir").file("dir/x", "x")
            };
        }
        let (_keep, tree, result) = crafted.unpack();
        result.unwrap();
        assert_eq!(fs::read_to_string(tree.join("file")).unwrap(), "x");
        assert!(is_opaque(&tree.join("dir")) && tree.join("dir/x").exists());
    }
}

#[test]
fn whiteouts_without_a_name_are_refused() {
    for name in [".wh.", ".wh..", ".wh..."] {
        let (_keep, _, result) = Crafted::default().file(name, "").unpack();
        assert!(result.is_err(), "{name}");
    }
}

#[test]
fn owners_devices_and_capabilities_are_kept() {
    if !as_root() {
        return;
    }
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_mode(0o755);
    header.set_uid(4_000_000_000);
    header.set_gid(70);
    header.set_size(1);
    // cap_net_bind_service=ep, revision 2.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let attributes: [(&str, &[u8]); 2] = [
        ("SCHILY.xattr.security.capability", &capability),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
    ];
    builder.append_pax_extensions(attributes).unwrap();
    builder.append_data(&mut header, "tool", &b"x"[..]).unwrap();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Char);
    header.set_mode(0o666);
    header.set_device_major(1).unwrap();
    header.set_device_minor(3).unwrap();
    header.set_size(0);
    header.set_uid(0);
    header.set_gid(0);
    builder.append_data(&mut header, "dev/null", io::empty()).unwrap();
    let crafted = Crafted(builder.into_inner().unwrap());

    let (_keep, tree, result) = crafted.unpack();
    result.unwrap();
    let meta = fs::metadata(tree.join("tool")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (4_000_000_000, 70));
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(tree.join("tool"), "security.capability", &mut value).unwrap();
    assert_eq!(value[..length], capability);
    assert!(rustix::fs::getxattr(tree.join("tool"), "trusted.overlay.redirect", &mut value).is_err());
    let null = fs::symlink_metadata(tree.join("dev/null")).unwrap();
    assert_eq!((null.mode(), null.rdev()), (0o020_666, makedev(1, 3)));

    // And the way back gives the same again.
    let mut repacked = Vec::new();
    let mut builder = Builder::new(&mut repacked as &mut dyn io::Write);
    crate::pack::pack(&tree, &mut builder).unwrap();
    builder.finish().unwrap();
    drop(builder);
    let (_keep, again, result) = Crafted(repacked).unpack();
    result.unwrap();
    let meta = fs::metadata(again.join("tool")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode()), (4_000_000_000, 70, 0o100_755));
    let length = rustix::fs::getxattr(again.join("tool"), "security.capability", &mut value).unwrap();
    assert_eq!(value[..length], capability);
}

#[test]
fn what_was_packed_from_an_overlay_unpacks_to_the_same_overlay() {
    let (_keep, tree, result) = Crafted::default()
        .directory("d")
        .file("d/.wh..wh..opq", "")
        .file("d/new", "x")
        .link("d/hard", "d/new")
        .symlink("d/soft", "new")
        .file(".wh.gone", "")
        .file(&format!("d/{}", "long".repeat(20)), "y")
        .unpack();
    result.unwrap();
    let mut repacked = Vec::new();
    let mut builder = Builder::new(&mut repacked as &mut dyn io::Write);
    crate::pack::pack(&tree, &mut builder).unwrap();
    builder.finish().unwrap();
    drop(builder);
    let (_keep, again, result) = Crafted(repacked).unpack();
    result.unwrap();
    assert!(is_opaque(&again.join("d")) && is_whiteout(&again.join("gone")));
    assert_eq!(
        fs::metadata(again.join("d/new")).unwrap().ino(),
        fs::metadata(again.join("d/hard")).unwrap().ino()
    );
    assert_eq!(fs::read_link(again.join("d/soft")).unwrap(), Path::new("new"));
    assert_eq!(fs::read_dir(again.join("d")).unwrap().count(), 4);
}

#[test]
fn sizes_that_nobody_means_are_refused_without_taking_memory_or_disk() {
    // A file, a long name and an extended header that each claim to be enormous.
    for kind in [EntryType::Regular, EntryType::GNULongName, EntryType::XHeader] {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..1].copy_from_slice(b"a");
        header.set_entry_type(kind);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(1 << 50);
        header.set_cksum();
        let directory = tempfile::tempdir().unwrap();
        let endless = header.as_bytes().chain(io::repeat(b'a'));
        let error = unpack(endless, directory.path(), Ownership::here()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{kind:?}: {error}");
    }
}

#[test]
fn archives_that_are_cut_off_or_altered_never_panic_and_never_reach_outside() {
    let crafted = Crafted::default()
        .directory("d")
        .file("d/file", &"content ".repeat(200))
        .symlink("d/soft", "file")
        .link("d/hard", "d/file")
        .file("d/.wh.gone", "");
    let mut random = fastrand::Rng::with_seed(17);
    for _ in 0..300 {
        let mut bytes = crafted.0.clone();
        match random.u8(0..3) {
            0 => bytes.truncate(random.usize(..bytes.len())),
            1 => {
                for _ in 0..random.usize(1..6) {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
            // An alteration that passes the checksum, in any field of the header.
            _ => {
                let at = random.usize(0..148);
                bytes[at] = *random.choice(b"/.\0aZ79 \xff").unwrap();
                let mut header = Header::new_old();
                header.as_mut_bytes().copy_from_slice(&bytes[..512]);
                header.set_cksum();
                bytes[..512].copy_from_slice(header.as_bytes());
            }
        }
        let (keep, _, _) = Crafted(bytes).unpack();
        assert_eq!(fs::read_dir(keep.path()).unwrap().count(), 1);
    }
}

#[test]
fn numbers_that_a_header_leaves_blank_are_zero() {
    let mut crafted = Crafted::default().file("a", "x");
    for byte in &mut crafted.0[100..124] {
        *byte = 0;
    }
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(&crafted.0[..512]);
    header.set_cksum();
    crafted.0[..512].copy_from_slice(header.as_bytes());
    let (_keep, tree, result) = crafted.unpack();
    result.unwrap();
    assert!(tree.join("a").exists());
}

#[test]
fn an_archive_cut_within_a_file_is_an_error() {
    let mut crafted = Crafted::default().file("a", &"x".repeat(2000));
    crafted.0.truncate(512 + 700);
    let (_keep, _, result) = crafted.unpack();
    assert!(result.is_err());
}

#[test]
fn what_follows_the_archive_is_read_too_so_that_the_digest_is_of_everything() {
    let mut crafted = Crafted::default().file("a", "x");
    crafted.0.extend_from_slice(&[0; 1024]);
    crafted.0.extend_from_slice(b"padding that some tools add");
    let directory = tempfile::tempdir().unwrap();
    let mut reader = crate::digest::Hashing::new(&*crafted.0);
    unpack(&mut reader, directory.path(), Ownership::here()).unwrap();
    assert_eq!(reader.finish().1, crate::Digest::of(&crafted.0));
}
