//! One local store of OCI images: pulled from a registry, imported, or built from a recipe of Debian packages.
//!
//! ```text
//!   registry ──pull──┐
//!   archive ─import──┤   work/…            blobs/, layers/, index.json
//!   recipe ──build───┼──► staged, checked ──────────────► Image { config, layers }
//!   program ─────────┘    and synced        one rename        │
//!                                                             └──► lowerdirs of a container
//! ```
//!
//! The store is an OCI image layout that other tools can read, with each layer unpacked once beside it, ready to be
//! stacked by overlayfs.
//!
//! Guarantees:
//! - An image that is listed is there completely, and its content is what its digests say.
//! - A crash at any point leaves nothing that the next opening does not clean.
//! - What a name or a pin leads to is never collected.
//! - Foreign content cannot write outside its layer, and reading it takes bounded memory.
//! - An image is fetched once for all who ask at the same time; a layer is kept once for all images that have it.
//! - A recipe gives an image no name that claims another version than it contains.
//!
//! Assumes that file locks work where the store lies, and that overlayfs can use its directories: as root they carry the
//! owners and attributes of the image, without root all files are the user's and device nodes are missing.

#![forbid(unsafe_code)]

mod apt;
mod build;
mod compression;
mod credentials;
mod digest;
mod error;
mod executable;
mod export;
mod flights;
mod image;
mod import;
mod layout;
mod model;
mod pack;
mod progress;
mod pull;
mod recipe;
mod reference;
mod staging;
mod store;
mod unpack;

pub use credentials::Credentials;
pub use digest::{Digest, ParseDigestError};
pub use error::{Error, Result};
pub use export::ArchiveFormat;
pub use image::Image;
pub use model::ImageConfig;
pub use progress::{Event, Progress};
pub use recipe::Recipe;
pub use reference::{Reference, Version};
pub use staging::Origin;
pub use store::{DiskUsage, ImageStore, Options, Order, PullPolicy, Removed};
