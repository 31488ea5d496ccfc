//! Bringing objects from one version of their kind to another: by changing their type, or through a webhook.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use moorline_machinery::{
    field::{self, quote},
    gvk::{GroupVersion, GroupVersionKind, split_api_version},
    meta::{self, Scope},
    names::NameRule,
    status::ApiError,
};
use serde_json::{Map, Value, json};

use super::{
    go_type,
    webhook_client::{Hook, WebhookClient, WebhookError},
};
use crate::core::World;

/// How the objects of a kind are converted.
pub(crate) enum Conversion {
    /// All versions look alike: only `apiVersion` changes.
    TypeOnly,
    /// Somebody else knows how.
    Through(Arc<dyn Converter>),
}

/// Who knows how to convert objects.
pub(crate) trait Converter: Send + Sync {
    /// The objects in another version, in the order in which they were given.
    fn convert<'c>(&'c self, objects: Vec<Value>, desired: &'c GroupVersion) -> Converting<'c>;
}

/// A conversion on its way.
pub(crate) type Converting<'c> = Pin<Box<dyn Future<Output = Result<Vec<Value>, ConversionError>> + Send + 'c>>;

/// Why objects could not be converted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConversionError {
    /// The webhook did not answer.
    #[error(transparent)]
    Call(#[from] WebhookError),
    /// The webhook's answer is of no use, or says no.
    #[error("{0}")]
    Answer(String),
    /// There is no version of reviews that both sides know.
    #[error("no supported conversion review versions")]
    NoReview,
}

impl ConversionError {
    /// The answer to a request that needed the conversion.
    pub(crate) fn about(&self, kind: &GroupVersionKind) -> ApiError {
        match self {
            Self::NoReview => ApiError::unknown(self.to_string()),
            Self::Call(_) | Self::Answer(_) => {
                ApiError::unknown(format!("conversion webhook for {kind} failed: {self}"))
            }
        }
    }
}

/// How long a webhook may take to convert.
const PATIENCE: Duration = Duration::from_secs(30);
const GROUP: &str = "apiextensions.k8s.io";

/// Converts through the webhook that a definition names.
pub(crate) struct WebhookConverter {
    client: Arc<WebhookClient>,
    world: Arc<dyn World>,
    hook: Result<Hook, WebhookError>,
    review: Option<ReviewVersion>,
}

/// Versions of reviews that are known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReviewVersion {
    V1,
    V1Beta1,
}

impl WebhookConverter {
    /// The converter that the conversion of a definition names.
    pub(crate) fn new(conversion: &Value, client: Arc<WebhookClient>, world: Arc<dyn World>) -> Self {
        let webhook = &conversion["webhook"];
        let understood = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        let review = understood.filter_map(Value::as_str).find_map(|version| match version {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1Beta1),
            _ => None,
        });
        Self {
            client,
            world,
            hook: Hook::read(&webhook["clientConfig"]),
            review,
        }
    }

    async fn review(&self, objects: Vec<Value>, desired: &GroupVersion) -> Result<Vec<Value>, ConversionError> {
        let review = self.review.ok_or(ConversionError::NoReview)?;
        let hook = self.hook.as_ref().map_err(Clone::clone)?;
        let uid = self.world.uid();
        let version = match review {
            ReviewVersion::V1 => "v1",
            ReviewVersion::V1Beta1 => "v1beta1",
        };
        let request = json!({
            "kind": "ConversionReview", "apiVersion": format!("{GROUP}/{version}"),
            "request": { "uid": uid, "desiredAPIVersion": desired.to_string(), "objects": objects },
            "response": { "uid": "", "convertedObjects": null, "result": { "metadata": {} } },
        });
        let answer = self.client.post(hook, None, &request, PATIENCE).await?;
        converted_objects(answer, review, &uid).map_err(ConversionError::Answer)
    }
}

impl Converter for WebhookConverter {
    fn convert<'c>(&'c self, objects: Vec<Value>, desired: &'c GroupVersion) -> Converting<'c> {
        Box::pin(self.review(objects, desired))
    }
}

