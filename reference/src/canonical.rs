//! What is left of an answer once everything that no two servers share has become a name.
//!
//! An id, a revision, a generated name or an address becomes the place where it was first seen in the scenario. So two
//! servers agree when they say the same thing twice in the same places, not merely when they say something: an update
//! that changes nothing must keep its revision on both.

use std::{collections::HashMap, sync::LazyLock};

use jiff::{SignedDuration, Timestamp};
use regex::{Captures, Regex};
use serde_json::{Map, Value, json};

use crate::client::Answer;

/// The headers that mean something to a client.
const HEADERS: [&str; 6] = [
    "allow",
    "content-type",
    "location",
    "retry-after",
    "warning",
    "www-authenticate",
];

static UID: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b").expect("a fixed pattern"));
static TIME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| \+0000 UTC)").expect("a fixed pattern"));
static SERVICE_ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b10\.96\.\d{1,3}\.\d{1,3}\b").expect("a fixed pattern"));
static OWN_ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b127\.0\.0\.1:\d{4,5}\b").expect("a fixed pattern"));
/// A number that stands for itself. One behind an equals sign does not, nor does one that counts bytes, begins an
/// example of a name or is the code of an answer.
static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(^|[^=\w])(\d+)\b( bytes|-abc|: Not Acceptable)?").expect("a fixed pattern"));
/// What a certificate is known by, and the end of the name of a volume that a server adds to pods.
static OWN_NAMES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(X509SHA256=)[0-9a-f]{64}|\b(kube-api-access-)[a-z0-9]{5}\b").expect("a fixed pattern")
});
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(\d+[smhdy])+$|^<invalid>$").expect("a fixed pattern"));

const BOOKMARK: &str = "BOOKMARK";
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

fn is_bookmark(event: &Value) -> bool {
    event["type"] == BOOKMARK
}

fn ends_initial_events(event: &Value) -> bool {
    event["object"]["metadata"]["annotations"][INITIAL_EVENTS_END].is_string()
}

/// The names that one server's values have been given in one scenario.
#[derive(Default)]
pub struct Canonical {
    names: HashMap<String, String>,
    generated: Vec<(String, String)>,
}

impl Canonical {
    /// The answer to the step of this number, in canonical form: its status, the headers that matter, its body.
    pub fn answer(&mut self, step: usize, answer: &Answer) -> Value {
        let mut headers = Map::new();
        for name in HEADERS {
            let mut values: Vec<Value> = answer
                .headers
                .get_all(name)
                .iter()
                .map(|value| self.text(&String::from_utf8_lossy(value.as_bytes()), &format!("{step}:{name}")))
                .collect();
            values.sort_by_key(Value::to_string);
            if !values.is_empty() {
                headers.insert(name.to_owned(), Value::Array(values));
            }
        }
        let body = self.body(step, &answer.body);
        json!({"status": answer.status.as_u16(), "headers": headers, "body": body})
    }

    fn body(&mut self, step: usize, body: &[u8]) -> Value {
        // A watch is one document after the other.
        let mut documents: Result<Vec<Value>, _> = serde_json::Deserializer::from_slice(body).into_iter().collect();
        if let Ok(documents) = &mut documents {
            // How many bookmarks come in a row is a matter of the clock.
            documents.dedup_by(|next, last| is_bookmark(next) && is_bookmark(last) && !ends_initial_events(next));
        }
        let place = format!("{step}:");
        match documents {
            Ok(mut documents) if documents.len() == 1 => {
                let document = documents.remove(0);
                let is_event = document.get("type").is_some() && document.get("object").is_some();
                let value = self.value(document, &place);
                if is_event { Value::Array(vec![value]) } else { value }
            }
            Ok(documents) => Value::Array(
                documents
                    .into_iter()
                    .enumerate()
                    .map(|(index, document)| self.value(document, &format!("{place}/{index}")))
                    .collect(),
            ),
            Err(_) => self.text(&String::from_utf8_lossy(body), &place),
        }
    }

    fn value(&mut self, value: Value, place: &str) -> Value {
        match value {
            Value::String(text) => self.text(&text, place),
            Value::Array(items) => Value::Array(
                items
                    .into_iter()
                    .enumerate()
                    .map(|(index, item)| self.value(item, &format!("{place}/{index}")))
                    .collect(),
            ),
            Value::Object(map) => self.object(map, place),
            other => other,
        }
    }

