//! Building an image from a recipe, with `mmdebstrap` and the host's own apt configuration.
//!
//! Two layers: a minimal Debian, which all recipes of a suite share, and what the recipe adds, taken from the upper side
//! of an overlay. Both are made by `build.sh`, in namespaces of its own that die with this process, so that a crash
//! leaves no mount and no process behind.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    Digest, Event, Origin, Progress, Recipe, Reference, Result,
    apt::HostApt,
    error::{Attempting as _, Error},
    layout::Layout,
    model::{self, ConfigFile, ImageConfig, Platform, RootFs},
    pack::pack,
    recipe::User,
    staging::{StagedImage, StagedLayer, present_layer, stage_archive, stage_layer},
};

/// Where the shared base of a suite is listed, so that its layer is kept and found.
const BASE: &str = "localhost/moorline/debian";
/// How much of what a failed build wrote is told.
const LAST_LINES: usize = 12;
/// What a build cannot do without, and the package that has it.
const TOOLS: &[(&str, &str)] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("apt-get", "apt"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "mount"),
];

/// Builds the recipe and puts the image under every name that its version allows, `wanted` among them. When what came
/// out is not what was wanted, it is kept under its true names, and the error says what it is.
pub(crate) fn build(
    layout: &Layout,
    recipe: &Recipe,
    wanted: Option<&Reference>,
    progress: &Progress,
) -> Result<Digest> {
    check_machine(recipe)?;
    let apt = HostApt::read().map_err(|error| Error::CannotBuild {
        recipe: recipe.name.clone(),
        missing: format!("the host's apt configuration, which cannot be read: {error}"),
    })?;
    loop {
        let base = base(layout, recipe, &apt, progress)?;
        let scratch = Scratch::new(layout)?;
        scratch.lay_out(recipe, &apt, Some(&layout.layer(&base.diff_id).join("tree")))?;
        run(recipe, &scratch.0, "custom", &recipe.packages, progress)?;
        let tree = scratch.0.join("tree");
        let versions = installed(&tree).attempting(|| format!("cannot read what {} installed", recipe.name))?;
        let version = versions
            .get(&recipe.version_package)
            .cloned()
            .ok_or_else(|| Error::BuildFailed {
                recipe: recipe.name.clone(),
                reason: format!("package {} was not installed", recipe.version_package),
            })?;
        let names = recipe.names(&version);
        if names.is_empty() {
            return Err(wrong_version(recipe, &recipe.reference, &version));
        }
        progress.tell(Event::Building {
            line: format!("packing {} {version}", recipe.version_package),
        });
        let layer = stage_layer(layout, stage_archive(layout, |archive| pack(&tree, archive))?, None)?;
        drop(scratch);
        let config = configuration(recipe, &versions, &version, &base.diff_id, &layer.diff_id);
        let image = StagedImage::described(layout, &model::render(&config), vec![base, layer])?;
        let mut names: Vec<String> = names.iter().map(Reference::to_string).collect();
        let fits = wanted.is_none_or(|wanted| recipe.may_be_named(wanted, &version));
        if let Some(wanted) = wanted
            && fits
            && !names.contains(&wanted.to_string())
        {
            names.push(wanted.to_string());
        }
        let Some(digest) = image.commit(layout, Origin::Recipe, &names, None)? else {
            continue;
        };
        return match wanted {
            Some(wanted) if !fits => Err(wrong_version(recipe, wanted, &version)),
            _ => Ok(digest),
        };
    }
}

pub(crate) fn wrong_version(recipe: &Recipe, reference: &Reference, version: &str) -> Error {
    Error::WrongVersion {
        recipe: recipe.name.clone(),
        reference: reference.clone(),
        package: recipe.version_package.clone(),
        suite: recipe.suite.clone(),
        version: version.to_owned(),
    }
}

/// Says what is missing before minutes are spent.
fn check_machine(recipe: &Recipe) -> Result<()> {
    let cannot = |missing: String| Error::CannotBuild {
        recipe: recipe.name.clone(),
        missing,
    };
    if !rustix::process::geteuid().is_root() {
        return Err(cannot(
            "root, to install packages as the users that they name; run it with sudo, or import the image".to_owned(),
        ));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |tool: &str| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file());
    match TOOLS.iter().find(|(tool, _)| !there(tool)) {
        Some((tool, package)) => Err(cannot(format!(
            "{tool}, which is not installed; install it with: apt-get install -y {package}"
        ))),
        None => Ok(()),
    }
}

/// The shared layer of the recipe's suite, from the store or made now.
fn base(layout: &Layout, recipe: &Recipe, apt: &HostApt, progress: &Progress) -> Result<StagedLayer> {
    let name = format!("{BASE}:{}", recipe.suite);
    let known = layout.entries()?.into_iter().find(|entry| entry.name() == Some(&*name));
    if let Some(entry) = known {
        let manifest = layout.manifest(&entry.descriptor.digest)?;
        let config = layout.config(&manifest)?;
        if let ([layer], [diff_id]) = (&*manifest.layers, &*config.rootfs.diff_ids)
            && let Some(present) = present_layer(layout, layer, diff_id)?
        {
            return Ok(present);
        }
    }
    progress.tell(Event::Building {
        line: format!("making the base of {}", recipe.suite),
    });
    let scratch = Scratch::new(layout)?;
    scratch.lay_out(recipe, apt, None)?;
    run(recipe, &scratch.0, "essential", &[], progress)?;
    let tree = scratch.0.join("tree");
    let layer = stage_layer(layout, stage_archive(layout, |archive| pack(&tree, archive))?, None)?;
    let (descriptor, diff_id) = (layer.descriptor.clone(), layer.diff_id);
    let config = ConfigFile {
        created: Some(jiff::Timestamp::now().to_string()),
        platform: Some(Platform::here()),
        config: ImageConfig {
            labels: BTreeMap::from([("moorline.suite".to_owned(), recipe.suite.clone())]),
            ..ImageConfig::default()
        },
        rootfs: RootFs {
            kind: "layers".to_owned(),
            diff_ids: vec![diff_id],
        },
        history: Vec::new(),
    };
    let image = StagedImage::described(layout, &model::render(&config), vec![layer])?;
    image.commit(layout, Origin::Recipe, &[name], None)?;
    present_layer(layout, &descriptor, &diff_id)?
        .ok_or_else(|| Error::damaged(format!("layer {diff_id}"), "it was removed as soon as it was made"))
}

