//! The store as the rest of the program sees it: asynchronous, shared, and with one effort for several who wait.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Error, Image, Progress, Recipe, Reference, Result, build, flights::Flights, image, import, layout::Layout,
};

/// One local store of images. Clones are the same store.
#[derive(Clone)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Arc<Layout>,
    recipes: Vec<Recipe>,
    flights: Flights<String, Result<Image>>,
}

impl ImageStore {
    /// Opens the store in `directory`, making it where it is missing. What a crash left there is removed. Several
    /// processes may have one store open.
    pub async fn open(directory: impl Into<PathBuf>, recipes: Vec<Recipe>) -> Result<Self> {
        let directory = directory.into();
        let layout = blocking(move || Layout::open(&directory)).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                layout: Arc::new(layout),
                recipes,
                flights: Flights::default(),
            }),
        })
    }

    /// Every image.
    pub async fn list(&self) -> Result<Vec<Image>> {
        self.with(|layout| image::all(layout)).await
    }

    /// The image of this name, in any form, or of this id or digest.
    pub async fn get(&self, name: &str) -> Result<Image> {
        let name = name.to_owned();
        self.with(move |layout| image::find(layout, &name)).await
    }

    /// Takes in every image of an OCI layout (a directory or an archive) or an archive of `docker save`, any of them
    /// compressed. `name` is for an image that has none.
    pub async fn import(&self, path: &Path, name: Option<Reference>) -> Result<Vec<Image>> {
        let path = path.to_owned();
        self.with(move |layout| {
            let imported = import::import(layout, &path, name.as_ref())?;
            imported.iter().map(|one| image::load(layout, &one.digest)).collect()
        })
        .await
    }

    /// Builds a recipe anew, and gives the image every name that its version allows. With `wanted`, that name must be
    /// among them. Several who ask at once wait for one build, which goes on when they leave.
    pub async fn build(&self, recipe: &Recipe, wanted: Option<Reference>, progress: Progress) -> Result<Image> {
        let key = format!(
            "recipe {} {}",
            recipe.name(),
            wanted.as_ref().map_or(String::new(), Reference::to_string)
        );
        let (layout, recipe) = (self.inner.layout.clone(), recipe.clone());
        self.inner
            .flights
            .join(key, async move {
                // One build at a time: they share a base, and apt and dpkg are busy with one as it is.
                let _turn = BUILDS.lock().await;
                let (done, result) = tokio::sync::oneshot::channel();
                // A thread of its own: the build dies with the thread that started it, and a pool's may end early.
                std::thread::spawn(move || {
                    let built = build::build(&layout, &recipe, wanted.as_ref(), &progress)
                        .and_then(|built| image::load(&layout, &built.digest));
                    // Nobody waits any more only when the whole program ends.
                    let _ = done.send(built);
                });
                result.await.unwrap_or_else(|_| {
                    Err(Error::Damaged {
                        what: "a build".to_owned(),
                        reason: "it panicked".to_owned(),
                    })
                })
            })
            .await
    }

    /// The recipes that this store knows.
    pub fn recipes(&self) -> &[Recipe] {
        &self.inner.recipes
    }

    async fn with<T: Send + 'static>(&self, work: impl FnOnce(&Layout) -> Result<T> + Send + 'static) -> Result<T> {
        let layout = self.inner.layout.clone();
        blocking(move || work(&layout)).await
    }
}

static BUILDS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs what waits for the disk where it holds up nobody.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::Io {
                what: "cannot work on the image store".to_owned(),
                source: Arc::new(std::io::Error::other("the program is ending")),
            }),
        },
    }
}
