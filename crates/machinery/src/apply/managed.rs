//! `metadata.managedFields`: who owns which fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::FieldSet;

/// How a manager came to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// It said what it wants, as a whole: what it no longer says goes.
    Apply,
    /// It changed them.
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// What tells one entry from another. Appliers have one entry whatever version they used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    /// The name that the client gave itself.
    pub name: String,
    /// How it came to own fields.
    pub operation: Operation,
    /// The version that an updater used; empty for appliers.
    pub(crate) api_version: String,
    /// The subresource through which it came; empty for the object itself.
    pub subresource: String,
}

impl Manager {
    pub(crate) fn new(name: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let name = if name.is_empty() { "unknown" } else { name };
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        Self {
            name: name.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }
}

/// What a manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The fields.
    pub fields: FieldSet,
    /// The version whose names the fields have.
    pub api_version: String,
    /// When the entry last changed, as RFC 3339 in UTC.
    pub time: Option<String>,
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedFields {
    entries: BTreeMap<Manager, Owned>,
}

/// Why `metadata.managedFields` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to decode managed fields: {0}")]
pub struct ManagedFieldsError(String);

impl ManagedFields {
    /// The entries of an object.
    pub fn of(object: &Value) -> Result<Self, ManagedFieldsError> {
        let mut all = Self::default();
        let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        for (index, entry) in entries.into_iter().flatten().enumerate() {
            let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(ManagedFieldsError("operation must be `Apply` or `Update`".to_owned())),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err(ManagedFieldsError("apiVersion must not be empty".to_owned()));
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => {
                    let reason = format!("missing fieldsType in managed fields entry {index}");
                    return Err(ManagedFieldsError(reason));
                }
                other => {
                    let reason = format!("invalid fieldsType {other:?} in managed fields entry {index}");
                    return Err(ManagedFieldsError(reason));
                }
            }
            let fields = FieldSet::from_fields_v1(entry.get("fieldsV1").unwrap_or(&Value::Null))
                .map_err(|error| ManagedFieldsError(error.to_string()))?;
            let manager = Manager {
                name: text("manager").to_owned(),
                operation,
                api_version: if operation == Operation::Apply {
                    String::new()
                } else {
                    api_version.to_owned()
                },
                subresource: text("subresource").to_owned(),
            };
            let time = entry.get("time").and_then(Value::as_str).map(ToOwned::to_owned);
            all.entries.insert(
                manager,
                Owned {
                    fields,
                    api_version: api_version.to_owned(),
                    time,
                },
            );
        }
        Ok(all)
    }

    /// Puts the entries into an object, in the order of API servers: appliers first, then by time and name.
    pub fn store(&self, object: &mut Value) {
        store(self.entries.iter().collect(), object);
    }

    /// Each manager with what it owns.
    pub fn iter(&self) -> impl Iterator<Item = (&Manager, &Owned)> {
        self.entries.iter()
    }

    /// What a manager owns.
    pub fn get(&self, manager: &Manager) -> Option<&Owned> {
        self.entries.get(manager)
    }

    /// Whether nobody owns anything.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn entries_mut(&mut self) -> &mut BTreeMap<Manager, Owned> {
        &mut self.entries
    }

    /// Whether both say the same but for times.
    pub(crate) fn same_ownership(&self, other: &Self) -> bool {
        self.entries.len() == other.entries.len()
            && self
                .entries
                .iter()
                .zip(&other.entries)
                .all(|((a, x), (b, y))| a == b && x.fields == y.fields && x.api_version == y.api_version)
    }

    /// Merges the oldest updaters into one entry a version, until no more than `most` are left.
    pub(crate) fn cap_updaters(&mut self, most: usize) {
        const BUCKET: &str = "ancient-changes";
        let mut updaters: Vec<(Option<String>, Manager)> = self
            .entries
            .iter()
            .filter(|(manager, _)| manager.operation == Operation::Update)
            .map(|(manager, owned)| (owned.time.clone(), manager.clone()))
            .collect();
        let mut count = updaters.len();
        updaters.sort();
        let mut first_of: BTreeMap<String, Manager> = BTreeMap::new();
        for (time, manager) in updaters {
            if count <= most {
                return;
            }
            let version = manager.api_version.clone();
            let Some(first) = first_of.get(&version) else {
                first_of.insert(version, manager);
                continue;
            };
            let bucket = Manager::new(BUCKET, Operation::Update, &version, "");
            if !self.entries.contains_key(&bucket)
                && let Some(owned) = self.entries.remove(first)
            {
                self.entries.insert(bucket.clone(), owned);
            }
            if manager == bucket {
                continue;
            }
            let Some(merged) = self.entries.remove(&manager) else {
                continue;
            };
            if let Some(owned) = self.entries.get_mut(&bucket) {
                owned.fields = merged.fields.union(&owned.fields);
                owned.time = time;
            }
            count -= 1;
        }
    }
}

/// Puts entries into an object, in the order of API servers: appliers first, then by time and name.
pub(crate) fn store(mut entries: Vec<(&Manager, &Owned)>, object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if entries.is_empty() {
        metadata.remove("managedFields");
        return;
    }
    entries.sort_by(|(a, x), (b, y)| {
        let key = |manager: &Manager, owned: &Owned| {
            let Owned { api_version, time, .. } = owned.clone();
            (
                manager.operation,
                time,
                manager.name.clone(),
                api_version,
                manager.subresource.clone(),
            )
        };
        key(a, x).cmp(&key(b, y))
    });
    let entries = entries.into_iter().map(|(manager, owned)| {
        let mut entry = Map::new();
        let mut put = |key: &str, value: &str| {
            if !value.is_empty() {
                entry.insert(key.to_owned(), Value::from(value));
            }
        };
        put("manager", &manager.name);
        put("operation", manager.operation.name());
        put("apiVersion", &owned.api_version);
        put("time", owned.time.as_deref().unwrap_or_default());
        put("fieldsType", "FieldsV1");
        put("subresource", &manager.subresource);
        entry.insert("fieldsV1".to_owned(), owned.fields.to_fields_v1());
        Value::Object(entry)
    });
    metadata.insert("managedFields".to_owned(), entries.collect());
}