/// What the image says of itself. The labels depend on what is in it alone, not on when or where it was made.
fn configuration(
    recipe: &Recipe,
    versions: &BTreeMap<String, String>,
    version: &str,
    base: &Digest,
    layer: &Digest,
) -> ConfigFile {
    let mut packages: Vec<String> = recipe
        .packages
        .iter()
        .map(|package| format!("{package}={}", versions.get(package).map_or("", String::as_str)))
        .collect();
    packages.sort();
    let labels = BTreeMap::from([
        ("moorline.recipe".to_owned(), recipe.name.clone()),
        ("moorline.suite".to_owned(), recipe.suite.clone()),
        ("moorline.packages".to_owned(), packages.join(" ")),
        ("moorline.stands-in-for".to_owned(), recipe.reference.to_string()),
        (VERSION_LABEL.to_owned(), version.to_owned()),
    ]);
    ConfigFile {
        created: Some(jiff::Timestamp::now().to_string()),
        platform: Some(Platform::here()),
        config: ImageConfig {
            labels,
            ..recipe.config.clone()
        },
        rootfs: RootFs {
            kind: "layers".to_owned(),
            diff_ids: vec![*base, *layer],
        },
        history: Vec::new(),
    }
}

/// Label with the version of the package that counts.
pub(crate) const VERSION_LABEL: &str = "moorline.version";

/// The directory that a build works in; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(layout: &Layout) -> Result<Self> {
        let path = layout.scratch("build");
        fs::create_dir(&path).attempting(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    fn lay_out(&self, recipe: &Recipe, apt: &HostApt, lower: Option<&Path>) -> Result<()> {
        let what = || format!("cannot prepare {}", self.0.display());
        let write = |name: &str, text: &str| fs::write(self.0.join(name), text).attempting(what);
        write("sources", &apt.sources(&recipe.suite))?;
        write("apt.conf", &apt.options())?;
        let excluded = recipe.exclude.iter().filter(|_| lower.is_some());
        write(
            "dpkg.cfg",
            &excluded
                .flat_map(|path| {
                    [
                        "path-exclude=",
                        path,
                        "
",
                    ]
                })
                .collect::<String>(),
        )?;
        write("build.sh", include_str!("build.sh"))?;
        if let Some(lower) = lower {
            symlink(lower, self.0.join("lower")).attempting(what)?;
            write("passwd", &recipe.users.iter().map(User::passwd).collect::<String>())?;
            write("group", &recipe.users.iter().map(User::group).collect::<String>())?;
            write("setup", &recipe.setup)?;
            for (directory, files) in [("before", &recipe.before), ("files", &recipe.files)] {
                let directory = self.0.join(directory);
                fs::create_dir(&directory).attempting(what)?;
                for file in files {
                    let path = directory.join(&file.path[1..]);
                    fs::create_dir_all(path.parent().unwrap_or(&directory)).attempting(what)?;
                    fs::write(&path, &file.content).attempting(what)?;
                    fs::set_permissions(&path, fs::Permissions::from_mode(file.mode)).attempting(what)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "left a build to the next opening");
        }
    }
}

/// Runs the script where it dies with the thread that started it, which waits here until it has ended.
fn run(recipe: &Recipe, directory: &Path, variant: &str, packages: &[String], progress: &Progress) -> Result<()> {
    let what = || format!("cannot run the build of {}", recipe.name);
    let (output, input) = std::io::pipe().attempting(what)?;
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--pid", "--fork"])
        .args(["--kill-child=KILL", "--mount-proc", "sh", "build.sh"])
        .current_dir(directory)
        .env("SUITE", &recipe.suite)
        .env("VARIANT", variant)
        .env("PACKAGES", packages.join(","))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C.UTF-8")
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(input.try_clone().attempting(what)?)
        .stderr(input)
        .spawn()
        .attempting(what)?;
    let mut last = VecDeque::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line.attempting(what)?).trim_end().to_owned();
        tracing::debug!(recipe = recipe.name, line);
        if line.is_empty() {
            continue;
        }
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        progress.tell(Event::Building { line: line.clone() });
        last.push_back(line);
    }
    let status = child.wait().attempting(what)?;
    if status.success() {
        return Ok(());
    }
    // What went wrong is marked as such; where nothing is, the end of it all has to do.
    let marked: Vec<String> = last.iter().filter(|line| line.starts_with("E: ")).cloned().collect();
    let lines: Vec<String> = if marked.is_empty() { last.into() } else { marked };
    Err(Error::BuildFailed {
        recipe: recipe.name.clone(),
        reason: format!("{status}: {}", lines.join("\n")),
    })
}

/// The packages that are installed below `tree`, with their versions.
fn installed(tree: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let status = fs::read_to_string(tree.join("var/lib/dpkg/status"))?;
    Ok(status
        .split("\n\n")
        .filter_map(|paragraph| {
            let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name));
            (field("Status: ") == Some("install ok installed"))
                .then(|| Some((field("Package: ")?.to_owned(), field("Version: ")?.to_owned())))?
        })
        .collect())
}
