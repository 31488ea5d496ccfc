//! Images from a registry.

use std::{
    io::{self, Read},
    sync::{Arc, Once},
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use oci_client::{
    Client, RegistryOperation,
    client::{ClientConfig, ClientProtocol},
    errors::{OciDistributionError, OciErrorCode},
    secrets::RegistryAuth,
};

use crate::{
    Credentials, Digest, Event, Origin, Progress, Reference, Result, Version,
    error::Error,
    import::{check_layers, expect_digest},
    layout::Layout,
    model::{
        self, ConfigFile, DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, Document, INDEX, LARGEST_DOCUMENT, MANIFEST,
        Manifest, Platform,
    },
    staging::{StagedBlob, StagedImage, StagedLayer, present_layer, stage_blob, stage_layer},
    store::blocking,
};

/// Layers of one image that are fetched at the same time.
const AT_ONCE: usize = 3;
/// How often a transfer that breaks off is begun again.
const ATTEMPTS: usize = 3;
const CONNECT_PATIENCE: Duration = Duration::from_secs(15);
/// A registry that sends nothing for so long is taken for dead.
const READ_PATIENCE: Duration = Duration::from_mins(1);

/// Fetches what the name means now, for this machine, and returns the manifest's digest. Layers that are here already are
/// not fetched again.
pub(crate) async fn pull(
    layout: &Arc<Layout>,
    reference: &Reference,
    credentials: &Credentials,
    progress: &Progress,
) -> Result<Digest> {
    let logins = credentials.logins(reference);
    let mut refused = None;
    for auth in logins.iter().map(crate::credentials::Login::for_registry) {
        match pull_as(layout, reference, &auth, progress).await {
            Err(error @ Error::Unauthorized { .. }) => refused = Some(error),
            result => return result,
        }
    }
    match refused {
        Some(error) => Err(error),
        None => pull_as(layout, reference, &RegistryAuth::Anonymous, progress).await,
    }
}

async fn pull_as(
    layout: &Arc<Layout>,
    reference: &Reference,
    auth: &RegistryAuth,
    progress: &Progress,
) -> Result<Digest> {
    progress.tell(Event::Resolving);
    let session = Session::open(reference, auth).await?;
    let (list_digest, digest, bytes) = session.resolve().await?;
    let what = format!("manifest {digest} of {reference}");
    let Document::Manifest(manifest) = Document::parse(&what, &bytes)? else {
        return Err(Error::malformed(what, "it is an index within an index"));
    };
    let config = session.document(&manifest.config).await?;
    let file: ConfigFile = model::parse("the image's configuration", &config)?;
    check_layers(&what, manifest.layers.len(), &file)?;
    loop {
        let pairs = manifest.layers.iter().zip(&file.rootfs.diff_ids);
        let fetches: Vec<_> = pairs
            .map(|(layer, diff_id)| session.layer(layout, layer, *diff_id, progress))
            .collect();
        let layers: Vec<StagedLayer> = stream::iter(fetches).buffered(AT_ONCE).try_collect().await?;
        let (bytes, config, manifest) = (bytes.clone(), config.clone(), manifest.clone());
        let (layout, name) = (layout.clone(), reference.to_string());
        let committed = blocking(move || {
            let image = StagedImage::received(&layout, &bytes, media_type(&manifest), &config, layers)?;
            image.commit(&layout, Origin::Registry, &[name], list_digest.as_ref())
        });
        if let Some(digest) = committed.await? {
            return Ok(digest);
        }
    }
}

fn media_type(manifest: &Manifest) -> &str {
    if manifest.media_type.is_empty() {
        MANIFEST
    } else {
        &manifest.media_type
    }
}

/// A conversation with one registry about one repository.
struct Session<'a> {
    client: Client,
    reference: &'a Reference,
    name: oci_client::Reference,
    auth: &'a RegistryAuth,
}

impl<'a> Session<'a> {
    async fn open(reference: &'a Reference, auth: &'a RegistryAuth) -> Result<Self> {
        let session = Self {
            client: client(reference),
            reference,
            name: reference.for_registry(),
            auth,
        };
        // Asked for apart, because a failure to log in would otherwise show as a mere refusal of the image.
        session
            .client
            .auth(&session.name, auth, RegistryOperation::Pull)
            .await
            .map_err(|error| session.failure(error))?;
        Ok(session)
    }