    fn object(&mut self, mut map: Map<String, Value>, place: &str) -> Value {
        // The revision of a list is that of the whole store, which others write to as well.
        let of_the_store = map.contains_key("items")
            || matches!(map.get("kind").and_then(Value::as_str), Some(kind) if kind.ends_with("List") || kind == "Table");
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut)
            && (of_the_store
                || metadata
                    .get("annotations")
                    .is_some_and(|a| a.get(INITIAL_EVENTS_END).is_some()))
            && metadata.contains_key("resourceVersion")
        {
            metadata.insert("resourceVersion".to_owned(), json!("<revision>"));
        }
        if map.get("type").is_some_and(|kind| kind == BOOKMARK)
            && let Some(revision) = map
                .get_mut("object")
                .and_then(|o| o.pointer_mut("/metadata/resourceVersion"))
        {
            *revision = json!("<revision>");
        }
        if let (Some(Value::String(base)), Some(Value::String(name))) = (map.get("generateName"), map.get("name"))
            && name.len() > base.len()
            && name.starts_with(base.as_str())
            && !self.generated.iter().any(|(known, _)| known == name)
        {
            self.generated
                .push((name.clone(), format!("{base}<generated at {place}>")));
        }
        if let Some(Value::Array(entries)) = map.get_mut("managedFields") {
            // Their order follows times that two servers do not share.
            entries.sort_by_key(|entry| {
                let part = |name| entry.get(name).map(Value::to_string);
                (
                    part("manager"),
                    part("operation"),
                    part("subresource"),
                    part("apiVersion"),
                )
            });
        }
        let is_custom = |group: Option<&Value>| {
            group
                .and_then(Value::as_str)
                .is_some_and(|group| group.ends_with(".example.com"))
        };
        let of_custom = is_custom(map.get("group"));
        if let Some(Value::Array(causes)) = map.get_mut("causes")
            && (of_custom || causes.iter().all(|cause| cause["reason"] == "FieldManagerConflict"))
        {
            // They come in the order of a hash table.
            causes.sort_by_key(Value::to_string);
        }
        if let Some(Value::String(message)) = map.get_mut("message") {
            // So do they in words; and of what cannot be typed, only what comes before the first unknown field is told.
            let invalid = message
                .find(" is invalid: [")
                .filter(|_| message.contains(".example.com "));
            let untyped = message.find("): ").filter(|_| {
                message.starts_with("failed to create typed patch object") && message.contains(".example.com/")
            });
            if let Some(end) = invalid.or(untyped) {
                message.truncate(end);
            }
        }
        for rules in ["resourceRules", "nonResourceRules"] {
            // They come in the order of a hash table.
            if let Some(Value::Array(rules)) = map.get_mut(rules) {
                rules.sort_by_key(Value::to_string);
            }
        }
        let named = map
            .into_iter()
            .map(|(key, value)| {
                let place = format!("{place}/{key}");
                let value = match (key.as_str(), value) {
                    ("resourceVersion", Value::String(text)) if text.parse::<u64>().is_ok_and(|n| n > 0) => {
                        json!(self.name(&text, "revision", &place))
                    }
                    ("continue", Value::String(text)) if !text.is_empty() => json!("<continue>"),
                    ("token", Value::String(text)) if text.len() > 100 => json!("<token>"),
                    ("nodePort" | "healthCheckNodePort", Value::Number(number)) => {
                        json!(self.name(&number.to_string(), "node port", &place))
                    }
                    ("cells", Value::Array(cells)) => Value::Array(
                        cells
                            .into_iter()
                            .enumerate()
                            .map(|(index, cell)| match cell {
                                Value::String(text) if AGE.is_match(&text) => json!("<age>"),
                                cell => self.value(cell, &format!("{place}/{index}")),
                            })
                            .collect(),
                    ),
                    ("message", Value::String(text)) => {
                        let text = self.quoted_objects(&text, &place);
                        let text = self.revisions(&text);
                        self.text(&text, &place)
                    }
                    (_, value) => self.value(value, &place),
                };
                (key, value)
            })
            .collect();
        Value::Object(named)
    }

    /// The name of a value: where it was first seen.
    fn name(&mut self, value: &str, what: &str, place: &str) -> String {
        self.names
            .entry(value.to_owned())
            .or_insert_with(|| format!("<{what} first seen at {place}>"))
            .clone()
    }

    /// A message in which the objects that it quotes are canonical too: their fields have no order.
    fn quoted_objects(&mut self, text: &str, place: &str) -> String {
        let (mut done, mut rest) = (String::new(), text);
        while let Some(start) = rest.find("\"{") {
            let mut strings = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<String>();
            let quoted = strings.next().and_then(Result::ok);
            let end = start + strings.byte_offset();
            let object = quoted.and_then(|quoted| serde_json::from_str::<Map<String, Value>>(&quoted).ok());
            if let Some(object) = object {
                done.push_str(&rest[..start]);
                let canonical = self.object(object, place);
                done.push_str(&Value::String(canonical.to_string()).to_string());
                rest = &rest[end..];
            } else {
                done.push_str(&rest[..=start]);
                rest = &rest[start + 1..];
            }
        }
        done + rest
    }

    /// A message with the revisions in it named, as far as they have been seen.
    fn revisions(&self, text: &str) -> String {
        let named = |found: &Captures<'_>| {
            let (before, number) = (&found[1], &found[2]);
            match self.names.get(number) {
                Some(name) if found.get(3).is_none() && number.len() > 1 && name.starts_with("<revision") => {
                    format!("{before}{name}")
                }
                _ => found[0].to_owned(),
            }
        };
        NUMBER.replace_all(text, named).into_owned()
    }

    fn text(&mut self, text: &str, place: &str) -> Value {
        let now = Timestamp::now();
        let text = TIME.replace_all(text, |found: &Captures<'_>| {
            let written = found[0].replace(" +0000 UTC", "Z").replace(' ', "T");
            match written.parse::<Timestamp>() {
                Ok(time) if now.duration_since(time).abs() < NEARLY_NOW => {
                    if found.get(1).is_some() {
                        "<now in micros>".to_owned()
                    } else {
                        "<now>".to_owned()
                    }
                }
                _ => found[0].to_owned(),
            }
        });
        let text = UID.replace_all(&text, |found: &Captures<'_>| self.name(&found[0], "uid", place));
        let text = SERVICE_ADDRESS.replace_all(&text, |found: &Captures<'_>| self.name(&found[0], "address", place));
        let text = OWN_NAMES.replace_all(&text, "$1$2<its own>");
        let mut text = OWN_ADDRESS.replace_all(&text, "<own address>").into_owned();
        for (name, canonical) in &self.generated {
            text = text.replace(name.as_str(), canonical);
        }
        Value::String(text)
    }
}

