//! The order of the crates in `docs/architecture.md` is the order in which they may depend on each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use serde::Deserialize;

const PREFIX: &str = "moorline-";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Absent for an ordinary dependency.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<NodeDependency>,
}

#[derive(Deserialize)]
struct NodeDependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
    /// The configuration that it is limited to.
    target: Option<String>,
}

impl DependencyKind {
    /// Whether it gets built into what people run: not for tests, and not for a model checker.
    fn is_built_in(&self) -> bool {
        let model_checking = self
            .target
            .as_deref()
            .is_some_and(|target| matches!(target, "cfg(loom)" | "cfg(shuttle)"));
        self.kind.is_none() && !model_checking
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace is the parent of this package")
}

fn metadata() -> &'static Metadata {
    static METADATA: OnceLock<Metadata> = OnceLock::new();
    METADATA.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(root())
            .output()
            .expect("cargo, which runs this test, can be run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("cargo prints its metadata as JSON")
    })
}

impl Metadata {
    fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The names of everything that gets built into a package, itself included.
    fn closure(&self, package: &Package) -> BTreeSet<&str> {
        let names: BTreeMap<_, _> = self.packages.iter().map(|p| (p.id.as_str(), p.name.as_str())).collect();
        let nodes: BTreeMap<_, _> = self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut seen = BTreeSet::from([package.id.as_str()]);
        let mut open = vec![package.id.as_str()];
        while let Some(id) = open.pop() {
            for dependency in &nodes[id].deps {
                let built_in = dependency.dep_kinds.iter().any(DependencyKind::is_built_in);
                if built_in && seen.insert(&dependency.pkg) {
                    open.push(&dependency.pkg);
                }
            }
        }
        seen.into_iter().map(|id| names[id]).collect()
    }
}

/// A row of the table of crates: its name and the names in its last column.
struct Row {
    name: String,
    must_not_know: Vec<String>,
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(root().join("docs/architecture.md")).expect("the page is there");
    let section = text
        .split("## The crates")
        .nth(1)
        .expect("the page has a section on the crates");
    let table = section
        .lines()
        .skip_while(|line| !line.starts_with("| `"))
        .take_while(|line| line.starts_with("| `"));
    let quoted = |cell: &str| {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    table
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
            Row {
                name: quoted(cells[0]).remove(0),
                must_not_know: quoted(cells.last().expect("a row has cells")),
            }
        })
        .collect()
}

#[test]
fn every_crate_stands_in_the_architecture_under_its_own_name() {
    let rows: BTreeSet<_> = rows().into_iter().map(|row| row.name).collect();
    assert!(!rows.is_empty());
    for package in metadata().members() {
        let folder = package.manifest_path.parent().unwrap();
        if folder.parent() != Some(&root().join("crates")) {
            continue;
        }
        let folder = folder.file_name().unwrap().to_str().unwrap();
        assert_eq!(package.name, format!("{PREFIX}{folder}"));
        assert!(
            rows.contains(folder),
            "crates/{folder} is missing in docs/architecture.md"
        );
    }
}

#[test]
fn every_crate_depends_only_on_those_above_it() {
    let rows = rows();
    let place = |name: &str| rows.iter().position(|row| row.name == name);
    let mut checked = 0;
    for package in metadata().members() {
        let Some(own) = package.name.strip_prefix(PREFIX).and_then(place) else {
            continue;
        };
        // What a crate is tested with may be anything; what is built into it may not.
        for dependency in package.dependencies.iter().filter(|d| d.kind.as_deref() != Some("dev")) {
            let Some(other) = dependency.name.strip_prefix(PREFIX) else {
                continue;
            };
            let other_place =
                place(other).unwrap_or_else(|| panic!("{} depends on {other}, which is no layer", package.name));
            assert!(
                other_place < own,
                "{} depends on {other}, which stands below it",
                package.name
            );
            assert!(
                !rows[own].must_not_know.iter().any(|name| name == other),
                "{} must not know {other}",
                package.name
            );
        }
        checked += 1;
    }
    assert!(checked >= 3);
}

#[test]
fn the_core_knows_neither_a_runtime_nor_a_client() {
    let core = ["graph", "queue", "machinery", "store", "template", "plan"];
    let runtimes_and_clients = [
        "tokio",
        "async-std",
        "smol",
        "mio",
        "hyper",
        "axum",
        "kube",
        "kube-client",
        "kube-runtime",
    ];
    let mut checked = 0;
    for package in metadata().members() {
        if package
            .name
            .strip_prefix(PREFIX)
            .is_some_and(|name| core.contains(&name))
        {
            let closure = metadata().closure(package);
            for forbidden in runtimes_and_clients {
                assert!(
                    !closure.contains(forbidden),
                    "{} has {forbidden} built into it",
                    package.name
                );
            }
            checked += 1;
        }
    }
    assert!(checked >= 3);
}

#[test]
fn what_everything_depends_on_stays_small() {
    for name in ["graph", "queue", "plan"] {
        let package = metadata()
            .members()
            .find(|p| p.name.strip_prefix(PREFIX) == Some(name))
            .unwrap();
        let closure = metadata().closure(package);
        assert!(
            closure.len() <= 32,
            "{name} builds {} packages: {closure:?}",
            closure.len()
        );
    }
}

#[test]
fn every_dependency_is_explained_and_every_explanation_has_its_dependency() {
    let text = fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let explained: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    let used: BTreeSet<_> = metadata()
        .members()
        .flat_map(|package| &package.dependencies)
        .map(|dependency| dependency.name.clone())
        .filter(|name| !name.starts_with(PREFIX))
        .collect();
    let silent: Vec<_> = used.difference(&explained).collect();
    let stale: Vec<_> = explained.difference(&used).collect();
    assert!(silent.is_empty(), "docs/dependencies.md does not explain {silent:?}");
    assert!(
        stale.is_empty(),
        "docs/dependencies.md explains {stale:?}, which nothing uses"
    );
}
