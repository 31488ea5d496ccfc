//! Failures: one constructor for each answer that Kubernetes gives.

use std::fmt;

use super::{Cause, Details, Outcome, Reason, Status};
use crate::{
    field::{self, FieldError, quote},
    gvk::{GroupKind, GroupResource},
};

/// A request that failed, and the `Status` that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError(Box<Status>);

impl std::error::Error for ApiError {}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        *error.0
    }
}

impl ApiError {
    /// A failure of the given code and reason.
    pub fn new(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        let mut status = Status::success(None);
        status.status = Some(Outcome::Failure);
        status.code = code;
        status.reason = reason;
        status.message = message.into();
        ApiError(Box::new(status))
    }

    /// A failure that another server, or a webhook, has put into words.
    pub fn from_status(status: Status) -> Self {
        ApiError(Box::new(Status {
            status: Some(Outcome::Failure),
            ..status
        }))
    }

    /// Says what it is about.
    #[must_use]
    pub fn with_details(mut self, details: Details) -> Self {
        self.0.details = Some(Box::new(details));
        self
    }

    /// Adds a cause.
    #[must_use]
    pub fn with_cause(mut self, reason: &str, message: impl Into<String>, field: impl Into<String>) -> Self {
        let cause = Cause {
            reason: reason.to_owned(),
            message: message.into(),
            field: field.into(),
        };
        self.0.details.get_or_insert_default().causes.push(cause);
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.0.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// The status.
    pub fn status(&self) -> &Status {
        &self.0
    }

    /// The HTTP status code.
    pub fn code(&self) -> u16 {
        self.0.code
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// Whether there is a cause of this reason.
    pub fn has_cause(&self, reason: &str) -> bool {
        self.0
            .details
            .as_ref()
            .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
    }

    /// 404: there is no such object.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        ApiError::new(404, Reason::NotFound, format!("{resource} {} not found", quote(name)))
            .with_details(Details::of(resource, name))
    }

    /// 404: there is nothing at this path.
    pub fn path_not_found() -> Self {
        ApiError::new(
            404,
            Reason::NotFound,
            "the server could not find the requested resource",
        )
        .with_details(Details::default())
    }

    /// 409: the name is taken.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        ApiError::new(
            409,
            Reason::AlreadyExists,
            format!("{resource} {} already exists", quote(name)),
        )
        .with_details(Details::of(resource, name))
    }

    /// 409: every generated name that was tried is taken.
    pub fn generated_name_taken(resource: &GroupResource, name: &str) -> Self {
        let quoted = quote(name);
        let message = format!(
            "{resource} {quoted} already exists, the server was not able to generate a unique name for the object"
        );
        ApiError::new(409, Reason::AlreadyExists, message)
            .with_details(Details::of(resource, name))
            .with_retry_after(1)
    }

    /// 409: the request contradicts the state of the object.
    pub fn conflict(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {why}", quote(name));
        ApiError::new(409, Reason::Conflict, message).with_details(Details::of(resource, name))
    }

    /// 409: the resource version of an update is not the current one.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        ApiError::conflict(resource, name, why)
    }

    /// 409: a delete was meant for another object of the same name. `kind` stands where others name the resource.
    pub fn uid_precondition(kind: &GroupKind, name: &str, wanted: &str, found: &str) -> Self {
        ApiError::conflict(
            &GroupResource::new(kind.group.clone(), kind.kind.clone()),
            name,
            format_args!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({found}). The object might \
                 have been deleted and then recreated"
            ),
        )
    }

    /// 409: a delete was meant for another state of the object.
    pub fn resource_version_precondition(kind: &GroupKind, name: &str, wanted: &str, found: &str) -> Self {
        ApiError::conflict(
            &GroupResource::new(kind.group.clone(), kind.kind.clone()),
            name,
            format_args!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
                 ({found}). The object might have been modified"
            ),
        )
    }

    /// 409: an update carries the uid of another object. The message is that of a store that calls itself `key`.
    pub fn update_uid_mismatch(resource: &GroupResource, name: &str, key: &str, wanted: &str, found: &str) -> Self {
        ApiError::conflict(
            resource,
            name,
            format_args!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
            ),
        )
    }

    /// A deletion that a controller carries out names another object than the one that is there.
    pub fn precondition_failed(resource: &GroupResource, name: &str, field: &str, wanted: &str, found: &str) -> Self {
        ApiError::conflict(
            resource,
            name,
            format_args!("Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"),
        )
    }

    /// 409: fields are owned by other managers.
    pub fn apply_conflict(message: impl Into<String>, causes: Vec<Cause>) -> Self {
        ApiError::new(409, Reason::Conflict, message).with_details(Details {
            causes,
            ..Details::default()
        })
    }

    /// 422: the object breaks rules. Here alone the details name the kind, not the resource.
    pub fn invalid(kind: &GroupKind, name: &str, errors: &[FieldError]) -> Self {
        let mut message = format!("{kind} {} is invalid", quote(name));
        if !errors.is_empty() {
            message.push_str(": ");
            message.push_str(&field::aggregate(errors));
        }
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.kind.reason().to_owned(),
                message: error.body(),
                field: error.field.clone(),
            })
            .collect();
        ApiError::new(422, Reason::Invalid, message).with_details(Details {
            name: name.to_owned(),
            group: kind.group.to_string(),
            kind: kind.kind.to_string(),
            causes,
            ..Details::default()
        })
    }

    /// 403: a rule forbids it.
    pub fn forbidden(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        let message = match (&*resource.resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{resource} is forbidden: {why}"),
            _ => format!("{resource} {} is forbidden: {why}", quote(name)),
        };
        ApiError::new(403, Reason::Forbidden, message).with_details(Details::of(resource, name))
    }

    /// 403: the user lacks the permission.
    pub fn unpermitted(attempt: &Attempt<'_>) -> Self {
        let resource = GroupResource::new(attempt.group, attempt.resource);
        let mut why = attempt
            .words()
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        if !attempt.reason.is_empty() {
            why.push_str(": ");
            why.push_str(attempt.reason);
        }
        ApiError::forbidden(&resource, attempt.name, why)
    }

    /// 403: nothing can be created in a namespace that is being deleted.
    pub fn namespace_terminating(resource: &GroupResource, name: &str, namespace: &str) -> Self {
        let message = format!("namespace {namespace} is being terminated");
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        ApiError::forbidden(resource, name, why).with_cause("NamespaceTerminating", message, "metadata.namespace")
    }

    /// 401: nobody vouches for the caller.
    pub fn unauthorized() -> Self {
        ApiError::new(401, Reason::Unauthorized, "Unauthorized")
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        ApiError::new(400, Reason::BadRequest, message)
    }

    /// 405: the resource does not take this verb.
    pub fn method_not_supported(resource: &GroupResource, verb: &str) -> Self {
        let message = format!(
            "{verb} is not supported on resources of kind {}",
            quote(&resource.to_string())
        );
        ApiError::new(405, Reason::MethodNotAllowed, message).with_details(Details::of(resource, ""))
    }

    /// 405: the path does not take this HTTP method.
    pub fn method_not_allowed() -> Self {
        ApiError::new(
            405,
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
        .with_details(Details::default())
    }

    /// 406: the caller takes none of the forms on offer.
    pub fn not_acceptable<S: AsRef<str>>(accepted: &[S]) -> Self {
        let message = format!(
            "only the following media types are accepted: {}",
            comma_separated(accepted)
        );
        ApiError::new(406, Reason::NotAcceptable, message)
    }

    /// The client asked for the metadata of one object and gets a list. `list` is what Go calls its type.
    pub fn metadata_of_a_list(list: &str) -> Self {
        let message = format!("you requested PartialObjectMetadata, but the requested object is a list (*{list})");
        ApiError::new(406, Reason::NotAcceptable, message)
    }

    /// The client asked for the metadata of a list and gets one object. `object` is what Go calls its type.
    pub fn metadata_of_no_list(object: &str) -> Self {
        let message =
            format!("you requested PartialObjectMetadataList, but the requested object is not a list (*{object})");
        ApiError::new(406, Reason::NotAcceptable, message)
    }

    /// 415: the body is in none of the known forms.
    pub fn unsupported_media_type<S: AsRef<str>>(accepted: &[S]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            comma_separated(accepted)
        );
        ApiError::new(415, Reason::UnsupportedMediaType, message)
    }

    /// 406, as a path says it that offers no such form at all, before anybody looks at what the form is of.
    pub fn not_available<S: AsRef<str>>(available: &[S]) -> Self {
        let message = format!(
            "406: Not Acceptable\n\nAvailable representations: {}",
            comma_separated(available)
        );
        ApiError::new(406, Reason::NotAcceptable, message).with_details(Details::default())
    }

    /// 415, as a path says it that takes no such body at all.
    pub fn not_consumed() -> Self {
        ApiError::new(415, Reason::UnsupportedMediaType, "415: Unsupported Media Type").with_details(Details::default())
    }

    /// 413: the body is too large.
    pub fn request_entity_too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        ApiError::new(413, Reason::RequestEntityTooLarge, message)
    }

    /// 504: it took too long, and may still happen.
    pub fn timeout(message: impl fmt::Display, retry_after_seconds: u32) -> Self {
        ApiError::new(504, Reason::Timeout, format!("Timeout: {message}")).with_retry_after(retry_after_seconds)
    }

    /// 504: the caller asks for a revision that has not happened yet.
    pub fn resource_version_too_large(wanted: u64, current: u64) -> Self {
        ApiError::timeout(
            format_args!("Too large resource version: {wanted}, current: {current}"),
            1,
        )
        .with_cause("ResourceVersionTooLarge", "Too large resource version", "")
    }

    /// 500: it cannot be done right now.
    pub fn server_timeout(resource: &GroupResource, operation: &str, retry_after_seconds: u32) -> Self {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        ApiError::new(500, Reason::ServerTimeout, message)
            .with_details(Details::of(resource, operation))
            .with_retry_after(retry_after_seconds)
    }

    /// 429: ask less often.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        ApiError::new(429, Reason::TooManyRequests, message).with_retry_after(retry_after_seconds)
    }

    /// 410: the revision is past the retained window.
    pub fn expired(message: impl Into<String>) -> Self {
        ApiError::new(410, Reason::Expired, message)
    }

    /// 410: a watch starts before the retained window.
    pub fn watch_too_old(wanted: u64, oldest: u64) -> Self {
        ApiError::expired(format!("too old resource version: {wanted} ({oldest})"))
    }

    /// 410: a list goes on from a revision that is gone. With a token it may go on inconsistently.
    pub fn continue_expired(fresh_token: Option<&str>) -> Self {
        const OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start \
                           a new list without the continue parameter";
        let Some(token) = fresh_token else {
            return ApiError::expired(format!("{OLD}."));
        };
        let mut error = ApiError::expired(format!(
            "{OLD}, or use the continue token in this response to retrieve the remainder of the results. Continuing \
             with the provided token results in an inconsistent list - objects that were created, modified, or deleted \
             between the time the first chunk was returned and now may show up in the list."
        ));
        token.clone_into(&mut error.0.metadata.continue_token);
        error
    }

    /// 410: it is no more and will not come back.
    pub fn gone(message: impl Into<String>) -> Self {
        ApiError::new(410, Reason::Gone, message)
    }

    /// 500: a fault of ours.
    pub fn internal(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        ApiError::new(500, Reason::InternalError, format!("Internal error occurred: {why}")).with_cause("", why, "")
    }

    /// 500 without a reason: what Kubernetes answers to errors that it has no word for.
    pub fn unknown(message: impl Into<String>) -> Self {
        ApiError::new(500, Reason::Unknown, message)
    }

    /// 503: not now.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        ApiError::new(503, Reason::ServiceUnavailable, message)
    }
}

