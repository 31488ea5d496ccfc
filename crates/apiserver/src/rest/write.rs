//! Create, and the stages that every write goes through.

use std::sync::Arc;

use futures_util::future::{BoxFuture, ready};
use http::{Response, StatusCode};
use moorline_machinery::{
    apply::{self, Applied, ApplyError, FieldSet, Force, Kind, Rescaled, Writer},
    field::FieldError,
    meta::{self, Birth, Look, Scope},
    names::NameRule,
    status::{ApiError, Cause, Reason},
    time,
};
use moorline_store::{Record, WriteError};
use serde_json::Value;

use super::{Call, WriteOptions, internal, options};
use crate::{
    admission::{Attributes, Operation},
    auth::rbac::RbacKind,
    body::Body,
    builtin::{
        conform::Purpose,
        service_addresses::{AssignError, Reservation},
    },
    custom,
    resource::ResourceType,
    respond,
    strategy::ScalePaths,
};

/// How often a generated name that is taken is generated anew.
const NAME_ATTEMPTS: usize = 8;

/// What a write came to.
pub(crate) enum Written {
    /// The object is stored like this.
    Stored(Arc<Record>),
    /// The object would be stored like this, or went while it was written.
    Only(Value),
}

impl Call<'_> {
    pub(crate) async fn answer_written(
        &self,
        status: StatusCode,
        written: Written,
        warnings: &[String],
    ) -> Result<Response<Body>, ApiError> {
        let mut response = match written {
            Written::Stored(record) => self.answer_record(status, &record).await?,
            Written::Only(object) => self.answer_object(status, object),
        };
        for warning in warnings {
            respond::warn(&mut response, warning);
        }
        Ok(response)
    }

    /// Gives a service its addresses; other kinds need none.
    pub(crate) fn reserve(&self, object: &mut Value, old: Option<&Value>) -> Result<Option<Reservation<'_>>, ApiError> {
        if !self.is_service() {
            return Ok(None);
        }
        let assigned = self.core.addresses.assign(object, old);
        assigned.map(Some).map_err(|error| match error {
            AssignError::Invalid(errors) => {
                ApiError::invalid(&self.resource.group_kind(), meta::of(object).name(), &errors)
            }
            AssignError::Exhausted(why) => ApiError::internal(why),
        })
    }

    /// Takes back what a deleted object held: a service its addresses, and the endpoints of its name, whoever wrote them.
    pub(crate) fn release<'o>(&'o self, object: &'o Value) -> BoxFuture<'o, ()> {
        if !self.is_service() {
            return Box::pin(ready(()));
        }
        self.core.addresses.release(object);
        Box::pin(async move {
            let (namespace, name) = (meta::of(object).namespace(), meta::of(object).name());
            if let Err(error) = internal::delete(self.core, "v1", "endpoints", namespace, name).await {
                tracing::warn!(namespace, name, %error, "the endpoints of a deleted service stay");
            }
        })
    }

    fn is_service(&self) -> bool {
        self.resource.gvr.group.is_empty() && &*self.resource.gvr.resource == "services"
    }

    pub(crate) fn scope(&self) -> Scope<'_> {
        if self.resource.namespaced {
            Scope::Namespace(&self.path.namespace)
        } else {
            Scope::Cluster
        }
    }
}

/// POST to a collection.
pub(crate) async fn create(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    options::Writing::of(call.headers)?;
    let options = WriteOptions::parse(call)?;
    let mut warnings = Vec::new();
    let object = options::object(call, &options, &mut warnings)?;
    let written = create_object(call, object, Managed::NotYet, &options, &mut warnings).await;
    let written = call.asides.keep(written, &mut warnings)?;
    call.answer_written(StatusCode::CREATED, written, &warnings).await
}

/// Whether the managed fields of an object to be written are in order already, as after a server-side apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Managed {
    Already,
    NotYet,
}