    /// What the name means: the digest of the index, where there is one, and the manifest for this machine.
    async fn resolve(&self) -> Result<(Option<Digest>, Digest, Vec<u8>)> {
        let (digest, bytes) = self.manifest(&self.name).await?;
        let Document::Index(index) = Document::parse(&format!("manifest {digest}"), &bytes)? else {
            return Ok((None, digest, bytes));
        };
        let here = Platform::here();
        let fitting = |entry: &&Descriptor| entry.platform.as_ref().is_some_and(|other| other.runs_on(&here));
        let entry = index.manifests.iter().find(fitting).ok_or_else(|| {
            let platforms = index.manifests.iter().filter_map(|entry| entry.platform.as_ref());
            let known: Vec<String> = platforms.map(Platform::to_string).collect();
            self.not_found(format!("it is for {}, and this machine is {here}", known.join(", ")))
        })?;
        let inner = self.reference.at(Version::Digest(entry.digest)).for_registry();
        let (inner_digest, bytes) = self.manifest(&inner).await?;
        Ok((Some(digest), inner_digest, bytes))
    }

    async fn manifest(&self, name: &oci_client::Reference) -> Result<(Digest, Vec<u8>)> {
        let accepted = [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX];
        let pulled = self.client.pull_manifest_raw(name, self.auth, &accepted).await;
        let (bytes, _) = pulled.map_err(|error| self.failure(error))?;
        let digest = Digest::of(&bytes);
        match name.digest().map(str::parse::<Digest>) {
            Some(Ok(expected)) if expected != digest => Err(Error::DigestMismatch {
                what: format!("the manifest of {}", self.reference),
                expected,
                actual: digest,
            }),
            _ => Ok((digest, bytes.to_vec())),
        }
    }

