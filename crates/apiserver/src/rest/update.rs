//! Updates of all kinds: read, change, check, swap; and begin again when somebody else was faster.

use http::{Response, StatusCode};
use moorline_machinery::{
    meta::{self, Generation, Scope},
    status::ApiError,
};
use serde_json::Value;

use super::{
    Call, WriteOptions, options,
    write::{self, Managed, Written},
};
use crate::{
    admission::{Attributes, Operation},
    body::Body,
    builtin::conform::Purpose,
    custom,
    resource::ResourceType,
};

/// How often a change that names no resource version is tried again on what somebody else made of the object.
const ATTEMPTS: usize = 16;

/// PUT.
pub(crate) async fn update(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let options = WriteOptions::parse(call)?;
    let mut warnings = Vec::new();
    let object = options::object(call, &options, &mut warnings)?;
    call.asides.keep(check_name(&object, &call.path.name), &mut warnings)?;
    let change = |_: &Value| {
        Ok(Changed {
            object: object.clone(),
            managed: Managed::NotYet,
        })
    };
    if call.core.store.get(&call.key()).is_none() {
        check_missing(call, &object)?;
    }
    if call.core.store.get(&call.key()).is_none() && call.resource.strategy.create_on_update() {
        let written = write::create_object(call, object, Managed::NotYet, &options, &mut warnings).await;
        let written = call.asides.keep(written, &mut warnings)?;
        return call.answer_written(StatusCode::CREATED, written, &warnings).await;
    }
    let written = change_object(call, &options, Operation::Update, &mut warnings, change).await;
    let written = call.asides.keep(written, &mut warnings)?;
    call.answer_written(StatusCode::OK, written, &warnings).await
}

/// A write goes to the object that it names.
fn check_name(object: &Value, expected: &str) -> Result<(), ApiError> {
    match meta::of(object).name() {
        "" => Err(ApiError::bad_request(format!(
            "the name of the object ({expected} based on URL) was undeterminable: name must be provided"
        ))),
        name if name != expected => Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
        _ => Ok(()),
    }
}

/// An object as somebody wants it.
pub(crate) struct Changed {
    pub(crate) object: Value,
    pub(crate) managed: Managed,
}