/// Creates a decoded object.
pub(crate) async fn create_object(
    call: &Call<'_>,
    template: Value,
    managed: Managed,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Written, ApiError> {
    let (core, resource) = (call.core, &call.resource);
    if let Some(reason) = resource.strategy.creation_refused() {
        return Err(ApiError::new(405, Reason::MethodNotAllowed, reason));
    }
    let uid = core.world.uid();
    for attempt in 1.. {
        let mut object = template.clone();
        let suffix = meta::name_suffix(core.world.random());
        let birth = Birth {
            now: core.world.now(),
            uid: &uid,
            name_suffix: &suffix,
            scope: call.scope(),
        };
        meta::prepare_for_create(&mut object, &birth, resource.strategy.generation())?;
        let generated = meta::of(&template).name().is_empty() && !meta::of(&object).name().is_empty();
        resource.default(&mut object);
        // Nobody comes to own what admission and the kind itself add from here on.
        if managed == Managed::NotYet {
            own(call, None, &mut object, options);
        }
        let attributes = Attributes {
            call,
            operation: Operation::Create,
            name: meta::of(&object).name().to_owned(),
            old: None,
            dry_run: options.dry_run,
            options: options.as_object("CreateOptions"),
        };
        core.admission.mutate(&attributes, &mut object, warnings).await?;
        resource.default(&mut object);
        resource.strategy.prepare_create(&mut object);
        if resource.has_status() {
            resource.strategy.drop_status(&mut object);
        }
        // What is stored is read with its defaults, also with those that follow from what the kind just added.
        resource.default(&mut object);
        resource
            .strategy
            .conform(&mut object, Purpose::Store)
            .map_err(ApiError::bad_request)?;
        permit_roles(call, &object, None)?;
        name_requester(call, &mut object);
        let reservation = call.reserve(&mut object, None)?;
        validate_new(resource, &object, call.scope())?;
        warn(warnings, resource.strategy.warnings(&object, None));
        let _claim = core.admission.validate(&attributes, &object, warnings).await?;
        let name = meta::of(&object).name().to_owned();
        match store_new(call, &object, &name, options.dry_run).await {
            Err(error) if generated && error.reason() == Reason::AlreadyExists => {
                if attempt == NAME_ATTEMPTS {
                    return Err(ApiError::generated_name_taken(&resource.group_resource(), &name));
                }
            }
            Ok(None) => return Ok(Written::Only(object)),
            Ok(Some(record)) => {
                if let Some(reservation) = reservation {
                    reservation.keep();
                }
                return Ok(Written::Stored(record));
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("the last attempt returns")
}

/// Says what has not been said yet: a write that is tried again meets the same things again.
pub(crate) fn warn(warnings: &mut Vec<String>, more: Vec<String>) {
    for warning in more {
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
}

/// Nobody gives away rights that they do not have.
pub(crate) fn permit_roles(call: &Call<'_>, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if &*call.resource.gvr.group != "rbac.authorization.k8s.io" {
        return Ok(());
    }
    let Some(kind) = RbacKind::of_resource(&call.resource.gvr.resource) else {
        return Ok(());
    };
    let name = meta::of(object).name();
    call.core
        .authorizer
        .permit_write(call.user, kind, &call.path.namespace, name, object, old)
}

/// Writes into a certificate request who asks for it, whatever the request says: signers decide by that.
fn name_requester(call: &Call<'_>, object: &mut Value) {
    let gvr = &call.resource.gvr;
    if &*gvr.group != "certificates.k8s.io" || &*gvr.resource != "certificatesigningrequests" {
        return;
    }
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    if let Ok(Value::Object(user)) = serde_json::to_value(call.user) {
        spec.extend(user);
    }
}

/// Stores a new object, unless only the attempt is wanted.
async fn store_new(
    call: &Call<'_>,
    object: &Value,
    name: &str,
    dry_run: bool,
) -> Result<Option<Arc<Record>>, ApiError> {
    let (core, resource) = (call.core, &call.resource);
    let key = resource.key(&call.path.namespace, name);
    let value = custom::to_stored(resource, object).await?;
    if !dry_run {
        let committed = core
            .store
            .create(key, value)
            .await
            .map_err(|error| refused(resource, name, &error))?;
        return Ok(Some(committed.into_record()));
    }
    match core.store.get(&key) {
        Some(_) => Err(ApiError::already_exists(&resource.group_resource(), name)),
        None => Ok(None),
    }
}

/// Who writes through which door, for the managed fields.
struct Door {
    api_version: String,
    now: String,
    reset: FieldSet,
}

impl Door {
    fn new(call: &Call<'_>) -> Self {
        Self {
            api_version: call.resource.gvk.api_version(),
            now: time::format(call.core.world.now()),
            reset: reset_fields(call),
        }
    }

    fn writer<'d>(&'d self, call: &'d Call<'_>, options: &'d WriteOptions) -> Writer<'d> {
        Writer {
            manager: &options.manager,
            api_version: &self.api_version,
            subresource: &call.path.subresource,
            now: &self.now,
            reset: &self.reset,
        }
    }
}

/// What a door does not write: the status at the object, all else at its status.
fn reset_fields(call: &Call<'_>) -> FieldSet {
    let (resource, door) = (&call.resource, call.path.subresource.as_str());
    let fields = resource.strategy.resets(door, resource.has_status());
    FieldSet::of_fields(fields.iter().copied())
}

fn kind(resource: &ResourceType) -> Kind<'_> {
    Kind {
        schema: resource.schema.get(),
        empty: resource.empty(),
    }
}

/// Records who wrote which fields.
pub(crate) fn own(call: &Call<'_>, old: Option<&Value>, new: &mut Value, options: &WriteOptions) {
    let door = Door::new(call);
    apply::update(old, new, &door.writer(call, options), &kind(&call.resource));
}

/// Records who wrote the number of replicas through the scale of an object.
pub(crate) fn own_scale(call: &Call<'_>, old: &Value, new: &mut Value, options: &WriteOptions, paths: &ScalePaths) {
    let door = Door::new(call);
    let field = paths.spec.trim_start_matches('/').replace('/', ".");
    let number = |object: &Value| object.pointer(&paths.spec).and_then(Value::as_i64).unwrap_or(0);
    let rescaled = match (number(old), number(new)) {
        (before, after) if before == after => Rescaled::No,
        (_, 0) => Rescaled::ToNothing,
        _ => Rescaled::Yes,
    };
    let replicas = FieldSet::of_fields([field.as_str()]);
    apply::rescale(old, new, &door.writer(call, options), &replicas, rescaled);
}

/// What a server-side apply makes of an object.
pub(crate) fn applied(
    call: &Call<'_>,
    old: Option<&Value>,
    wanted: &Value,
    options: &WriteOptions,
    force: Force,
) -> Result<Value, ApiError> {
    let door = Door::new(call);
    let resource = &call.resource;
    match apply::apply(old, wanted, force, &door.writer(call, options), &kind(resource)) {
        Ok(Applied::Changed(mut object)) => {
            // What was applied is compared as it was written; only what comes of it takes the form of the kind.
            resource.strategy.conform(&mut object, Purpose::Read).map_err(|why| {
                let what = apply::identity(wanted);
                ApiError::unknown(format!(
                    "failed to convert new object ({what}) to proper version: {why}"
                ))
            })?;
            Ok(object)
        }
        Ok(Applied::Unchanged) => Ok(old.cloned().unwrap_or_else(|| wanted.clone())),
        Err(ApplyError::Conflicts(conflicts)) => {
            let causes = conflicts.iter().map(|conflict| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: conflict.message(),
                field: conflict.field(),
            });
            Err(ApiError::apply_conflict(conflicts.to_string(), causes.collect()))
        }
        Err(ApplyError::BadRequest(message)) => Err(ApiError::bad_request(message)),
        Err(ApplyError::Untyped(message)) => Err(ApiError::unknown(message)),
    }
}

/// Refuses an applied object that says what its schema does not know.
pub(crate) fn check_applied(call: &Call<'_>, wanted: &Value) -> Result<(), ApiError> {
    apply::check(wanted, &kind(&call.resource)).map_err(|error| ApiError::unknown(error.to_string()))
}

/// Everything that is wrong with a new object, at once; then what all kinds have in common.
fn validate_new(resource: &ResourceType, object: &Value, scope: Scope<'_>) -> Result<(), ApiError> {
    let strategy = &resource.strategy;
    let look = strategy.first_look();
    let mut errors = look.map_or_else(Vec::new, |look| look.find(object, object, scope, strategy.name_rule()));
    errors.extend(strategy.validate(object));
    refuse_invalid(resource, object, &errors)?;
    refuse_invalid(resource, object, &meta::validate(object, scope, NameRule::PathSegment))
}

/// Everything that is wrong with a change, at once.
pub(crate) fn validate_change(call: &Call<'_>, object: &Value, old: &Value) -> Result<(), ApiError> {
    let (resource, scope) = (&call.resource, call.scope());
    let status_only = call.path.subresource == "status";
    let mut errors = meta::validate(object, scope, NameRule::PathSegment);
    errors.extend(meta::validate_update(object, old));
    let mut findings = if status_only {
        resource.strategy.validate_status_update(object, old)
    } else {
        resource.strategy.validate_update(object, old)
    };
    for look in resource.strategy.looks(status_only) {
        errors.extend(look.find(object, old, scope, resource.strategy.name_rule()));
        if matches!(look, Look::Whole(_)) {
            errors.append(&mut findings.object);
        }
    }
    errors.append(&mut findings.object);
    errors.append(&mut findings.change);
    refuse_invalid(resource, object, &errors)
}

/// Refuses an object that breaks rules, naming all of them.
pub(crate) fn refuse_invalid(resource: &ResourceType, object: &Value, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(
        &resource.group_kind(),
        meta::of(object).name(),
        errors,
    ))
}

/// Why the store did not take a write, in the words of the API.
pub(crate) fn refused(resource: &ResourceType, name: &str, error: &WriteError) -> ApiError {
    let resource = resource.group_resource();
    match error {
        WriteError::AlreadyExists { .. } => ApiError::already_exists(&resource, name),
        WriteError::NotFound { .. } => ApiError::not_found(&resource, name),
        WriteError::Conflict { .. } => ApiError::modified(&resource, name),
        WriteError::TooLarge { limit, .. } => ApiError::request_entity_too_large(*limit),
        WriteError::StorageFull(_) | WriteError::Unavailable(_) | WriteError::Closed => {
            ApiError::service_unavailable(format!("{resource} {name:?} was not written: {error}"))
        }
        WriteError::WrittenTwice { .. } => ApiError::internal(error),
    }
}
