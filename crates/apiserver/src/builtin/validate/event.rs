//! Events of both APIs.

use moorline_machinery::names;

use super::at::{At, Errors};

/// An event of the core group. Those that the newer API wrote are held to its rules.
pub(super) fn event(object: &At<'_>, errors: &mut Errors) {
    let (metadata, involved) = (object.at("metadata"), object.at("involvedObject"));
    let (namespace, of) = (metadata.at("namespace").text().to_owned(), involved.at("namespace"));
    let is_new = object.at("eventTime").is_set();
    // An event about an object of the cluster lies in the default namespace, one of the newer kind perhaps elsewhere.
    let matches = match of.text() {
        "" if is_new => matches!(namespace.as_str(), "default" | "kube-system"),
        "" => matches!(namespace.as_str(), "" | "default"),
        given => is_new || given == namespace,
    };
    if !matches {
        of.invalid_as(errors, of.text(), "does not match event.namespace");
    }
    if is_new {
        origin(object, "reportingComponent", errors);
        text(object, "message", "message", 1024, Need::Optional, errors);
    }
}

/// What an event of the newer kind says of who tells it, and why.
fn origin(object: &At<'_>, controller: &str, errors: &mut Errors) {
    let controller = object.at(controller);
    if controller.text().is_empty() {
        controller.missing(errors, "");
    }
    controller.follow(errors, names::qualified_name);
    for field in ["reportingInstance", "action", "reason"] {
        text(object, field, field, 128, Need::Required, errors);
    }
}

/// An event of the newer API, at whose creation more is asked.
pub(super) fn new_event(object: &At<'_>, errors: &mut Errors) {
    if !super::is_new(object) {
        return;
    }
    if !object.at("eventTime").is_set() {
        object.at("eventTime").missing(errors, "");
    }
    let kind = object.at("type");
    if !matches!(kind.text(), "Normal" | "Warning") {
        kind.invalid_as(errors, "", format!("has invalid value: {}", kind.text()));
    }
    for old in ["deprecatedFirstTimestamp", "deprecatedLastTimestamp"] {
        if object.at(old).is_set() {
            let name = if old.contains("First") {
                "firstTimestamp"
            } else {
                "lastTimestamp"
            };
            object.at(name).invalid_as(errors, "", "needs to be unset");
        }
    }
    if object.at("deprecatedCount").number() != 0 {
        object.at("count").invalid_as(errors, "", "needs to be unset");
    }
    let source = object.at("deprecatedSource");
    if !source.at("component").text().is_empty() || !source.at("host").text().is_empty() {
        object.at("source").invalid_as(errors, "", "needs to be unset");
    }
    origin(object, "reportingController", errors);
    text(object, "note", "message", 1024, Need::Optional, errors);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Required,
    Optional,
}

fn text(object: &At<'_>, field: &str, shown: &str, most: usize, need: Need, errors: &mut Errors) {
    let value = object.at(field).text();
    let at = object.at(shown);
    if value.is_empty() && need == Need::Required {
        at.missing(errors, "");
    }
    if value.len() > most {
        at.invalid_as(errors, "", format!("can have at most {most} characters"));
    }
}
