//! `moorline image`: the images that pods on this machine are made of.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use moorline_image::{
    ArchiveFormat, Credentials, Event, Image, ImageStore, Options, Origin, Progress, Recipe, Reference,
};
use moorline_node::container::rootless::{self, Net, Stay};
use serde_json::{Value, json};

use crate::instance::is_root;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Where everything of this instance is kept, the images in `images` below [default: /var/lib/moorline for root,
    /// ~/.local/share/moorline for others]
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the images, and what can be built
    List {
        /// How to show them
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
        /// List the recipes that can be built instead
        #[arg(long)]
        recipes: bool,
    },
    /// Fetch images from their registries
    Pull {
        /// Names, such as postgres:17
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        /// Log in with what this Docker configuration file says
        #[arg(long, value_name = "FILE")]
        credentials: Option<PathBuf>,
    },
    /// Take in OCI layouts or archives of docker save, compressed or not
    Import {
        /// Directories or archives
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// The name of an image that has none
        #[arg(long, value_name = "IMAGE")]
        name: Option<String>,
    },
    /// Write images to one archive
    Export {
        /// Names, ids or digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        /// The archive; - is standard output
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// What will read it
        #[arg(long, value_enum, default_value_t = Format::Oci)]
        format: Format,
    },
    /// Build images from recipes of Debian packages
    Build {
        /// Names of recipes, files, or names of images that a recipe stands in for
        #[arg(required = true, value_name = "RECIPE")]
        recipes: Vec<String>,
    },
    /// Take names of images away, and with its last name an image
    #[command(visible_alias = "rm")]
    Remove {
        /// Names, ids or digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Wide,
    Json,
    Yaml,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// skopeo, podman, ctr
    Oci,
    /// docker load
    Docker,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    // Files of images belong to many users; a plain user has those only in namespaces.
    if !is_root() && rootless::lacking(Stay::Passing).is_empty() {
        let directory = crate::instance::data_directory(arguments.data_dir.clone())?;
        rootless::enter(&directory, Stay::Passing, Net::Machine, Stdio::inherit())?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(act(arguments))
}

async fn act(arguments: Arguments) -> Result<()> {
    if let Command::List {
        output, recipes: true, ..
    } = arguments.command
    {
        return print(&recipe_list(output)?);
    }
    let directory = crate::instance::data_directory(arguments.data_dir)?.join("images");
    let store = ImageStore::open(&directory, Options::default())
        .await
        .with_context(|| format!("cannot open the image store in {}", directory.display()))?;
    match arguments.command {
        Command::List { output, .. } => print(&image_list(store.list().await?, output)?),
        Command::Pull { images, credentials } => {
            let credentials = match credentials {
                Some(path) => read_credentials(&path)?,
                None => Credentials::none(),
            };
            each(images, async |name: String| {
                let reference: Reference = name.parse()?;
                let shown = Shown::new(reference.familiar());
                let image = store.pull(&reference, &credentials, &shown.progress()).await;
                shown.clear();
                tell(&image?)
            })
            .await
        }
        Command::Import { paths, name } => {
            let name = name.map(|name| name.parse::<Reference>()).transpose()?;
            each(paths, async |path: PathBuf| {
                let imported = store.import(&path, name.clone()).await;
                let imported = imported.with_context(|| format!("cannot import {}", path.display()))?;
                imported.iter().try_for_each(tell)
            })
            .await
        }
        Command::Export { images, file, format } => export(&store, &images, &file, format).await,
        Command::Build { recipes } => {
            each(recipes, async |name: String| {
                let (recipe, wanted) = find_recipe(&store, &name)?;
                let shown = Shown::new(recipe.name().to_owned());
                let image = store.build(&recipe, wanted, shown.progress()).await;
                shown.clear();
                tell(&image?)
            })
            .await
        }
        Command::Remove { images } => {
            each(images, async |name: String| {
                let removed = store.remove(&name).await?;
                for name in &removed.names {
                    print(&format!("removed {}\n", name.familiar()))?;
                }
                if removed.bytes > 0 {
                    print(&format!("freed {}\n", size(removed.bytes)))?;
                }
                Ok(())
            })
            .await
        }
    }
}

/// Does one after the other, goes on past a failure, and fails in the end when any failed.
async fn each<T>(items: Vec<T>, act: impl AsyncFn(T) -> Result<()>) -> Result<()> {
    let mut failures = Vec::new();
    for item in items {
        if let Err(error) = act(item).await {
            failures.push(error);
        }
    }
    match failures.pop() {
        None => Ok(()),
        Some(last) => {
            failures.iter().for_each(super::report);
            Err(last)
        }
    }
}

async fn export(store: &ImageStore, images: &[String], file: &Path, format: Format) -> Result<()> {
    let format = match format {
        Format::Oci => ArchiveFormat::Oci,
        Format::Docker => ArchiveFormat::Docker,
    };
    if file == Path::new("-") {
        return Ok(store.export(images, format, std::io::stdout()).await?);
    }
    // Nobody finds half an archive under the name.
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let out = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
    let written = async {
        store.export(images, format, out).await?;
        std::fs::rename(&part, file).with_context(|| format!("cannot write {}", file.display()))
    };
    let written = written.await;
    if written.is_err() {
        // It is in the way of nothing but the disk's space; the failure above is what matters.
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// By its name, by its file, or by an image that it may stand in for, which is then what has to come out.
fn find_recipe(store: &ImageStore, name: &str) -> Result<(Recipe, Option<Reference>)> {
    if let Some(recipe) = store.recipes().iter().find(|recipe| recipe.name() == name) {
        return Ok((recipe.clone(), None));
    }
    let path = Path::new(name);
    if path
        .extension()
        .is_some_and(|extension| extension == "yaml" || extension == "yml")
    {
        return Ok((Recipe::read(path)?, None));
    }
    if let Ok(wanted) = name.parse::<Reference>()
        && let Some(recipe) = store.recipes().iter().find(|recipe| recipe.may_provide(&wanted))
    {
        return Ok((recipe.clone(), Some(wanted)));
    }
    let known: Vec<&str> = store.recipes().iter().map(Recipe::name).collect();
    bail!(
        "there is no recipe {name}; there are {}, or give a file.yaml",
        known.join(", ")
    )
}

fn read_credentials(path: &Path) -> Result<Credentials> {
    let json = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Credentials::from_docker_config(&json)?)
}

fn image_list(images: Vec<Image>, output: Output) -> Result<String> {
    if matches!(output, Output::Json | Output::Yaml) {
        return render(output, &images.iter().map(describe).collect::<Vec<_>>());
    }
    let wide = output == Output::Wide;
    let mut rows = [vec!["NAME", "ID", "SIZE", "FROM"]];
    if wide {
        rows[0].extend(["LAYERS", "CREATED", "DIGEST"]);
    }
    let mut rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(ToString::to_string).collect())
        .collect();
    for image in images {
        let id = image.id.hex();
        let names: Vec<String> = image.names.iter().map(Reference::familiar).collect();
        let names = if names.is_empty() {
            vec!["<none>".to_owned()]
        } else {
            names
        };
        for name in names {
            let mut row = vec![name, id[..12].to_owned(), size(image.bytes), origin(&image)];
            if wide {
                let created = image.created.clone().unwrap_or_else(|| "-".to_owned());
                row.extend([image.layers.len().to_string(), created, image.digest.to_string()]);
            }
            rows.push(row);
        }
    }
    rows[1..].sort();
    Ok(table(&rows))
}

fn recipe_list(output: Output) -> Result<String> {
    let recipes = Recipe::built_in();
    if matches!(output, Output::Json | Output::Yaml) {
        let all: Vec<Value> = recipes
            .iter()
            .map(|recipe| {
                json!({
                    "name": recipe.name(),
                    "standsInFor": recipe.stands_in_for().to_string(),
                    "suite": recipe.suite(),
                })
            })
            .collect();
        return render(output, &all);
    }
    let mut rows = vec![["NAME", "STANDS IN FOR", "SUITE"].map(str::to_owned).to_vec()];
    for recipe in &recipes {
        let image = recipe.stands_in_for().familiar();
        rows.push(vec![recipe.name().to_owned(), image, recipe.suite().to_owned()]);
    }
    Ok(table(&rows))
}

fn describe(image: &Image) -> Value {
    json!({
        "id": image.id.to_string(),
        "digest": image.digest.to_string(),
        "names": image.names,
        "repoDigests": image.repo_digests,
        "origin": image.origin.word(),
        "bytes": image.bytes,
        "created": image.created,
        "layers": image.layers,
        "config": image.config,
    })
}

fn origin(image: &Image) -> String {
    match image.config.labels.get("moorline.recipe") {
        Some(recipe) if image.origin == Origin::Recipe => format!("recipe {recipe}"),
        _ => image.origin.word().to_owned(),
    }
}

fn render(output: Output, value: &[Value]) -> Result<String> {
    Ok(match output {
        Output::Yaml => serde_saphyr::to_string(&value).context("cannot write YAML")?,
        _ => format!("{}\n", serde_json::to_string_pretty(&value)?),
    })
}

fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("   ").trim_end());
        text.push('\n');
    }
    text
}