fn converted_objects(mut answer: Value, review: ReviewVersion, uid: &str) -> Result<Vec<Value>, String> {
    // The old form of the answer was never held to its type or to the request that it is for.
    let strict = review == ReviewVersion::V1;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if strict {
        let (api_version, kind) = (text(&answer["apiVersion"]), text(&answer["kind"]));
        let expected = GroupVersionKind::new(GROUP, "v1", "ConversionReview");
        if api_version != expected.api_version() || kind != *expected.kind {
            let (group, version) = split_api_version(&api_version).unwrap_or_default();
            let got = GroupVersionKind::new(group, version, kind);
            return Err(format!("expected webhook response of {expected}, got {got}"));
        }
    }
    let response = &mut answer["response"];
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let got = text(&response["uid"]);
    if strict && got != uid {
        return Err(format!("expected response.uid={}, got {}", quote(uid), quote(&got)));
    }
    let result = &response["result"];
    let status = text(&result["status"]);
    if status != "Success" {
        let message = text(&result["message"]);
        let silent = || format!("response.result.status was '{status}', not 'Success'");
        return Err(Some(message)
            .filter(|message| !message.is_empty())
            .unwrap_or_else(silent));
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Holds what a webhook made of objects against what it was given: it may change everything but who they are.
pub(crate) fn check(
    originals: &[&Value],
    converted: Vec<Value>,
    desired: &GroupVersion,
    kind: &GroupVersionKind,
    single: bool,
) -> Result<Vec<Value>, ApiError> {
    let refuse = |why: fmt::Arguments<'_>| ApiError::unknown(format!("conversion webhook for {kind} returned {why}"));
    if converted.len() != originals.len() {
        return Err(refuse(format_args!(
            "{} objects, expected {}",
            converted.len(),
            originals.len()
        )));
    }
    let mut checked = Vec::with_capacity(converted.len());
    for (index, (original, mut object)) in originals.iter().zip(converted).enumerate() {
        let word = if single { "object" } else { "converted object" };
        if let Err(why) = check_type(original, &object, desired) {
            return Err(refuse(format_args!("invalid {word} at index {index}: {why}")));
        }
        let place = if single {
            String::new()
        } else {
            format!(" at index {index}")
        };
        if let Err(why) = check_identity(original, &object) {
            return Err(refuse(format_args!("invalid {word}{place}: {why}")));
        }
        if let Err(why) = restore_metadata(original, &mut object) {
            let place = if single {
                String::new()
            } else {
                format!(" in object at index {index}")
            };
            return Err(refuse(format_args!("invalid metadata{place}: {why}")));
        }
        checked.push(object);
    }
    Ok(checked)
}

fn check_type(original: &Value, object: &Value, desired: &GroupVersion) -> Result<(), String> {
    let got = object["apiVersion"].as_str().unwrap_or_default();
    if got != desired.to_string() {
        return Err(format!("invalid groupVersion (expected {desired}, received {got})"));
    }
    let (expected, got) = (original["kind"].as_str(), object["kind"].as_str());
    if expected != got {
        let (expected, got) = (expected.unwrap_or_default(), got.unwrap_or_default());
        return Err(format!("invalid kind (expected {expected}, received {got})"));
    }
    Ok(())
}

fn check_identity(original: &Value, object: &Value) -> Result<(), String> {
    let (was, is) = (meta::of(original), meta::of(object));
    for (what, was, is) in [
        ("name", was.name(), is.name()),
        ("namespace", was.namespace(), is.namespace()),
        ("UID", was.uid(), is.uid()),
    ] {
        if was != is {
            return Err(format!("must have the same {what}: {was} != {is}"));
        }
    }
    Ok(())
}

/// Puts the metadata back, but for labels and annotations, which a conversion may use.
fn restore_metadata(original: &Value, object: &mut Value) -> Result<(), String> {
    let given = match object.get_mut("metadata") {
        None => return Err("missing metadata in converted object".to_owned()),
        Some(metadata) if metadata.is_object() => metadata.take(),
        Some(other) => {
            return Err(format!(
                "invalid metadata of type {} in converted object",
                go_type(other)
            ));
        }
    };
    let mut restored = original["metadata"].as_object().cloned().unwrap_or_default();
    for name in ["labels", "annotations"] {
        match &given[name] {
            Value::Null => drop(restored.remove(name)),
            Value::Object(entries) => {
                check_texts(name, entries)?;
                let before = restored.insert(name.to_owned(), given[name].clone());
                if before.as_ref() != Some(&given[name]) {
                    check_entries(name, entries)?;
                }
            }
            other => {
                return Err(format!(
                    "invalid metadata.{name} of type {} in converted object",
                    go_type(other)
                ));
            }
        }
    }
    object["metadata"] = restored.into();
    Ok(())
}

fn check_texts(name: &str, entries: &Map<String, Value>) -> Result<(), String> {
    match entries.iter().find(|(_, value)| !value.is_string()) {
        None => Ok(()),
        Some((key, value)) => Err(format!(
            "metadata.{name}[{key}] must be a string, but is {} in converted object",
            go_type(value)
        )),
    }
}

fn check_entries(name: &str, entries: &Map<String, Value>) -> Result<(), String> {
    let mut probe = json!({ "metadata": { "name": "n" } });
    probe["metadata"][name] = entries.clone().into();
    let errors = meta::validate(&probe, Scope::Cluster, NameRule::DnsSubdomain);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(field::aggregate(&errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str) -> Value {
        json!({
            "apiVersion": format!("example.com/{version}"), "kind": "Database",
            "metadata": { "name": "d", "namespace": "n", "uid": "u", "generation": 3, "labels": { "a": "b" } },
        })
    }

    fn checked(change: impl FnOnce(&mut Value)) -> Result<Value, String> {
        let original = object("v1");
        let mut converted = object("v2");
        change(&mut converted);
        let desired = GroupVersion::new("example.com", "v2");
        let kind = GroupVersionKind::new("example.com", "v1", "Database");
        let mut checked = check(&[&original], vec![converted], &desired, &kind, true).map_err(|e| e.to_string())?;
        Ok(checked.pop().unwrap())
    }

    #[test]
    fn a_conversion_may_change_labels_and_annotations_but_no_other_metadata() {
        let converted = checked(|object| {
            object["metadata"] = json!({
                "name": "d", "namespace": "n", "uid": "u", "generation": 9, "annotations": { "was": "v1" },
            });
        });
        assert_eq!(
            converted.unwrap()["metadata"],
            json!({ "name": "d", "namespace": "n", "uid": "u", "generation": 3, "annotations": { "was": "v1" } })
        );
    }

    #[test]
    fn a_conversion_that_makes_another_object_is_refused() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 7] = [
            (
                |object| object["apiVersion"] = "example.com/v3".into(),
                "invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v3)",
            ),
            (
                |object| object["kind"] = "Other".into(),
                "invalid object at index 0: invalid kind (expected Database, received Other)",
            ),
            (
                |object| object["metadata"]["name"] = "e".into(),
                "invalid object: must have the same name: d != e",
            ),
            (
                |object| object["metadata"]["uid"] = "w".into(),
                "invalid object: must have the same UID: u != w",
            ),
            (
                |object| object["metadata"]["labels"] = json!(["a"]),
                "invalid metadata: invalid metadata.labels of type \
                []interface {} in converted object",
            ),
            (
                |object| object["metadata"]["labels"] = json!({ "a": 1 }),
                "invalid metadata: metadata.labels[a] must be a \
                string, but is int64 in converted object",
            ),
            (
                |object| object["metadata"]["labels"] = json!({ "a/b/c": "d" }),
                "invalid metadata: metadata.labels: Invalid value: \"a/b/c\"",
            ),
        ];
        for (change, expected) in cases {
            let said = checked(change).unwrap_err();
            let expected = format!("conversion webhook for example.com/v1, Kind=Database returned {expected}");
            assert!(said.starts_with(&expected), "{said}\n{expected}");
        }
    }

    #[test]
    fn an_answer_must_be_one_to_the_request_and_say_that_it_succeeded() {
        let answer = |change: fn(&mut Value)| {
            let mut answer = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
                "response": { "uid": "u", "convertedObjects": [{}], "result": { "status": "Success" } },
            });
            change(&mut answer);
            converted_objects(answer, ReviewVersion::V1, "u")
        };
        assert_eq!(answer(|_| {}), Ok(vec![json!({})]));
        for (change, expected) in [
            (
                (|answer| answer["apiVersion"] = "v1".into()) as fn(&mut Value),
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /v1, \
                 Kind=ConversionReview",
            ),
            (|answer| answer["response"] = Value::Null, "no response provided"),
            (
                |answer| answer["response"]["uid"] = "v".into(),
                "expected response.uid=\"u\", got \"v\"",
            ),
            (
                |answer| answer["response"]["result"] = json!({ "status": "Failure", "message": "no" }),
                "no",
            ),
            (
                |answer| answer["response"]["result"] = json!({}),
                "response.result.status was '', not 'Success'",
            ),
        ] {
            assert_eq!(answer(change).unwrap_err(), expected);
        }
    }
}
