//! Requests that the server makes to itself: the same way as a client's, without a socket and with every right.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::HeaderMap;
use moorline_machinery::{
    decode::FieldValidation,
    gvk::{GroupVersionResource, split_api_version},
    meta,
    status::{ApiError, Reason},
};
use serde_json::Value;

use super::{
    Asides, Call, WriteOptions,
    delete::{self, DeleteOptions, Deleted},
    update::{Changed, change_object},
    write::{self, Managed, Written},
};
use crate::{
    admission::Operation,
    auth::User,
    core::Core,
    custom,
    negotiate::{Answer, Encoding, Form},
    path::{ResourcePath, Verb},
    query::Query,
    resource::ResourceType,
};

static SERVER: LazyLock<User> = LazyLock::new(User::server);
static NO_HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
/// Nobody hears what is said to the server itself, and nothing is kept here: only answers to requests are.
static NOWHERE: LazyLock<Asides> = LazyLock::new(Asides::default);
static NO_QUERY: LazyLock<Query> = LazyLock::new(Query::default);

/// The name under which the server itself owns fields.
const MANAGER: &str = "moorline-apiserver";

fn resource(core: &Core, api_version: &str, plural: &str) -> Result<Arc<ResourceType>, ApiError> {
    let (group, version) = split_api_version(api_version).unwrap_or_default();
    let gvr = GroupVersionResource::new(group, version, plural);
    core.registry.find(&gvr).ok_or_else(ApiError::path_not_found)
}

fn path(namespace: &str, name: &str, subresource: &str) -> ResourcePath {
    ResourcePath {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
        ..ResourcePath::default()
    }
}

fn call<'c>(core: &'c Arc<Core>, resource: &Arc<ResourceType>, path: &'c ResourcePath, verb: Verb) -> Call<'c> {
    Call {
        core,
        resource: Arc::clone(resource),
        path,
        verb,
        query: &NO_QUERY,
        headers: &NO_HEADERS,
        user: &SERVER,
        answer: Answer {
            form: Form::Whole,
            encoding: Encoding::Json,
        },
        body: Bytes::new(),
        asides: &NOWHERE,
    }
}

fn options() -> WriteOptions {
    WriteOptions {
        dry_run: false,
        manager: MANAGER.to_owned(),
        validation: FieldValidation::default(),
    }
}

/// An object, if it is there.
pub(crate) fn get(core: &Core, api_version: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
    let resource = resource(core, api_version, plural).ok()?;
    let record = core.store.get(&resource.key(namespace, name))?;
    Some(custom::served_now(&resource, &record))
}

/// Creates an object unless one of its name is there.
pub(crate) async fn ensure(
    core: &Arc<Core>,
    api_version: &str,
    plural: &str,
    namespace: &str,
    mut object: Value,
) -> Result<(), ApiError> {
    let resource = resource(core, api_version, plural)?;
    if core
        .store
        .get(&resource.key(namespace, meta::of(&object).name()))
        .is_some()
    {
        return Ok(());
    }
    let path = path(namespace, "", "");
    let call = call(core, &resource, &path, Verb::Create);
    resource.conform(&mut object)?;
    match write::create_object(&call, object, Managed::NotYet, &options(), &mut Vec::new()).await {
        Err(error) if error.reason() != Reason::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Replaces an object as a PUT does.
pub(crate) async fn replace(core: &Arc<Core>, api_version: &str, plural: &str, object: Value) -> Result<(), ApiError> {
    put(core, &resource(core, api_version, plural)?, "", object).await
}

/// Replaces the status of an object.
pub(crate) async fn replace_status(
    core: &Arc<Core>,
    api_version: &str,
    plural: &str,
    object: Value,
) -> Result<(), ApiError> {
    put(core, &resource(core, api_version, plural)?, "status", object).await
}

/// Writes which finalizers keep a namespace; without any it goes.
pub(crate) async fn finalize_namespace(core: &Arc<Core>, namespace: Value) -> Result<(), ApiError> {
    put(core, &resource(core, "v1", "namespaces")?, "finalize", namespace).await
}

async fn put(core: &Arc<Core>, resource: &Arc<ResourceType>, subresource: &str, object: Value) -> Result<(), ApiError> {
    let meta = meta::of(&object);
    let path = path(meta.namespace(), meta.name(), subresource);
    let call = call(core, resource, &path, Verb::Update);
    let change = |_: &Value| {
        Ok(Changed {
            object: object.clone(),
            managed: Managed::NotYet,
        })
    };
    change_object(&call, &options(), Operation::Update, &mut Vec::new(), change)
        .await
        .map(|_| ())
}

/// Changes an object as long as it is the one of this UID; nothing happens to another of the same name.
pub(crate) async fn change(
    core: &Arc<Core>,
    resource: &Arc<ResourceType>,
    namespace: &str,
    name: &str,
    uid: &str,
    edit: impl Fn(&mut Value) + Send + Sync,
) -> Result<Option<Written>, ApiError> {
    let path = path(namespace, name, "");
    let call = call(core, resource, &path, Verb::Patch);
    let change = |old: &Value| {
        if meta::of(old).uid() != uid {
            return Err(ApiError::not_found(&resource.group_resource(), name));
        }
        let mut object = old.clone();
        edit(&mut object);
        Ok(Changed {
            object,
            managed: Managed::NotYet,
        })
    };
    match change_object(&call, &options(), Operation::Update, &mut Vec::new(), change).await {
        Err(error) if error.code() == 404 => Ok(None),
        result => result.map(Some),
    }
}

/// Deletes an object; that it is gone already is as good.
pub(crate) async fn delete(
    core: &Arc<Core>,
    api_version: &str,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    let resource = resource(core, api_version, plural)?;
    match delete_as(core, &resource, namespace, name).await {
        Err(error) if error.code() != 404 => Err(error),
        _ => Ok(()),
    }
}

/// Deletes an object of a resource, what it owns following in the background.
pub(crate) async fn delete_as(
    core: &Arc<Core>,
    resource: &Arc<ResourceType>,
    namespace: &str,
    name: &str,
) -> Result<Deleted, ApiError> {
    delete_with(core, resource, namespace, name, DeleteOptions::default()).await
}

/// Deletes an object under options.
pub(crate) async fn delete_with(
    core: &Arc<Core>,
    resource: &Arc<ResourceType>,
    namespace: &str,
    name: &str,
    options: DeleteOptions,
) -> Result<Deleted, ApiError> {
    let path = path(namespace, name, "");
    let call = call(core, resource, &path, Verb::Delete);
    delete::delete_object(&call, name, &options, &mut Vec::new()).await
}