fn size(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.5 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// One line for an image that was got.
fn tell(image: &Image) -> Result<()> {
    let names: Vec<String> = image.names.iter().map(Reference::familiar).collect();
    let id = image.id.hex();
    print(&format!("{}  {}  {}\n", names.join(" "), &id[..12], size(image.bytes)))
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot write")
}

/// What is going on, in one line that is written over and over; on something that is no terminal, nothing.
struct Shown {
    what: String,
    terminal: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    layers: BTreeMap<String, (u64, u64)>,
    last: Option<Instant>,
}

impl Shown {
    fn new(what: String) -> Self {
        Self {
            what,
            terminal: std::io::stderr().is_terminal(),
            state: Arc::default(),
        }
    }

    fn progress(&self) -> Progress {
        if !self.terminal {
            return Progress::none();
        }
        let (what, state) = (self.what.clone(), self.state.clone());
        Progress::new(move |event| {
            let mut state = state.lock().expect("showing does not panic");
            let line = state.take(event);
            // Faster than this nobody reads.
            if state.last.is_none_or(|last| last.elapsed() > Duration::from_millis(80)) {
                state.last = Some(Instant::now());
                draw(&format!("{what}: {line}"));
            }
        })
    }

    fn clear(&self) {
        if self.terminal {
            draw("");
        }
    }
}

impl State {
    fn take(&mut self, event: Event) -> String {
        match event {
            Event::Resolving => "asking the registry".to_owned(),
            Event::Downloading { layer, done, total } => {
                self.layers.insert(layer.hex(), (done, total));
                let (done, total) = self
                    .layers
                    .values()
                    .fold((0, 0), |(done, total), layer| (done + layer.0, total + layer.1));
                format!("{} of {}", size(done), size(total))
            }
            Event::Unpacking { layer } => format!("unpacking {}", &layer.hex()[..12]),
            Event::Present { layer } => format!("{} is here already", &layer.hex()[..12]),
            Event::Building { line } => line.trim_start_matches("I: ").to_owned(),
            _ => String::new(),
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "progress is for the person at the terminal, apart from what is printed"
)]
fn draw(line: &str) {
    let line: String = line
        .chars()
        .filter(|character| !character.is_control())
        .take(110)
        .collect();
    eprint!("\r\x1b[K{line}");
}
