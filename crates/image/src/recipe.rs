//! Recipes: what stands in for a public image on a machine that reaches no registry.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    Reference, Result,
    error::{Attempting as _, Error},
    model::ImageConfig,
    reference::Version,
};

/// No recipe, and no file of one, is larger.
const LARGEST: u64 = 1 << 20;

/// How to make an image from Debian packages, checked and ready to be built.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub(crate) name: String,
    pub(crate) reference: Reference,
    pub(crate) version_package: String,
    pub(crate) suite: String,
    pub(crate) packages: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) users: Vec<User>,
    pub(crate) before: Vec<Placed>,
    pub(crate) files: Vec<Placed>,
    pub(crate) setup: String,
    pub(crate) config: ImageConfig,
}

/// A user with a group of the same name, made before the packages that would pick a number of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
}

/// A file that the recipe puts into the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RecipeFile {
    image: String,
    version: VersionOf,
    suite: String,
    packages: Vec<String>,
    #[serde(default)]
    exclude: Vec<String>,
    #[serde(default)]
    users: Vec<User>,
    #[serde(default)]
    before: Vec<PlacedFile>,
    #[serde(default)]
    files: Vec<PlacedFile>,
    #[serde(default)]
    setup: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    entrypoint: Vec<String>,
    #[serde(default)]
    cmd: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    #[serde(default)]
    working_dir: String,
    #[serde(default)]
    volumes: Vec<String>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    stop_signal: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionOf {
    package: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlacedFile {
    path: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    source: Option<String>,
}

impl Recipe {
    /// Reads a recipe; the files that it names lie beside it.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("cannot read recipe {}", path.display());
        let name = path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let text = read_bounded(path).attempting(what)?;
        let beside = path.parent().unwrap_or(Path::new("")).to_owned();
        Self::parse(&name, &String::from_utf8_lossy(&text), &|source| {
            let path: PathBuf = beside.join(source);
            read_bounded(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        })
    }

    /// Every recipe of a directory, by name; those that cannot be read are named in the error.
    pub fn read_all(directory: &Path) -> Result<Vec<Self>> {
        let mut paths: Vec<_> = fs::read_dir(directory)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
            .attempting(|| format!("cannot list {}", directory.display()))?;
        paths.retain(|path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// The recipes that come with this program.
    pub fn built_in() -> Vec<Self> {
        BUILT_IN
            .iter()
            .map(|(name, text, scripts)| {
                Self::parse(name, text, &|source| {
                    let script = scripts.iter().find(|(path, _)| *path == source);
                    script
                        .map(|(_, content)| content.as_bytes().to_vec())
                        .ok_or_else(|| format!("there is no file {source}"))
                })
                .expect("a test reads every recipe that comes with the program")
            })
            .collect()
    }

    pub(crate) fn parse(name: &str, text: &str, source: &Sources<'_>) -> Result<Self> {
        let invalid = |reason: String| Error::InvalidRecipe {
            recipe: name.to_owned(),
            reason,
        };
        if text.len() as u64 > LARGEST {
            return Err(invalid("it is larger than 1 MiB".to_owned()));
        }
        let file: RecipeFile = serde_saphyr::from_str(text).map_err(|error| invalid(error.to_string()))?;
        let reference: Reference = file.image.parse()?;
        let claims = reference.tag().and_then(|tag| claimed_version(tag, &file.suite));
        if claims.is_none() {
            return Err(invalid(format!(
                "image {} must have a tag that begins with the version it stands for",
                file.image
            )));
        }
        if !is_suite(&file.suite) {
            return Err(invalid(format!(
                "suite {:?} is no name of a Debian release",
                file.suite
            )));
        }
        if file.packages.is_empty() {
            return Err(invalid("packages: there are none".to_owned()));
        }
        for package in file.packages.iter().chain([&file.version.package]) {
            if !is_package(package) {
                return Err(invalid(format!("{package:?} is no name of a Debian package")));
            }
        }
        for path in &file.exclude {
            check_path(path).map_err(&invalid)?;
        }
        for user in &file.users {
            user.check().map_err(&invalid)?;
        }
        let place = |files: Vec<PlacedFile>| {
            files
                .into_iter()
                .map(|file| file.load(source))
                .collect::<std::result::Result<Vec<_>, _>>()
                .map_err(&invalid)
        };
        if let Some(bad) = file.env.iter().find(|line| !line.contains('=')) {
            return Err(invalid(format!("env: {bad:?} is not KEY=VALUE")));
        }
        Ok(Self {
            name: name.to_owned(),
            reference,
            version_package: file.version.package,
            suite: file.suite,
            packages: file.packages,
            exclude: file.exclude,
            users: file.users,
            before: place(file.before)?,
            files: place(file.files)?,
            setup: file.setup,
            config: ImageConfig {
                user: file.user,
                env: file.env,
                entrypoint: file.entrypoint,
                cmd: file.cmd,
                working_dir: file.working_dir,
                volumes: file.volumes,
                exposed_ports: file.ports,
                labels: std::collections::BTreeMap::new(),
                stop_signal: file.stop_signal,
            },
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The public image that it stands in for.
    pub fn stands_in_for(&self) -> &Reference {
        &self.reference
    }

    /// The Debian release that its packages come from.
    pub fn suite(&self) -> &str {
        &self.suite
    }

    /// Whether building it may give this image: the same repository, and a version that the recipe's could be. Only the
    /// build shows whether it is.
    pub fn may_provide(&self, wanted: &Reference) -> bool {
        match (self.claim(&self.reference), self.claim(wanted)) {
            (Some(own), Some(version)) => self.reference.name() == wanted.name() && version.starts_with(&own),
            _ => false,
        }
    }

    /// Whether an image whose packages have this version may carry this name.
    pub(crate) fn may_be_named(&self, reference: &Reference, package_version: &str) -> bool {
        let contained = upstream_version(package_version);
        self.may_provide(reference) && self.claim(reference).is_some_and(|claim| contained.starts_with(&claim))
    }

    fn claim<'a>(&self, reference: &'a Reference) -> Option<Vec<&'a str>> {
        claimed_version(reference.tag()?, &self.suite)
    }

    /// Every name that an image of this version may carry: the recipe's own, and more precise ones.
    pub(crate) fn names(&self, package_version: &str) -> Vec<Reference> {
        let contained = upstream_version(package_version);
        (1..=contained.len())
            .map(|parts| self.reference.at(Version::Tag(contained[..parts].join("."))))
            .chain([self.reference.clone()])
            .filter(|name| name.to_string().parse::<Reference>().is_ok() && self.may_be_named(name, package_version))
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

/// Where the contents of a recipe's files come from, by the names that it gives them.
type Sources<'a> = dyn Fn(&str) -> std::result::Result<Vec<u8>, String> + 'a;

impl PlacedFile {
    fn load(self, source: &Sources<'_>) -> std::result::Result<Placed, String> {
        let content = match (self.content, &self.source) {
            (Some(content), None) => content.into_bytes(),
            (None, Some(name)) => source(name).map_err(|error| format!("file {}: {error}", self.path))?,
            _ => return Err(format!("file {}: it needs either content or source", self.path)),
        };
        check_path(&self.path)?;
        let mode = self.mode.as_deref().unwrap_or("0644");
        let mode = u32::from_str_radix(mode, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777)
            .ok_or_else(|| format!("file {}: {mode:?} is no mode such as 0644", self.path))?;
        Ok(Placed {
            path: self.path,
            mode,
            content,
        })
    }
}

impl User {
    fn check(&self) -> std::result::Result<(), String> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if self.name.is_empty() || self.name.len() > 32 || !self.name.bytes().all(fits) {
            return Err(format!("{:?} is no name of a user", self.name));
        }
        check_path(&self.home)
    }

    pub(crate) fn passwd(&self) -> String {
        format!("{0}:x:{1}:{2}::{3}:/bin/sh\n", self.name, self.uid, self.gid, self.home)
    }

    pub(crate) fn group(&self) -> String {
        format!("{}:x:{}:\n", self.name, self.gid)
    }
}

fn check_path(path: &str) -> std::result::Result<(), String> {
    let plain = path.starts_with('/')
        && path.len() > 1
        && path[1..].split('/').all(|part| !matches!(part, "" | "." | ".."))
        && !path.contains([':', '\n', '\0']);
    if plain {
        Ok(())
    } else {
        Err(format!("{path:?} is no plain absolute path"))
    }
}

/// The version that a tag claims, in its parts, where the rest of the tag says nothing or names the suite.
fn claimed_version<'a>(tag: &'a str, suite: &str) -> Option<Vec<&'a str>> {
    let version = match tag.split_once('-') {
        None => tag,
        Some((version, rest)) if rest == suite => version,
        Some(_) => return None,
    };
    let parts: Vec<&str> = version.split('.').collect();
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.iter().all(number).then_some(parts)
}

/// The parts of what Debian packaged: without epoch, revision and marks of repackaging.
fn upstream_version(version: &str) -> Vec<&str> {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let version = version.rsplit_once('-').map_or(version, |(upstream, _)| upstream);
    let version = version.split('+').next().unwrap_or(version);
    version.split('.').collect()
}

fn is_package(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.');
    (2..=128).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(fits)
        // apt would take a trailing sign for an order to remove or keep.
        && !name.ends_with(['-', '+'])
}

fn is_suite(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes)
}

/// Name, text, and the files beside it.
type BuiltIn = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const BUILT_IN: &[BuiltIn] = &[
    (
        "postgres-17",
        include_str!("../../../recipes/postgres-17.yaml"),
        &[("postgres.sh", include_str!("../../../recipes/postgres.sh"))],
    ),
    (
        "valkey-8",
        include_str!("../../../recipes/valkey-8.yaml"),
        &[("valkey.sh", include_str!("../../../recipes/valkey.sh"))],
    ),
    (
        "mariadb-11.8",
        include_str!("../../../recipes/mariadb-11.8.yaml"),
        &[("mariadb.sh", include_str!("../../../recipes/mariadb.sh"))],
    ),
];

#[cfg(test)]
mod tests;
