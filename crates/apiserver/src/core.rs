//! What every part of the server shares: the store, the registry, and the world outside.

use std::sync::Arc;

use jiff::Timestamp;
use moorline_machinery::{
    protobuf::{self, ProtobufError},
    status::ApiError,
};
use moorline_store::{Record, Store};
use serde_json::Value;

use crate::{
    admission::Admission,
    auth::{Authenticator, RoleIndex},
    builtin::{self, service_addresses::ServiceAddresses},
    custom,
    openapi::OpenApi,
    quota::Ledger,
    resource::{Registry, ResourceType},
    streams::Streams,
};

/// The server's shared state.
pub struct Core {
    /// Where everything is kept.
    pub(crate) store: Store,
    /// What is served.
    pub(crate) registry: Registry,
    /// Time and chance.
    pub(crate) world: Arc<dyn World>,
    /// Who is who.
    pub(crate) authenticator: Authenticator,
    /// Who may do what.
    pub(crate) authorizer: RoleIndex,
    /// The certificate that the server is known by.
    pub(crate) authority: String,
    /// The addresses of services.
    pub(crate) addresses: ServiceAddresses,
    /// Who has a say in writes.
    pub(crate) admission: Admission,
    /// What counts for quotas and is not stored yet.
    pub(crate) quotas: Ledger,
    /// What clients are told about kinds, as far as they have asked.
    pub(crate) openapi: Arc<OpenApi>,
    /// The way into running pods.
    pub(crate) streams: Streams,
}

/// What the server cannot know by itself. A simulator has its own.
pub trait World: Send + Sync {
    /// The time of day.
    fn now(&self) -> Timestamp;

    /// A number that nobody can foresee.
    fn random(&self) -> u64;

    /// A new UID.
    fn uid(&self) -> String;
}

/// The world as it is.
pub struct RealWorld;

impl World for RealWorld {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn random(&self) -> u64 {
        uuid::Uuid::new_v4().as_u64_pair().0
    }

    fn uid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
}

impl Core {
    /// A stored object as it is served in a version.
    pub(crate) async fn object_of(&self, resource: &ResourceType, record: &Arc<Record>) -> Result<Value, ApiError> {
        let mut objects = custom::served(resource, std::slice::from_ref(record)).await?;
        Ok(objects.pop().expect("one object for one record"))
    }

    /// A body in Kubernetes' protobuf as JSON.
    pub(crate) fn protobuf(body: &[u8]) -> Result<Value, ProtobufError> {
        protobuf::decode(builtin::schema::facts(), body)
    }
}
