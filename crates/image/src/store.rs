//! The store as the rest of the program sees it: asynchronous, shared, and with one effort for several who wait.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    ArchiveFormat, Credentials, Digest, Error, Image, Origin, Progress, Recipe, Reference, Result, build,
    credentials::Login, executable, export, flights::Flights, image, import, layout::Layout, pull,
};

/// One local store of images. Clones are the same store.
#[derive(Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Arc<Layout>,
    options: Options,
    /// By name, and by who asks: one who has no login must not be given what another's login fetched, nor the
    /// other way round the refusal.
    fetches: Flights<(Reference, Vec<Login>), Result<Image>>,
    builds: Flights<(String, Option<Reference>), Result<Image>>,
}

/// What a store knows beside its directory.
#[derive(Clone, Debug)]
pub struct Options {
    /// What can be built here.
    pub recipes: Vec<Recipe>,
    /// Where an image that is not here is looked for first.
    pub order: Order,
}

/// Where an image that is not here is looked for first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A recipe, then the registry: what the same name gives does not depend on whether the network is there today, and
    /// nothing waits for a registry that is out of reach.
    #[default]
    RecipesFirst,
    /// The registry, then a recipe: the public image wherever it can be had.
    RegistriesFirst,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            recipes: Recipe::built_in(),
            order: Order::default(),
        }
    }
}

/// When to look beyond the store, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// What is here is not good enough if it came from a registry, which may have something newer under the name. What
    /// was imported or built here is: this store is where it comes from.
    Always,
    /// What is here is good enough.
    IfNotPresent,
    /// Only what is here.
    Never,
}

/// How much room the store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes of manifests, configurations and layers as they came.
    pub blobs: u64,
    /// Bytes of the files of the unpacked layers.
    pub layers: u64,
}

/// What removing did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The names that are gone.
    pub names: Vec<Reference>,
    /// Bytes that nothing needed any more.
    pub bytes: u64,
}

