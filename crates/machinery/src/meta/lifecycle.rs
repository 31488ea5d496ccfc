//! How metadata begins, changes and ends.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{of, of_mut, set_resource_version};
use crate::{
    field::{FieldError, Path, quote},
    gvk::{GroupKind, GroupResource},
    status::ApiError,
    time,
};

/// What an object in another namespace than the one of the request is told.
pub const FORBIDDEN_NAMESPACE: &str =
    "the namespace of the provided object does not match the namespace sent on the request";

/// Letters and digits that make no words and are not mistaken for each other.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const NAME_MAX: usize = 63;

/// Where objects of a kind live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Once in the cluster.
    Cluster,
    /// In this namespace.
    Namespace(&'a str),
}

/// Which changes raise `metadata.generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Generation {
    /// None: the kind has no generation.
    Untracked,
    /// All outside of metadata and status. Built-in kinds, and custom ones with a status subresource.
    ButStatus,
    /// All outside of metadata. Custom kinds without a status subresource.
    ButMetadata,
    /// Those of [`ButStatus`](Self::ButStatus), but a new object has no generation until its first change.
    SinceFirstChange,
    /// Those of [`ButMetadata`](Self::ButMetadata), and labels, by which objects of the kind are found.
    AlsoLabels,
    /// Those of [`ButStatus`](Self::ButStatus), and annotations, which are handed down to what the object makes.
    AlsoAnnotations,
}

/// Whether an update may leave out the resource version it is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnversionedUpdate {
    /// It overwrites whatever is there. Most built-in kinds.
    Overwrites,
    /// It is refused. Custom kinds and some built-in ones.
    Refused,
}

/// What an object gets at its creation and cannot choose itself.
#[derive(Debug, Clone, Copy)]
pub struct Birth<'a> {
    /// The time of creation.
    pub now: Timestamp,
    /// The new uid.
    pub uid: &'a str,
    /// What completes a `generateName`; see [`name_suffix`].
    pub name_suffix: &'a str,
    /// Where it is created.
    pub scope: Scope<'a>,
}