/// Something a user tried to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attempt<'a> {
    /// Who.
    pub user: &'a str,
    /// What.
    pub verb: &'a str,
    /// On which API group.
    pub group: &'a str,
    /// On which resource; empty for a path outside of the API.
    pub resource: &'a str,
    /// On which part of it.
    pub subresource: &'a str,
    /// Where; empty for the cluster.
    pub namespace: &'a str,
    /// On which object.
    pub name: &'a str,
    /// On which path, where there is no resource.
    pub path: &'a str,
    /// What the authorizer has to add.
    pub reason: &'a str,
}

impl Attempt<'_> {
    fn words(&self) -> String {
        let (user, verb) = (quote(self.user), self.verb);
        if self.resource.is_empty() {
            return format!("User {user} cannot {verb} path {}", quote(self.path));
        }
        let resource = match self.subresource {
            "" => quote(self.resource),
            subresource => quote(&format!("{}/{subresource}", self.resource)),
        };
        let group = quote(self.group);
        let place = match self.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {}", quote(namespace)),
        };
        format!("User {user} cannot {verb} resource {resource} in API group {group} {place}")
    }
}

fn comma_separated<S: AsRef<str>>(parts: &[S]) -> String {
    parts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field::Path;

    fn config_maps() -> GroupResource {
        GroupResource::from("configmaps")
    }

    #[test]
    fn a_missing_object_answers_as_recorded_from_kubernetes() {
        assert_eq!(
            ApiError::not_found(&config_maps(), "nope").status().to_value(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
                "message": "configmaps \"nope\" not found", "reason": "NotFound",
                "details": {"name": "nope", "kind": "configmaps"},
            })
        );
    }

    #[test]
    fn an_invalid_object_names_its_kind_and_every_cause() {
        let path = Path::root("metadata");
        let path = path.child("name");
        let error = ApiError::invalid(
            &GroupKind::new("apps", "Deployment"),
            "A",
            &[
                FieldError::invalid(&path, "A", "must be small"),
                FieldError::required(&path, ""),
            ],
        );
        assert_eq!(
            error.status().to_value(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 422,
                "reason": "Invalid",
                "message": "Deployment.apps \"A\" is invalid: [metadata.name: Invalid value: \"A\": must be small, \
                            metadata.name: Required value]",
                "details": {
                    "name": "A", "group": "apps", "kind": "Deployment",
                    "causes": [
                        {"reason": "FieldValueInvalid", "field": "metadata.name",
                         "message": "Invalid value: \"A\": must be small"},
                        {"reason": "FieldValueRequired", "field": "metadata.name", "message": "Required value"},
                    ],
                },
            })
        );
    }

    #[test]
    fn codes_reasons_and_messages_belong_together() {
        let pods = GroupResource::from("pods");
        let kind = GroupKind::new("", "ConfigMap");
        let cases = [
            (
                ApiError::already_exists(&config_maps(), "g1"),
                409,
                "AlreadyExists",
                "configmaps \"g1\" already exists",
            ),
            (
                ApiError::modified(&config_maps(), "g1"),
                409,
                "Conflict",
                "Operation cannot be fulfilled on configmaps \"g1\": the object has been modified; please apply your \
                 changes to the latest version and try again",
            ),
            (
                ApiError::uid_precondition(&kind, "g1", "x", "y"),
                409,
                "Conflict",
                "Operation cannot be fulfilled on ConfigMap \"g1\": the UID in the precondition (x) does not match the \
                 UID in record (y). The object might have been deleted and then recreated",
            ),
            (ApiError::unauthorized(), 401, "Unauthorized", "Unauthorized"),
            (ApiError::bad_request("no"), 400, "BadRequest", "no"),
            (
                ApiError::method_not_supported(&pods, "patch"),
                405,
                "MethodNotAllowed",
                "patch is not supported on resources of kind \"pods\"",
            ),
            (
                ApiError::not_acceptable(&["application/json", "application/yaml"]),
                406,
                "NotAcceptable",
                "only the following media types are accepted: application/json, application/yaml",
            ),
            (
                ApiError::unsupported_media_type(&["application/json"]),
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: application/json",
            ),
            (
                ApiError::request_entity_too_large(3_145_728),
                413,
                "RequestEntityTooLarge",
                "Request entity too large: limit is 3145728",
            ),
            (
                ApiError::resource_version_too_large(9, 3),
                504,
                "Timeout",
                "Timeout: Too large resource version: 9, current: 3",
            ),
            (
                ApiError::server_timeout(&pods, "list", 2),
                500,
                "ServerTimeout",
                "The list operation against pods could not be completed at this time, please try again.",
            ),
            (
                ApiError::too_many_requests("slow down", 1),
                429,
                "TooManyRequests",
                "slow down",
            ),
            (
                ApiError::watch_too_old(1, 5),
                410,
                "Expired",
                "too old resource version: 1 (5)",
            ),
            (ApiError::gone("away"), 410, "Gone", "away"),
            (
                ApiError::internal("oops"),
                500,
                "InternalError",
                "Internal error occurred: oops",
            ),
            (
                ApiError::service_unavailable("later"),
                503,
                "ServiceUnavailable",
                "later",
            ),
        ];
        for (error, code, reason, message) in cases {
            assert_eq!(error.code(), code, "{message}");
            assert_eq!(serde_json::to_value(error.reason()).unwrap(), json!(reason));
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn a_user_without_permission_is_told_what_was_tried() {
        let list = Attempt {
            user: "system:anonymous",
            verb: "list",
            resource: "pods",
            ..Attempt::default()
        };
        assert_eq!(
            ApiError::unpermitted(&list).to_string(),
            "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" at the \
             cluster scope"
        );
        let exec = Attempt {
            user: "u",
            verb: "create",
            group: "apps",
            resource: "deployments",
            subresource: "scale",
            namespace: "n",
            name: "a",
            reason: "no role",
            ..Attempt::default()
        };
        assert_eq!(
            ApiError::unpermitted(&exec).to_string(),
            "deployments.apps \"a\" is forbidden: User \"u\" cannot create resource \"deployments/scale\" in API group \
             \"apps\" in the namespace \"n\": no role"
        );
        let path = Attempt {
            user: "<u>",
            verb: "get",
            path: "/metrics",
            ..Attempt::default()
        };
        assert_eq!(
            ApiError::unpermitted(&path).to_string(),
            "forbidden: User \"&lt;u&gt;\" cannot get path \"/metrics\""
        );
    }

    #[test]
    fn an_expired_list_may_carry_a_fresh_token() {
        let fresh = ApiError::continue_expired(Some("t"));
        assert_eq!(fresh.status().to_value()["metadata"], json!({"continue": "t"}));
        assert_eq!(
            ApiError::continue_expired(None).status().to_value()["metadata"],
            json!({})
        );
    }
}
