//! How objects are brought from one version to another, as a definition says it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use moorline_machinery::{
    field::FieldError,
    names::{dns_subdomain, dns1035_label},
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::Value;

use super::{super::condition, invalid, list, required, text};

/// Versions of reviews that this server sends.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

// Fields are named as they stand in Kubernetes' own types, not as they were written.
const CLIENT: &str = "spec.conversion.webhookClientConfig";
const VERSIONS: &str = "spec.conversion.conversionReviewVersions";

/// Whether certificates that cannot be read are let pass: in a definition that is not in use they do no harm yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Bundle {
    #[default]
    MayBeBroken,
    MustBeGood,
}

impl Bundle {
    /// What an update of `old` may have.
    pub(super) fn after(old: &Value) -> Self {
        let bundle = old
            .pointer("/spec/conversion/webhook/clientConfig/caBundle")
            .and_then(Value::as_str);
        let broken = bundle.is_some_and(|bundle| !bundle.is_empty() && ca_bundle_fault(bundle).is_some());
        if broken || !condition::holds(old, condition::ESTABLISHED) {
            Self::MayBeBroken
        } else {
            Self::MustBeGood
        }
    }
}

/// Whether one of the versions of reviews that a webhook understands must be known here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Review {
    #[default]
    MustBeKnown,
    MayBeUnknown,
}

impl Review {
    pub(super) fn after(conversion: &Value) -> Self {
        let versions = list(&conversion["webhook"], "conversionReviewVersions");
        let known = versions.is_empty() || versions.iter().any(is_known);
        if known { Self::MustBeKnown } else { Self::MayBeUnknown }
    }
}

fn is_known(version: &Value) -> bool {
    REVIEWS.iter().any(|known| version == known)
}

pub(super) fn check(spec: &Value, bundle: Bundle, review: Review, errors: &mut Vec<FieldError>) {
    let conversion = &spec["conversion"];
    if conversion.is_null() {
        return;
    }
    let strategy = text(conversion, "strategy");
    if strategy != "None" && spec["preserveUnknownFields"] == true {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.push(invalid("spec.conversion.strategy", strategy, detail));
    }
    match strategy {
        "" => errors.push(required("spec.conversion.strategy", "")),
        "None" | "Webhook" => {}
        other => errors.push(not_supported("spec.conversion.strategy", other, &["None", "Webhook"])),
    }
    let webhook = &conversion["webhook"];
    let client = &webhook["clientConfig"];
    let versions = list(webhook, "conversionReviewVersions");
    if strategy != "Webhook" {
        for (set, field) in [(!client.is_null(), CLIENT), (!versions.is_empty(), VERSIONS)] {
            if set {
                errors.push(forbidden(
                    field,
                    "should not be set when strategy is not set to Webhook",
                ));
            }
        }
        return;
    }
    if client.is_null() {
        errors.push(required(CLIENT, "required when strategy is set to Webhook"));
    } else {
        match (client["url"].as_str(), &client["service"]) {
            (Some(url), Value::Null) => url_faults(url, &format!("{CLIENT}.url"), errors),
            (None, service) if !service.is_null() => check_service(service, &format!("{CLIENT}.service"), errors),
            _ => errors.push(required(CLIENT, "exactly one of url or service is required")),
        }
        let given = text(client, "caBundle");
        if bundle == Bundle::MustBeGood
            && let Some(fault) = ca_bundle_fault(given).filter(|_| !given.is_empty())
        {
            errors.push(invalid(format!("{CLIENT}.caBundle"), given, fault));
        }
    }
    check_reviews(versions, review, VERSIONS, errors);
}