/// Times this near were taken from a clock, not from a request.
const NEARLY_NOW: SignedDuration = SignedDuration::from_hours(3);

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn answer(body: &Value) -> Answer {
        Answer {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: Bytes::from(body.to_string()),
        }
    }

    fn object(uid: &str, revision: &str) -> Value {
        json!({"kind": "A", "metadata": {"uid": uid, "resourceVersion": revision}})
    }

    const A: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const B: &str = "11234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn two_servers_with_ids_of_their_own_agree() {
        let (mut one, mut two) = (Canonical::default(), Canonical::default());
        assert_eq!(
            one.answer(0, &answer(&object(A, "5"))),
            two.answer(0, &answer(&object(B, "700")))
        );
    }

    #[test]
    fn a_revision_that_moves_on_one_server_alone_is_told() {
        let (mut one, mut two) = (Canonical::default(), Canonical::default());
        one.answer(0, &answer(&object(A, "5")));
        two.answer(0, &answer(&object(B, "700")));
        assert_ne!(
            one.answer(1, &answer(&object(A, "5"))),
            two.answer(1, &answer(&object(B, "701")))
        );
    }

    #[test]
    fn an_object_that_a_message_quotes_has_no_order() {
        let message = |object: &str| {
            let text = format!("patch: Invalid value: {}: why", Value::from(object));
            Canonical::default().answer(0, &answer(&json!({"message": text})))
        };
        assert_eq!(message("{\"b\":1,\"a\":{}}"), message("{\"a\":{},\"b\":1}"));
        assert_ne!(message("{\"b\":1,\"a\":{}}"), message("{\"a\":{},\"b\":2}"));
    }

    #[test]
    fn a_time_from_a_request_is_kept_and_one_from_a_clock_is_not() {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let given = json!({"a": "2020-01-01T00:00:00Z", "b": now});
        let canonical = Canonical::default().answer(0, &answer(&given));
        assert_eq!(canonical["body"], json!({"a": "2020-01-01T00:00:00Z", "b": "<now>"}));
    }

    #[test]
    fn bookmarks_in_a_row_are_one() {
        let watched = |events: &[Value]| {
            let lines: Vec<String> = events.iter().map(Value::to_string).collect();
            Canonical::default().body(0, lines.join("\n").as_bytes())
        };
        let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}});
        let added = json!({"type": "ADDED", "object": object(A, "4")});
        assert_eq!(
            watched(&[added.clone(), bookmark.clone(), bookmark.clone()]),
            watched(&[added.clone(), bookmark.clone()])
        );
        assert_ne!(watched(&[added.clone(), bookmark]), watched(&[added]));
    }
}
