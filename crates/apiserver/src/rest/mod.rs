//! One generic handler for all resources: what a request does to the store, from decoded options to an answer.

mod collection;
pub(crate) mod delete;
pub(crate) mod form;
pub(crate) mod internal;
mod options;
mod patch;
mod read;
pub(crate) mod scale;
mod special;
mod update;
mod watch;
mod write;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use moorline_machinery::{
    field::{FieldError, Path},
    meta,
    status::ApiError,
    table::{Headers, IncludeObject},
};
use moorline_store::{Key, Record};
use serde_json::{Value, json};

pub(crate) use options::WriteOptions;

use crate::{
    auth::User,
    body::Body,
    builtin,
    core::Core,
    custom,
    negotiate::{Answer, Form, Number},
    path::{ResourcePath, Verb},
    query::{ListOptions, Query},
    resource::ResourceType,
    respond,
};
use form::ObjectForm;

/// A request about a resource, understood and permitted.
pub(crate) struct Call<'c> {
    pub(crate) core: &'c Arc<Core>,
    pub(crate) resource: Arc<ResourceType>,
    pub(crate) path: &'c ResourcePath,
    pub(crate) verb: Verb,
    pub(crate) query: &'c Query,
    pub(crate) headers: &'c HeaderMap,
    pub(crate) user: &'c User,
    pub(crate) answer: Answer,
    pub(crate) body: Bytes,
    /// What is said besides the answer, also when that is a refusal.
    pub(crate) asides: &'c Asides,
}

/// Warnings of a write that was refused. One that went through carries its own.
#[derive(Default)]
pub(crate) struct Asides(Mutex<Vec<String>>);

impl Asides {
    /// Keeps the warnings of a write that failed.
    pub(crate) fn keep<T>(&self, result: Result<T, ApiError>, warnings: &mut Vec<String>) -> Result<T, ApiError> {
        if result.is_err() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).append(warnings);
        }
        result
    }

    /// What was said.
    pub(crate) fn into_warnings(self) -> Vec<String> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call<'_> {
    pub(crate) fn key(&self) -> Key {
        Key::new(
            &self.resource.storage,
            self.path.namespace.as_str(),
            self.path.name.as_str(),
        )
    }

    fn form(&self) -> ObjectForm {
        let include = self.query.get("includeObject").unwrap_or_default();
        ObjectForm {
            core: Arc::clone(self.core),
            resource: Arc::clone(&self.resource),
            form: self.answer.form,
            include: IncludeObject::parse(include).unwrap_or_default(),
        }
    }

    /// The answer that carries one object.
    fn answer_object(&self, status: StatusCode, object: Value) -> Response<Body> {
        respond::value(status, &self.form().shape(object, Headers::Shown), self.answer.encoding)
    }

    async fn answer_record(&self, status: StatusCode, record: &Arc<Record>) -> Result<Response<Body>, ApiError> {
        if self.form().is_as_stored(record.mod_revision()) {
            return Ok(respond::json(
                status,
                self.resource.prefix.whole(record.value()),
                self.answer.encoding,
            ));
        }
        Ok(self.answer_object(status, self.core.object_of(&self.resource, record).await?))
    }
}

/// Carries a request through.
pub(crate) async fn handle(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    if let Some(answer) = special::handle(call).await {
        return answer;
    }
    check_form(call)?;
    match (call.verb, call.path.subresource.as_str()) {
        (Verb::Get, "" | "status" | "approval" | "ephemeralcontainers" | "resize") => {
            let version = wanted_version(call)?;
            call.answer_record(StatusCode::OK, &read::get(call, version)?).await
        }
        (Verb::List, _) => list(call).await,
        (Verb::Watch, _) => {
            let options = ListOptions::parse(call.query, true)?;
            let events = watch::watch(call, &options, call.form())?;
            Ok(respond::events(Body::stream(events)))
        }
        (Verb::Create, "") => write::create(call).await,
        (Verb::Update, "" | "status" | "finalize" | "approval" | "ephemeralcontainers" | "resize") => {
            update::update(call).await
        }
        (Verb::Patch, "" | "status" | "approval" | "ephemeralcontainers" | "resize") => patch::patch(call).await,
        (Verb::Delete, "") => delete::delete(call).await,
        (Verb::DeleteCollection, "") => collection::delete_collection(call).await,
        (Verb::Get | Verb::Update | Verb::Patch, "scale") => scale::handle(call).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// The version that a read of one object wants to see at least.
fn wanted_version(call: &Call<'_>) -> Result<Option<u64>, ApiError> {
    let given = call.query.get("resourceVersion").filter(|version| !version.is_empty());
    let parsed = given.map(|given| {
        given.parse().map_err(|_| {
            let why = meta::not_a_version(given);
            let why = FieldError::invalid(&Path::root("resourceVersion"), given, why);
            // A real server keeps no cache of events, and only its caches do not see whose fault this is.
            if call.resource.storage == builtin::storage("", "events") {
                ApiError::bad_request(format!("invalid resource version: {why}"))
            } else {
                ApiError::unknown(why.to_string())
            }
        })
    });
    parsed.transpose()
}

/// Refuses to make one out of many, and many out of one.
fn check_form(call: &Call<'_>) -> Result<(), ApiError> {
    let resource = &call.resource;
    match (call.verb, call.answer.form) {
        (Verb::List, Form::Metadata(Number::One)) => {
            Err(ApiError::metadata_of_a_list(&resource.go_type(&resource.list_kind)))
        }
        (Verb::Get, Form::Metadata(Number::Many)) => {
            Err(ApiError::metadata_of_no_list(&resource.go_type(&resource.gvk.kind)))
        }
        _ => Ok(()),
    }
}

async fn list(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let options = ListOptions::parse(call.query, false)?;
    let listed = read::list(call, &options).await?;
    let resource = &call.resource;
    let form = call.form();
    if listed
        .page
        .records
        .iter()
        .all(|record| form.is_as_stored(record.mod_revision()))
        && call.answer.form == Form::Whole
    {
        let bytes = read::whole_list(resource, &listed, resource.strategy.items_carry_type());
        return Ok(respond::json(StatusCode::OK, bytes.freeze(), call.answer.encoding));
    }
    let mut items = custom::served(resource, &listed.page.records).await?;
    if call.answer.form == Form::Whole && !resource.strategy.items_carry_type() {
        for item in items.iter_mut().filter_map(Value::as_object_mut) {
            item.remove("kind");
            item.remove("apiVersion");
        }
    }
    let list = json!({
        "kind": &*resource.list_kind, "apiVersion": resource.gvk.api_version(),
        "metadata": read::list_metadata(resource, &listed), "items": items,
    });
    Ok(respond::value(
        StatusCode::OK,
        &form.shape(list, Headers::Shown),
        call.answer.encoding,
    ))
}