/// Changes the object that a call is about, by whatever `change` makes of it.
pub(crate) async fn change_object(
    call: &Call<'_>,
    options: &WriteOptions,
    operation: Operation,
    warnings: &mut Vec<String>,
    change: impl Fn(&Value) -> Result<Changed, ApiError>,
) -> Result<Written, ApiError> {
    let (core, resource) = (call.core, &call.resource);
    for attempt in 1.. {
        let key = call.key();
        let Some(record) = core.store.get(&key) else {
            return Err(ApiError::not_found(&resource.group_resource(), &call.path.name));
        };
        let old = core.object_of(resource, &record).await?;
        let Changed {
            object: mut new,
            managed,
        } = change(&old)?;
        let versioned = !matches!(meta::of(&new).resource_version(), "" | "0")
            && meta::of(&new).resource_version() != meta::of(&old).resource_version();
        let unversioned = resource.strategy.unversioned_update();
        check_uid(resource, &new, call.scope(), meta::of(&old).uid())?;
        meta::check_resource_version(&mut new, &old, unversioned, &resource.group_resource())?;
        resource.default(&mut new);
        // Nobody comes to own what admission and the kind itself add from here on.
        if managed == Managed::NotYet {
            own(call, operation, &old, &mut new, options);
        }
        let attributes = Attributes {
            call,
            operation,
            name: call.path.name.clone(),
            old: Some(&old),
            dry_run: options.dry_run,
            options: options.as_object(call.verb.options_kind()),
        };
        core.admission.mutate(&attributes, &mut new, warnings).await?;
        resource.default(&mut new);
        keep_to_door(call, operation, &mut new, &old);
        // What was defaulted takes the form of the kind, so that it compares with what is stored.
        conform(resource, &mut new)?;
        match call.path.subresource.as_str() {
            "" if operation != Operation::Bind => resource.strategy.prepare_update(&mut new, &old),
            "status" => resource.strategy.prepare_status_update(&mut new, &old),
            _ => {}
        }
        conform(resource, &mut new)?;
        // A change that the kind takes back raises no generation, nor does a write of the status, and where a pod runs
        // is nothing that its owner asked for.
        let generation = match (operation, call.path.subresource.as_str()) {
            (Operation::Bind, _) | (_, "status") => Generation::Untracked,
            _ => resource.strategy.generation(),
        };
        meta::prepare_for_update(&mut new, &old, call.scope(), generation)?;
        write::permit_roles(call, &new, Some(&old))?;
        let reservation = call.reserve(&mut new, Some(&old))?;
        keep_times(&mut new, &old);
        match call.path.subresource.as_str() {
            _ if operation == Operation::Bind => {}
            part @ ("ephemeralcontainers" | "resize") => {
                let errors = resource.strategy.validate_part(part, &new, &old);
                write::refuse_invalid(resource, &new, &errors)?;
            }
            part => {
                write::validate_change(call, &new, &old)?;
                if matches!(part, "" | "scale") {
                    write::warn(warnings, resource.strategy.warnings(&new, Some(&old)));
                }
            }
        }
        let _claim = core.admission.validate(&attributes, &new, warnings).await?;
        if unchanged(&new, &old) {
            return Ok(Written::Stored(record));
        }
        let gone = meta::of(&new).is_deleting() && is_free(resource, &new);
        if options.dry_run {
            return Ok(Written::Only(new));
        }
        let seen = record.mod_revision();
        let result = if gone {
            match core.store.delete_at(key, seen).await {
                Ok(_) => {
                    call.release(&new).await;
                    Ok(Written::Only(new))
                }
                Err(error) => Err(error),
            }
        } else {
            let stored = core
                .store
                .update(key, custom::to_stored(resource, &new).await?, seen)
                .await;
            stored.map(|committed| Written::Stored(committed.into_record()))
        };
        match result {
            Err(moorline_store::WriteError::Conflict { .. }) if !versioned && attempt < ATTEMPTS => {}
            Err(error) => return Err(write::refused(resource, &call.path.name, &error)),
            Ok(written) => {
                if let Some(reservation) = reservation {
                    reservation.keep();
                }
                return Ok(written);
            }
        }
    }
    unreachable!("the last attempt returns")
}

/// Whether nothing keeps a deleted object any more.
pub(crate) fn is_free(resource: &ResourceType, object: &Value) -> bool {
    let meta = meta::of(object);
    meta.finalizers().next().is_none()
        && meta.deletion_grace_period_seconds().unwrap_or(0) == 0
        && !resource.strategy.is_held(object)
}

/// What is asked of a PUT of something that is not there, before it is found that it is not.
fn check_missing(call: &Call<'_>, object: &Value) -> Result<(), ApiError> {
    check_uid(&call.resource, object, call.scope(), "")?;
    if !call.resource.strategy.create_on_update() {
        return Ok(());
    }
    match meta::of(object).resource_version() {
        "" => Ok(()),
        given => meta::parse_resource_version(given).map(drop),
    }
}

fn check_uid(resource: &ResourceType, new: &Value, scope: Scope<'_>, found: &str) -> Result<(), ApiError> {
    let wanted = meta::of(new).uid();
    if wanted.is_empty() || wanted == found {
        return Ok(());
    }
    let name = meta::of(new).name();
    let namespace = match scope {
        Scope::Namespace(namespace) => namespace,
        Scope::Cluster => "",
    };
    let place = if namespace.is_empty() {
        String::new()
    } else {
        format!("{namespace}/")
    };
    let folder = match resource.strategy.stored_under() {
        Some(folder) => folder.to_owned(),
        None => format!("{}/{}", resource.gvr.group, resource.gvr.resource),
    };
    let key = format!("/registry/{folder}/{place}{name}");
    Err(ApiError::update_uid_mismatch(
        &resource.group_resource(),
        name,
        &key,
        wanted,
        found,
    ))
}

/// Brings an object into the form in which it is stored.
fn conform(resource: &ResourceType, object: &mut Value) -> Result<(), ApiError> {
    resource
        .strategy
        .conform(object, Purpose::Store)
        .map_err(ApiError::bad_request)
}