/// Gives a new object its system metadata, discarding what only the server may set.
pub fn prepare_for_create(object: &mut Value, birth: &Birth<'_>, generation: Generation) -> Result<(), ApiError> {
    place(object, birth.scope)?;
    if !matches!(of(object).resource_version(), "" | "0") {
        return Err(ApiError::unknown(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let Some(metadata) = of_mut(object) else {
        return Err(not_an_object());
    };
    for key in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "resourceVersion",
    ] {
        metadata.remove(key);
    }
    metadata.insert("creationTimestamp".to_owned(), time::format(birth.now).into());
    metadata.insert("uid".to_owned(), birth.uid.into());
    if !matches!(generation, Generation::Untracked | Generation::SinceFirstChange) {
        metadata.insert("generation".to_owned(), 1.into());
    }
    let text = |key: &str| {
        metadata
            .get(key)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    if let (None, Some(base)) = (text("name"), text("generateName")) {
        let name = generated_name(base, birth.name_suffix);
        metadata.insert("name".to_owned(), name.into());
    }
    Ok(())
}

/// Carries over to an updated object what an update cannot change, and raises its generation if it must.
pub fn prepare_for_update(
    new: &mut Value,
    old: &Value,
    scope: Scope<'_>,
    generation: Generation,
) -> Result<(), ApiError> {
    place(new, scope)?;
    let raised = match generation {
        Generation::Untracked => false,
        Generation::ButStatus | Generation::SinceFirstChange => differs(new, old, &["metadata", "status"]),
        Generation::ButMetadata => differs(new, old, &["metadata"]),
        Generation::AlsoLabels => {
            differs(new, old, &["metadata"]) || !equal(&new["metadata"]["labels"], &old["metadata"]["labels"])
        }
        Generation::AlsoAnnotations => {
            differs(new, old, &["metadata", "status"])
                || !equal(&new["metadata"]["annotations"], &old["metadata"]["annotations"])
        }
    };
    let Some(metadata) = of_mut(new) else {
        return Err(not_an_object());
    };
    let old = of(old);
    match old.generation() + i64::from(raised) {
        0 => drop(metadata.remove("generation")),
        generation => drop(metadata.insert("generation".to_owned(), generation.into())),
    }
    metadata.remove("selfLink");
    if metadata.get("uid").and_then(Value::as_str).is_none_or(str::is_empty) {
        carry(metadata, old.as_map(), "uid");
    }
    for key in ["creationTimestamp", "deletionTimestamp"] {
        if old
            .as_map()
            .is_some_and(|old| old.get(key).is_some_and(Value::is_string))
        {
            carry(metadata, old.as_map(), key);
        }
    }
    if !metadata.get("deletionGracePeriodSeconds").is_some_and(Value::is_number) {
        carry(metadata, old.as_map(), "deletionGracePeriodSeconds");
    }
    Ok(())
}

/// Compare and swap: checks that an update is based on the stored object, or is allowed not to say so.
///
/// On success the new object carries the stored resource version.
pub fn check_resource_version(
    new: &mut Value,
    old: &Value,
    unversioned: UnversionedUpdate,
    resource: &GroupResource,
) -> Result<(), ApiError> {
    let (meta, current) = (of(new), of(old).resource_version());
    match meta.resource_version() {
        "" | "0" if unversioned == UnversionedUpdate::Overwrites => {
            set_resource_version(new, current);
            Ok(())
        }
        "" | "0" => {
            let metadata = Path::root("metadata");
            let error = FieldError::invalid(&metadata.child("resourceVersion"), 0, "must be specified for an update");
            // Kubernetes puts the resource where the kind should stand.
            let kind = GroupKind::new(resource.group.clone(), resource.resource.clone());
            Err(ApiError::invalid(&kind, meta.name(), &[error]))
        }
        given if given == current => Ok(()),
        given => {
            parse_resource_version(given)?;
            Err(ApiError::modified(resource, meta.name()))
        }
    }
}

/// The number that a resource version is; clients are told of another one in the words of Go, with a 500.
pub fn parse_resource_version(given: &str) -> Result<u64, ApiError> {
    given.parse().map_err(|_| ApiError::unknown(not_a_version(given)))
}

/// Why a text is no resource version.
pub fn not_a_version(given: &str) -> String {
    let digits = !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit());
    let why = if digits { "value out of range" } else { "invalid syntax" };
    format!("strconv.ParseUint: parsing {}: {why}", quote(given))
}

/// Starts the deletion of an object that cannot go at once.
///
/// No grace at all is not the same as one of no length: it leaves the field out.
pub fn mark_deleted(object: &mut Value, now: Timestamp, grace: Option<Duration>) {
    let generation = of(object).generation();
    let Some(metadata) = of_mut(object) else { return };
    let then = now
        .saturating_add(grace.unwrap_or_default())
        .expect("adding whole seconds to a time stamp saturates");
    metadata.insert("deletionTimestamp".to_owned(), time::format(then).into());
    if let Some(grace) = grace {
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.as_secs().into());
    }
    if generation > 0 {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

/// A `generateName` with its suffix, cut so that the whole fits into a DNS label.
pub fn generated_name(base: &str, suffix: &str) -> String {
    let mut end = base.len().min(NAME_MAX - SUFFIX_LENGTH);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &base[..end])
}

/// Five characters for a generated name out of a random number.
pub fn name_suffix(random: u64) -> String {
    let mut rest = random;
    (0..SUFFIX_LENGTH)
        .map(|_| {
            let base = SUFFIX_ALPHABET.len() as u64;
            let digit = usize::try_from(rest % base).expect("less than the length of the alphabet");
            rest /= base;
            char::from(SUFFIX_ALPHABET[digit])
        })
        .collect()
}

/// Puts an object where the request says it is, unless it claims to be elsewhere.
fn place(object: &mut Value, scope: Scope<'_>) -> Result<(), ApiError> {
    let found = of(object).namespace();
    match scope {
        Scope::Cluster => {
            if !found.is_empty()
                && let Some(metadata) = of_mut(object)
            {
                metadata.remove("namespace");
            }
        }
        Scope::Namespace(namespace) if found == namespace => {}
        Scope::Namespace(namespace) if found.is_empty() => {
            let Some(metadata) = of_mut(object) else {
                return Err(not_an_object());
            };
            metadata.insert("namespace".to_owned(), namespace.into());
        }
        Scope::Namespace(_) => return Err(ApiError::bad_request(FORBIDDEN_NAMESPACE)),
    }
    Ok(())
}

fn carry(metadata: &mut Map<String, Value>, old: Option<&Map<String, Value>>, key: &str) {
    if let Some(value) = old.and_then(|old| old.get(key)) {
        metadata.insert(key.to_owned(), value.clone());
    }
}

/// Whether two objects differ outside of some top-level fields. Absent, null and empty are the same.
fn differs(new: &Value, old: &Value, ignored: &[&str]) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else {
        return new != old;
    };
    let counts = |key: &str| !ignored.contains(&key) && key != "apiVersion" && key != "kind";
    let differs_in = |key: &str| {
        !equal(
            new.get(key).unwrap_or(&Value::Null),
            old.get(key).unwrap_or(&Value::Null),
        )
    };
    new.keys().any(|key| counts(key) && differs_in(key))
        || old
            .keys()
            .any(|key| counts(key) && !new.contains_key(key) && differs_in(key))
}

/// Kubernetes' semantic equality: empty lists and maps equal absent ones, numbers equal by value.
pub fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left_map), Value::Object(right_map)) => {
            left_map
                .iter()
                .all(|(key, value)| equal(value, right_map.get(key).unwrap_or(&Value::Null)))
                && right_map
                    .iter()
                    .all(|(key, value)| left_map.contains_key(key) || is_empty(value))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Value::Number(left), Value::Number(right)) => left == right || left.as_f64() == right.as_f64(),
        _ => left == right || (is_empty(left) && is_empty(right)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    }
}