impl ImageStore {
    /// Opens the store in `directory`, making it where it is missing. What a crash left there is removed. Several
    /// processes may have one store open.
    pub async fn open(directory: impl Into<PathBuf>, options: Options) -> Result<Self> {
        let directory = directory.into();
        let layout = blocking(move || Layout::open(&directory)).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                layout: Arc::new(layout),
                options,
                fetches: Flights::default(),
                builds: Flights::default(),
            }),
        })
    }

    /// Every image.
    pub async fn list(&self) -> Result<Vec<Image>> {
        self.with(image::all).await
    }

    /// The image of this name, in any form, or of this id or digest.
    pub async fn get(&self, name: &str) -> Result<Image> {
        let name = name.to_owned();
        self.with(move |layout| image::find(layout, &name)).await
    }

    /// The image of this name, from here, from a recipe or from a registry, as the policy and the store's [`Order`] say.
    /// Several who ask at once wait for one effort, which goes on when they leave. When every way fails,
    /// [`Error::NoWay`] tells each one's reason.
    pub async fn ensure(
        &self,
        reference: &Reference,
        policy: PullPolicy,
        credentials: &Credentials,
        progress: Progress,
    ) -> Result<Image> {
        match (self.get(&reference.to_string()).await, policy) {
            (Ok(image), PullPolicy::IfNotPresent | PullPolicy::Never) => return Ok(image),
            (Ok(image), PullPolicy::Always) if image.origin != Origin::Registry => return Ok(image),
            (Err(Error::Absent { .. }), PullPolicy::Never) => return Err(Error::NeverPull(reference.clone())),
            (Err(error), PullPolicy::Never) => return Err(error),
            // What is damaged is fetched anew.
            (Ok(_) | Err(_), _) => {}
        }
        let (store, wanted, credentials) = (self.clone(), reference.clone(), credentials.clone());
        let key = (reference.clone(), credentials.logins(reference));
        let fetch = async move { store.fetch(&wanted, &credentials, &progress).await };
        self.inner.fetches.join(key, fetch).await
    }

    async fn fetch(&self, wanted: &Reference, credentials: &Credentials, progress: &Progress) -> Result<Image> {
        let recipes = self.inner.options.recipes.iter();
        let recipes: Vec<&Recipe> = recipes.filter(|recipe| recipe.may_provide(wanted)).collect();
        let mut attempts = Vec::new();
        if self.inner.options.order == Order::RegistriesFirst {
            match self.pull(wanted, credentials, progress).await {
                Err(error) => attempts.push(error),
                done => return done,
            }
        }
        for recipe in recipes {
            match self.by_recipe(recipe, wanted, progress).await {
                Err(error) => attempts.push(error),
                done => return done,
            }
        }
        if self.inner.options.order == Order::RecipesFirst {
            match self.pull(wanted, credentials, progress).await {
                Err(error) => attempts.push(error),
                done => return done,
            }
        }
        match attempts.pop() {
            Some(only) if attempts.is_empty() => Err(only),
            last => Err(Error::NoWay {
                reference: wanted.clone(),
                attempts: attempts.into_iter().chain(last).collect(),
            }),
        }
    }

    /// Builds, unless what the recipe gives is here already and is known not to be what is wanted.
    async fn by_recipe(&self, recipe: &Recipe, wanted: &Reference, progress: &Progress) -> Result<Image> {
        if let Ok(built) = self.get(&recipe.stands_in_for().to_string()).await
            && built.origin == Origin::Recipe
            && let Some(version) = built.config.labels.get(build::VERSION_LABEL)
            && !recipe.may_be_named(wanted, version)
        {
            return Err(build::wrong_version(recipe, wanted, version));
        }
        self.build(recipe, Some(wanted.clone()), progress.clone()).await
    }

    /// Fetches what the name means in its registry now.
    pub async fn pull(&self, reference: &Reference, credentials: &Credentials, progress: &Progress) -> Result<Image> {
        let digest = pull::pull(&self.inner.layout, reference, credentials, progress).await?;
        self.with(move |layout| image::load(layout, &digest)).await
    }

    /// Takes in every image of an OCI layout (a directory or an archive) or an archive of `docker save`, any of them
    /// compressed. `name` is for an image that has none.
    pub async fn import(&self, path: &Path, name: Option<Reference>) -> Result<Vec<Image>> {
        let path = path.to_owned();
        self.with(move |layout| {
            let imported = import::import(layout, &path, name.as_ref())?;
            imported.iter().map(|digest| image::load(layout, digest)).collect()
        })
        .await
    }

    /// Writes these images, with all their names, as one archive.
    pub async fn export(
        &self,
        names: &[String],
        format: ArchiveFormat,
        out: impl Write + Send + 'static,
    ) -> Result<()> {
        let names = names.to_owned();
        self.with(move |layout| {
            let locked = layout.lock()?;
            let images: Vec<Image> = names
                .iter()
                .map(|name| image::find(layout, name))
                .collect::<Result<_>>()?;
            let export = export::Export::prepare(layout, &images)?;
            drop(locked);
            export.write(layout, format, out)
        })
        .await
    }

    /// Builds a recipe anew, and gives the image every name that its version allows. With `wanted`, that name must be
    /// among them. Several who ask at once wait for one build, which goes on when they leave.
    pub async fn build(&self, recipe: &Recipe, wanted: Option<Reference>, progress: Progress) -> Result<Image> {
        // One build at a time: they share a base, and apt is busy with one as it is.
        static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let key = (recipe.name().to_owned(), wanted.clone());
        let (layout, recipe) = (self.inner.layout.clone(), recipe.clone());
        let building = async move {
            let _turn = TURN.lock().await;
            let (done, result) = tokio::sync::oneshot::channel();
            // A thread of its own: the build dies with the thread that started it, and a pool's may end early.
            std::thread::spawn(move || {
                let built = build::build(&layout, &recipe, wanted.as_ref(), &progress);
                // Nobody waits any more only when the whole program ends.
                let _ = done.send(built.and_then(|digest| image::load(&layout, &digest)));
            });
            result
                .await
                .unwrap_or_else(|_| Err(Error::damaged("a build", "it panicked")))
        };
        self.inner.builds.join(key, building).await
    }

    /// Makes an image of a program of this machine, with the shared libraries that it needs, under this name.
    pub async fn add_executable(&self, program: &Path, name: Reference) -> Result<Image> {
        let program = program.to_owned();
        self.with(move |layout| {
            let digest = executable::executable(layout, &program, &name)?;
            image::load(layout, &digest)
        })
        .await
    }

    /// Takes a name away, or with an id or digest all names of the image, and collects what nothing needs any more. What
    /// is pinned stays until it is not.
    pub async fn remove(&self, name: &str) -> Result<Removed> {
        let name = name.to_owned();
        self.with(move |layout| {
            let image = image::find(layout, &name)?;
            let only: Option<Reference> = if name.parse::<Digest>().is_ok() {
                None
            } else {
                name.parse().ok()
            };
            let doomed: Vec<Reference> = match only {
                Some(only) if image.names.contains(&only) => vec![only],
                _ => image.names.clone(),
            };
            let texts: Vec<String> = doomed.iter().map(Reference::to_string).collect();
            let locked = layout.lock()?;
            locked.remove(|entry| match entry.name() {
                Some(own) => entry.descriptor.digest == image.digest && texts.iter().any(|text| text == own),
                None => entry.descriptor.digest == image.digest,
            })?;
            let swept = locked.sweep()?;
            drop(locked);
            Ok(Removed {
                names: doomed,
                bytes: swept.bytes,
            })
        })
        .await
    }

    /// Removes what neither a name nor a pin leads to, and returns how many bytes that were.
    pub async fn collect_garbage(&self) -> Result<u64> {
        self.with(|layout| {
            let locked = layout.lock()?;
            let swept = locked.sweep()?;
            drop(locked);
            Ok(swept.bytes)
        })
        .await
    }

    /// Keeps the image's layers, whatever happens to its names, until the holder lets go. The pin outlives this process,
    /// as containers do. Holders are names of letters, digits, `-`, `_` and `.`, such as a pod's UID; a second pin of one
    /// holder replaces the first. Fails with [`Error::Absent`] when the image was removed meanwhile.
    pub async fn pin(&self, image: &Image, holder: &str) -> Result<()> {
        check_holder(holder)?;
        let (digest, holder) = (image.digest, holder.to_owned());
        self.with(move |layout| {
            let locked = layout.lock()?;
            image::load(layout, &digest).map_err(|_| Error::Absent {
                name: digest.to_string(),
            })?;
            locked.pin(&holder, &digest)
        })
        .await
    }

    /// Lets go of what the holder kept; nothing happens when that is nothing.
    pub async fn unpin(&self, holder: &str) -> Result<()> {
        check_holder(holder)?;
        let holder = holder.to_owned();
        self.with(move |layout| layout.lock()?.unpin(&holder)).await
    }

    /// Who keeps which image, by the digest of its manifest.
    pub async fn pins(&self) -> Result<std::collections::BTreeMap<String, Digest>> {
        self.with(Layout::pins).await
    }

    /// How much room everything takes.
    pub async fn disk_usage(&self) -> Result<DiskUsage> {
        self.with(|layout| {
            let (blobs, layers) = layout.usage()?;
            Ok(DiskUsage { blobs, layers })
        })
        .await
    }

    /// The recipes that this store knows.
    pub fn recipes(&self) -> &[Recipe] {
        &self.inner.options.recipes
    }

    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&Layout) -> Result<T> + Send + 'static) -> Result<T> {
        let layout = self.inner.layout.clone();
        blocking(move || work(&layout)).await
    }
}

fn check_holder(holder: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=200).contains(&holder.len()) && !holder.starts_with('.') && holder.bytes().all(fits) {
        Ok(())
    } else {
        Err(Error::malformed(
            format!("holder {holder:?}"),
            "it must be letters, digits, -, _ and . only",
        ))
    }
}

/// Runs what waits for the disk where it holds up nobody.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::Io {
                what: "cannot work on the image store".to_owned(),
                cause: Arc::new(std::io::Error::other("the program is ending")),
            }),
        },
    }
}