/// Records who wrote what through this door. What the door will not let through is nobody's.
fn own(call: &Call<'_>, operation: Operation, old: &Value, new: &mut Value, options: &WriteOptions) {
    match call.path.subresource.as_str() {
        "" => return write::own(call, Some(old), new, options),
        "scale" => {
            if let Some(paths) = call.resource.strategy.scale() {
                write::own_scale(call, old, new, options, &paths);
            }
            return;
        }
        _ => {}
    }
    let mut let_through = new.clone();
    keep_to_door(call, operation, &mut let_through, old);
    write::own(call, Some(old), &mut let_through, options);
    let owners = let_through["metadata"]["managedFields"].take();
    match new.get_mut("metadata").and_then(Value::as_object_mut) {
        Some(metadata) if owners.is_null() => drop(metadata.remove("managedFields")),
        Some(metadata) => drop(metadata.insert("managedFields".to_owned(), owners)),
        None => {}
    }
}

/// A write of a part of an object changes nothing else.
fn keep_to_door(call: &Call<'_>, operation: Operation, new: &mut Value, old: &Value) {
    let resource = &call.resource;
    match call.path.subresource.as_str() {
        "finalize" => keep_all_but(resource, new, old, "/spec/finalizers"),
        "approval" => keep_all_but(resource, new, old, "/status/conditions"),
        part @ ("ephemeralcontainers" | "resize") => resource.strategy.prepare_part(part, new, old),
        // A binding writes both halves of a pod.
        "" if operation == Operation::Bind => {}
        door => separate_status(resource, new, old, door == "status"),
    }
}

/// A write that comes to nothing moves no times either.
fn keep_times(new: &mut Value, old: &Value) {
    let entries = |object: &Value| object["metadata"]["managedFields"].as_array().map(Vec::len);
    if entries(new).is_none() || entries(new) != entries(old) {
        return;
    }
    let but_times = |object: &Value| {
        let mut object = object.clone();
        let entries = object["metadata"]["managedFields"].as_array_mut().into_iter().flatten();
        entries
            .filter_map(Value::as_object_mut)
            .for_each(|entry| drop(entry.remove("time")));
        // Their order follows their times.
        if let Some(entries) = object["metadata"]["managedFields"].as_array_mut() {
            entries.sort_by_cached_key(Value::to_string);
        }
        object
    };
    if new["metadata"]["managedFields"] != old["metadata"]["managedFields"] && but_times(new) == but_times(old) {
        new["metadata"]["managedFields"] = old["metadata"]["managedFields"].clone();
    }
}

/// A write of the status changes nothing else, and any other write does not change the status.
fn separate_status(resource: &ResourceType, new: &mut Value, old: &Value, status_only: bool) {
    if !resource.has_status() {
        return;
    }
    if !status_only {
        match old.get("status") {
            Some(status) => new["status"] = status.clone(),
            None => drop(new.as_object_mut().map(|fields| fields.remove("status"))),
        }
        return;
    }
    let mut kept = old.clone();
    match new.get("status") {
        Some(status) => kept["status"] = status.clone(),
        None => drop(kept.as_object_mut().map(|fields| fields.remove("status"))),
    }
    take_metadata(resource, &mut kept, new);
    *new = kept;
}

/// Takes over of the metadata what a write of the status may change.
fn take_metadata(resource: &ResourceType, kept: &mut Value, new: &Value) {
    let always = ["managedFields", "resourceVersion"];
    for name in always.iter().chain(resource.strategy.status_writes()) {
        match new["metadata"].get(*name) {
            Some(value) => kept["metadata"][*name] = value.clone(),
            None => drop(kept["metadata"].as_object_mut().map(|metadata| metadata.remove(*name))),
        }
    }
}

/// The old object with one field of the new one, and of its metadata what a write of the status may change.
fn keep_all_but(resource: &ResourceType, new: &mut Value, old: &Value, pointer: &str) {
    let wanted = new.pointer(pointer).cloned();
    let given = std::mem::replace(new, old.clone());
    take_metadata(resource, new, &given);
    let (holder, name) = pointer.rsplit_once('/').expect("a pointer names a field");
    let Some(holder) = new.pointer_mut(holder).and_then(Value::as_object_mut) else {
        return;
    };
    match wanted {
        Some(wanted) => drop(holder.insert(name.to_owned(), wanted)),
        None => drop(holder.remove(name)),
    }
}

/// Whether a write would leave everything as it is.
fn unchanged(new: &Value, old: &Value) -> bool {
    new == old
}