fn not_an_object() -> ApiError {
    ApiError::bad_request("the body of the request is not a JSON object")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn birth(scope: Scope<'_>) -> Birth<'_> {
        Birth {
            now: "2026-01-02T03:04:05.6Z".parse().unwrap(),
            uid: "u-1",
            name_suffix: "abcde",
            scope,
        }
    }

    #[test]
    fn a_new_object_gets_its_system_metadata_and_loses_what_it_claimed() {
        let mut object = json!({"metadata": {
            "generateName": "db-", "uid": "mine", "creationTimestamp": null, "deletionTimestamp": "x",
            "deletionGracePeriodSeconds": 5, "selfLink": "/x", "generation": 9, "labels": {"a": "b"},
        }});
        prepare_for_create(&mut object, &birth(Scope::Namespace("n")), Generation::ButStatus).unwrap();
        assert_eq!(
            object,
            json!({"metadata": {
                "generateName": "db-", "name": "db-abcde", "namespace": "n", "uid": "u-1",
                "creationTimestamp": "2026-01-02T03:04:05Z", "generation": 1, "labels": {"a": "b"},
            }})
        );
    }

    #[test]
    fn a_given_name_is_not_generated_over() {
        let mut object = json!({"metadata": {"generateName": "db-", "name": "mine"}});
        prepare_for_create(&mut object, &birth(Scope::Cluster), Generation::Untracked).unwrap();
        assert_eq!(of(&object).name(), "mine");
        assert_eq!(of(&object).generation(), 0);
    }

    #[test]
    fn an_object_goes_only_where_the_request_says() {
        let mut elsewhere = json!({"metadata": {"namespace": "other"}});
        let refused = prepare_for_create(&mut elsewhere, &birth(Scope::Namespace("n")), Generation::Untracked);
        assert_eq!(refused.unwrap_err().to_string(), FORBIDDEN_NAMESPACE);
        prepare_for_create(&mut elsewhere, &birth(Scope::Cluster), Generation::Untracked).unwrap();
        assert_eq!(of(&elsewhere).namespace(), "");
    }

    #[test]
    fn an_object_that_was_stored_before_cannot_be_created() {
        let mut object = json!({"metadata": {"resourceVersion": "3"}});
        let error = prepare_for_create(&mut object, &birth(Scope::Cluster), Generation::Untracked).unwrap_err();
        assert_eq!(
            error.to_string(),
            "resourceVersion should not be set on objects to be created"
        );
        assert_eq!(error.code(), 500);
    }

    #[test]
    fn the_generation_rises_with_the_specification_only() {
        let old = json!({"metadata": {"generation": 4}, "spec": {"a": 1, "list": []}, "status": {"x": 1}});
        for (new, but_status, but_metadata) in [
            (
                json!({"metadata": {"generation": 99, "labels": {"a": "b"}}, "spec": {"a": 1}, "status": {"x": 1}}),
                4,
                4,
            ),
            (json!({"spec": {"a": 1.0, "list": null}, "status": {"x": 2}}), 4, 5),
            (json!({"spec": {"a": 2}, "status": {"x": 1}}), 5, 5),
            (json!({"status": {"x": 1}}), 5, 5),
            (json!({"spec": {"a": 1}, "status": {"x": 1}, "data": {"k": "v"}}), 5, 5),
        ] {
            for (rule, expected) in [
                (Generation::ButStatus, but_status),
                (Generation::ButMetadata, but_metadata),
                (Generation::Untracked, 4),
            ] {
                let mut new = new.clone();
                prepare_for_update(&mut new, &old, Scope::Cluster, rule).unwrap();
                assert_eq!(of(&new).generation(), expected, "{rule:?} {new}");
            }
        }
    }

    #[test]
    fn some_kinds_count_labels_or_annotations_and_some_count_from_their_first_change() {
        let old = json!({"metadata": {"generation": 1}, "endpoints": []});
        let mut new = json!({"metadata": {"labels": {"a": "b"}}, "endpoints": []});
        prepare_for_update(&mut new, &old, Scope::Cluster, Generation::AlsoLabels).unwrap();
        assert_eq!(of(&new).generation(), 2);
        let old = json!({"metadata": {"generation": 1}, "status": {"a": 1}});
        let mut new = json!({"metadata": {"annotations": {"a": "b"}}, "status": {"a": 2}});
        prepare_for_update(&mut new, &old, Scope::Cluster, Generation::AlsoAnnotations).unwrap();
        assert_eq!(of(&new).generation(), 2);
        let mut driver = json!({"metadata": {"name": "d"}, "spec": {"a": 1}});
        prepare_for_create(&mut driver, &birth(Scope::Cluster), Generation::SinceFirstChange).unwrap();
        assert_eq!(of(&driver).generation(), 0);
        let mut changed = json!({"metadata": {"name": "d"}, "spec": {"a": 2}});
        prepare_for_update(&mut changed, &driver, Scope::Cluster, Generation::SinceFirstChange).unwrap();
        assert_eq!(of(&changed).generation(), 1);
    }

    #[test]
    fn an_update_keeps_what_it_cannot_change() {
        let old = json!({"metadata": {
            "uid": "u", "creationTimestamp": "c", "deletionTimestamp": "d", "deletionGracePeriodSeconds": 30,
        }});
        let mut new = json!({"metadata": {"creationTimestamp": "other", "selfLink": "/x"}});
        prepare_for_update(&mut new, &old, Scope::Cluster, Generation::ButStatus).unwrap();
        assert_eq!(new, old);
    }

    #[test]
    fn an_update_must_be_based_on_what_is_stored() {
        let resource = GroupResource::from("configmaps");
        let old = json!({"metadata": {"name": "c", "resourceVersion": "5"}});
        let attempt = |version: &str, unversioned| {
            let mut new = json!({"metadata": {"name": "c", "resourceVersion": version}});
            check_resource_version(&mut new, &old, unversioned, &resource)
                .map(|()| of(&new).resource_version().to_owned())
        };
        assert_eq!(attempt("5", UnversionedUpdate::Refused).unwrap(), "5");
        assert_eq!(attempt("", UnversionedUpdate::Overwrites).unwrap(), "5");
        assert_eq!(attempt("4", UnversionedUpdate::Overwrites).unwrap_err().code(), 409);
        let odd = attempt("x", UnversionedUpdate::Overwrites).unwrap_err();
        assert_eq!(odd.code(), 500);
        assert_eq!(odd.to_string(), "strconv.ParseUint: parsing \"x\": invalid syntax");
        assert_eq!(
            attempt("", UnversionedUpdate::Refused).unwrap_err().to_string(),
            "configmaps \"c\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        );
    }

    #[test]
    fn a_deletion_is_dated_at_the_end_of_its_grace() {
        let mut object = json!({"metadata": {"generation": 2}});
        mark_deleted(
            &mut object,
            "2026-01-01T00:00:00Z".parse().unwrap(),
            Some(Duration::from_secs(30)),
        );
        assert_eq!(
            object["metadata"],
            json!({"generation": 3, "deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30})
        );
    }

    #[test]
    fn generated_names_are_cut_to_fit_and_suffixes_come_from_the_alphabet() {
        assert_eq!(generated_name("db-", "abcde"), "db-abcde");
        assert_eq!(generated_name(&"a".repeat(80), "abcde").len(), 63);
        assert_eq!(generated_name(&"é".repeat(40), "abcde").len(), 63);
        assert_eq!(name_suffix(0), "bbbbb");
        assert!(
            name_suffix(u64::MAX)
                .bytes()
                .all(|byte| SUFFIX_ALPHABET.contains(&byte))
        );
        assert_ne!(name_suffix(1), name_suffix(27));
    }
}
