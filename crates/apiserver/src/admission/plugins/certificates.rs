//! Who may approve and sign certificates, and which subjects nobody gets.

use moorline_machinery::status::ApiError;
use serde_json::Value;

use super::{Attributes, text};
use crate::{
    auth::{Action, MASTERS, ResourceAction},
    builtin::certificate_requests::Request,
};

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub(super) fn check(attributes: &Attributes<'_>, request: &Value) -> Result<(), ApiError> {
    let gvr = &attributes.call.resource.gvr;
    if *gvr.group != *GROUP || *gvr.resource != *REQUESTS || request.is_null() {
        return Ok(());
    }
    match attributes.call.path.subresource.as_str() {
        "" if attributes.creates() => check_subject(attributes, request),
        "approval" => permit(attributes, request, "approve"),
        "status" => {
            let signed = attributes
                .old
                .is_some_and(|old| old["status"]["certificate"] != request["status"]["certificate"]);
            if signed {
                permit(attributes, request, "sign")
            } else {
                Ok(())
            }
        }
        _ => Ok(()),
    }
}

/// A signer's certificates are approved and signed by those who may do so for this signer, or for its whole domain.
fn permit(attributes: &Attributes<'_>, request: &Value, verb: &str) -> Result<(), ApiError> {
    let signer = text(&request["spec"], "signerName");
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    let allowed = [signer.to_owned(), format!("{domain}/*")].into_iter().any(|name| {
        let action = Action::Resource(ResourceAction {
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            resource: "signers".to_owned(),
            name,
            ..ResourceAction::default()
        });
        attributes
            .call
            .core
            .authorizer
            .permit(attributes.call.user, &action)
            .is_ok()
    });
    if allowed {
        return Ok(());
    }
    Err(attributes.refuse(format_args!(
        "user not permitted to {verb} requests with signerName {signer:?}"
    )))
}

/// Nobody becomes an administrator by a request.
fn check_subject(attributes: &Attributes<'_>, request: &Value) -> Result<(), ApiError> {
    if text(&request["spec"], "signerName") != CLIENT_SIGNER {
        return Ok(());
    }
    let Ok(parsed) = Request::parse(text(&request["spec"], "request")) else {
        // What cannot be read has been refused by validation.
        return Ok(());
    };
    if parsed.organizations.iter().any(|organization| organization == MASTERS) {
        return Err(attributes.refuse(format_args!(
            "use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"
        )));
    }
    Ok(())
}