    /// A small blob, in memory.
    async fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let what = format!("document {} of {}", descriptor.digest, self.reference);
        if descriptor.size > LARGEST_DOCUMENT {
            return Err(Error::malformed(
                what,
                format!("it claims to have {} bytes", descriptor.size),
            ));
        }
        let digest = descriptor.digest.to_string();
        let pulled = self.client.pull_blob_stream(&self.name, &&*digest).await;
        let mut content = pulled.map_err(|error| self.failure(error))?;
        let mut bytes = Vec::new();
        while let Some(chunk) = content.next().await {
            bytes.extend_from_slice(&chunk.map_err(|error| self.broken_off(&error))?);
            if bytes.len() as u64 > descriptor.size {
                return Err(Error::malformed(what, "it is larger than its descriptor says"));
            }
        }
        let actual = Digest::of(&bytes);
        if actual == descriptor.digest {
            Ok(bytes)
        } else {
            Err(Error::DigestMismatch {
                what,
                expected: descriptor.digest,
                actual,
            })
        }
    }

    async fn layer(
        &self,
        layout: &Arc<Layout>,
        descriptor: &Descriptor,
        diff_id: Digest,
        progress: &Progress,
    ) -> Result<StagedLayer> {
        let layer = descriptor.digest;
        let (store, wanted) = (layout.clone(), descriptor.clone());
        if let Some(present) = blocking(move || present_layer(&store, &wanted, &diff_id)).await? {
            progress.tell(Event::Present { layer });
            return Ok(present);
        }
        let mut attempt = 1;
        let blob = loop {
            match self.blob(layout, descriptor, progress).await {
                Err(error @ Error::Unreachable { .. }) if attempt < ATTEMPTS => {
                    tracing::warn!(%error, attempt, "a transfer broke off; trying again");
                    attempt += 1;
                }
                result => break result?,
            }
        };
        progress.tell(Event::Unpacking { layer });
        let layout = layout.clone();
        blocking(move || stage_layer(&layout, blob, Some(&diff_id))).await
    }

    /// A layer as it comes, into the work directory.
    async fn blob(&self, layout: &Arc<Layout>, descriptor: &Descriptor, progress: &Progress) -> Result<StagedBlob> {
        let digest = descriptor.digest.to_string();
        let pulled = self.client.pull_blob_stream(&self.name, &&*digest).await;
        let mut content = pulled.map_err(|error| self.failure(error))?;
        let (sender, chunks) = tokio::sync::mpsc::channel(16);
        let layout = layout.clone();
        let writing = tokio::task::spawn_blocking(move || {
            stage_blob(
                &layout,
                Chunks {
                    chunks,
                    rest: bytes::Bytes::new(),
                },
            )
        });
        let mut done = 0;
        let mut failure = None;
        while let Some(chunk) = content.next().await {
            match chunk {
                Ok(chunk) => {
                    done += chunk.len() as u64;
                    if done > descriptor.size {
                        let what = format!("layer {} of {}", descriptor.digest, self.reference);
                        failure = Some(Error::malformed(what, "it is larger than its descriptor says"));
                        break;
                    }
                    progress.tell(Event::Downloading {
                        layer: descriptor.digest,
                        done,
                        total: descriptor.size,
                    });
                    // The writer ends early only when it failed, which it tells below.
                    if sender.send(chunk).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    failure = Some(self.broken_off(&error));
                    break;
                }
            }
        }
        drop(sender);
        let staged = writing.await.unwrap_or_else(|error| {
            Err(Error::Io {
                what: "cannot write a layer".to_owned(),
                cause: Arc::new(io::Error::other(error)),
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let staged = staged?;
        if staged.size < descriptor.size {
            return Err(self.unreachable("the transfer broke off"));
        }
        expect_digest(&staged, &descriptor.digest)?;
        Ok(staged)
    }

    fn broken_off(&self, error: &io::Error) -> Error {
        let text = chain(error);
        if text.contains("digest") {
            return self.registry(format!("what it sends is not what it promised: {text}"));
        }
        self.unreachable(format!("the transfer broke off: {text}"))
    }

    fn unreachable(&self, reason: impl Into<String>) -> Error {
        Error::Unreachable {
            registry: self.reference.registry().to_owned(),
            reference: self.reference.clone(),
            reason: reason.into(),
        }
    }

    fn registry(&self, reason: impl Into<String>) -> Error {
        Error::Registry {
            registry: self.reference.registry().to_owned(),
            reference: self.reference.clone(),
            reason: reason.into(),
        }
    }

    fn not_found(&self, reason: impl Into<String>) -> Error {
        Error::NotFound {
            registry: self.reference.registry().to_owned(),
            reference: self.reference.clone(),
            reason: reason.into(),
        }
    }

    fn unauthorized(&self, reason: impl Into<String>) -> Error {
        let mut reason = reason.into();
        if reason.is_empty() {
            "the login was not accepted".clone_into(&mut reason);
        }
        Error::Unauthorized {
            registry: self.reference.registry().to_owned(),
            reference: self.reference.clone(),
            reason,
        }
    }

    /// What the client says, sorted by what one can do about it.
    fn failure(&self, error: OciDistributionError) -> Error {
        use OciDistributionError as Oci;
        let anonymous = matches!(self.auth, RegistryAuth::Anonymous);
        let refused = if anonymous {
            "it wants a login"
        } else {
            "the login was not accepted"
        };
        match error {
            Oci::RequestError(error) if error.is_connect() || error.is_timeout() || error.is_request() => {
                self.unreachable(chain(&error))
            }
            Oci::UnauthorizedError { .. }
            | Oci::AuthenticationFailure(_)
            | Oci::ServerError { code: 401 | 403, .. } => self.unauthorized(refused),
            Oci::ImageManifestNotFoundError(reason) => self.not_found(reason),
            Oci::RegistryError { envelope, .. } => {
                let words: Vec<&str> = envelope.errors.iter().map(|error| &*error.message).collect();
                let words = words.join(", ");
                match envelope.errors.first().map(|error| &error.code) {
                    Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => self.unauthorized(words),
                    Some(
                        OciErrorCode::ManifestUnknown
                        | OciErrorCode::NameUnknown
                        | OciErrorCode::NotFound
                        | OciErrorCode::BlobUnknown
                        | OciErrorCode::ManifestBlobUnknown,
                    ) => self.not_found(words),
                    _ => self.registry(words),
                }
            }
            Oci::ServerError { code: 404, .. } => self.not_found("it answers with status 404"),
            Oci::ServerError { code, message, .. } => {
                let words: String = message.trim().chars().take(200).collect();
                self.registry(format!("it answers with status {code}: {words}"))
            }
            other => self.registry(chain(&other)),
        }
    }
}

/// An error with its causes, each said once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

fn client(reference: &Reference) -> Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // Another part of the program may have chosen already; either is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let mut config = ClientConfig {
        connect_timeout: Some(CONNECT_PATIENCE),
        read_timeout: Some(READ_PATIENCE),
        user_agent: concat!("moorline/", env!("CARGO_PKG_VERSION")),
        ..ClientConfig::default()
    };
    if reference.is_loopback() {
        config.protocol = ClientProtocol::Http;
        // A proxy of the environment would look for the registry on its own machine; naming one that is never used is how
        // this client is told to use none.
        config.http_proxy = Some("http://127.0.0.1:9".to_owned());
        config.no_proxy = Some("localhost,127.0.0.0/8".to_owned());
    }
    Client::new(config)
}

/// What comes in chunks, for one who reads.
struct Chunks {
    chunks: tokio::sync::mpsc::Receiver<bytes::Bytes>,
    rest: bytes::Bytes,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.rest = chunk,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.rest.len());
        buffer[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}