fn check_reviews(versions: &[Value], review: Review, at: &str, errors: &mut Vec<FieldError>) {
    if versions.is_empty() {
        errors.push(required(at, ""));
        return;
    }
    for (index, version) in versions.iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if versions[..index].contains(version) {
            errors.push(invalid(format!("{at}[{index}]"), name, "duplicate version"));
            continue;
        }
        for complaint in dns1035_label(name) {
            errors.push(invalid(format!("{at}[{index}]"), name, complaint));
        }
    }
    if review == Review::MustBeKnown && !versions.iter().any(is_known) {
        let detail = format!("must include at least one of {}", REVIEWS.join(", "));
        errors.push(invalid(at, versions.to_vec(), detail));
    }
}

/// What is wrong with the address of a webhook.
fn url_faults(url: &str, at: &str, errors: &mut Vec<FieldError>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = match scheme {
        "" => rest.strip_prefix("//").unwrap_or_default(),
        _ => rest,
    };
    let authority = authority.split('/').next().unwrap_or_default();
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if scheme != "https" {
        errors.push(invalid(
            at,
            scheme,
            format!("'https' is the only allowed URL scheme{FORM}"),
        ));
    }
    if host.is_empty() {
        errors.push(invalid(at, host, format!("host must be specified{FORM}")));
    }
    if let Some(user) = user {
        errors.push(invalid(at, user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(invalid(at, fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(invalid(at, query, "query parameters are not permitted in the URL"));
    }
}

fn check_service(service: &Value, at: &str, errors: &mut Vec<FieldError>) {
    // Kubernetes hands the two over in the wrong order here, so that each is missed under the name of the other.
    for (missing, reported) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, missing).is_empty() {
            errors.push(required(format!("{at}.{reported}"), ""));
        }
    }
    let port = service["port"].as_i64().unwrap_or_default();
    if let Some(complaint) = port_complaint(port) {
        errors.push(invalid(
            format!("{at}.port"),
            port,
            format!("port is not valid: {complaint}"),
        ));
    }
    check_service_path(text(service, "path"), &format!("{at}.path"), errors);
}

fn check_service_path(path: &str, at: &str, errors: &mut Vec<FieldError>) {
    match path {
        "" | "/" => return,
        "//" => {
            errors.push(invalid(at, path, "segment[0] may not be empty"));
            return;
        }
        _ => {}
    }
    if !path.starts_with('/') {
        errors.push(invalid(at, path, "must start with a '/'"));
    }
    let mut rest = path.chars();
    rest.next();
    let rest = rest.as_str();
    for (index, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.push(invalid(at, path, format!("segment[{index}] may not be empty")));
            continue;
        }
        for complaint in dns_subdomain(step) {
            errors.push(invalid(at, path, format!("segment[{index}]: {complaint}")));
        }
    }
}

/// What is wrong with the number of a port.
fn port_complaint(port: i64) -> Option<&'static str> {
    (!(1..=65535).contains(&port)).then_some("must be between 1 and 65535, inclusive")
}

/// Why a bundle of certificates, in base 64, cannot be used.
pub(crate) fn ca_bundle_fault(bundle: &str) -> Option<String> {
    let none = "unable to load root certificates: unable to parse bytes as PEM block";
    let Ok(bytes) = STANDARD.decode(bundle) else {
        return Some(none.to_owned());
    };
    if bytes.trim_ascii().is_empty() {
        return None;
    }
    let mut found = false;
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        match certificate {
            Ok(_) => found = true,
            Err(_) => return Some("unable to load root certificates: failed to parse certificate".to_owned()),
        }
    }
    (!found).then(|| none.to_owned())
}

fn not_supported(field: &str, value: &str, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
    FieldError {
        kind: moorline_machinery::field::ErrorKind::NotSupported,
        field: field.to_owned(),
        value: Some(value.into()),
        detail: format!("supported values: {}", supported.join(", ")),
    }
}

fn forbidden(field: &str, detail: &str) -> FieldError {
    FieldError {
        kind: moorline_machinery::field::ErrorKind::Forbidden,
        field: field.to_owned(),
        value: None,
        detail: detail.to_owned(),
    }
}
