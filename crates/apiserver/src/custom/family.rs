//! The versions of one custom kind, and the way of an object between them.
//!
//! ```text
//!   stored as v1 ──default by v1──► convert ──► v2 ──prune by v2──► served as v2
//!   written as v2 ───────────────► convert ──► v1 ──prune by v1──► stored as v1
//! ```

use std::sync::{Arc, OnceLock};

use moorline_machinery::{
    gvk::{GroupVersion, GroupVersionKind, split_api_version},
    schema::Schema,
    status::ApiError,
};
use moorline_store::Revision;
use serde_json::Value;

use super::conversion::{self, Conversion};

/// All versions of a custom kind, served or not.
pub(crate) struct Family {
    group: Arc<str>,
    kind: Arc<str>,
    versions: Vec<Member>,
    /// Which of the versions objects are stored in.
    storage: usize,
    conversion: Conversion,
    likeness: Likeness,
    /// When the definition was last changed, or later: what was written since is stored as these schemas want it.
    since: Revision,
}

/// Whether all versions have the same schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Same,
    Different,
}

/// One version of a custom kind.
pub(crate) struct Member {
    name: Arc<str>,
    api_version: Arc<str>,
    written: Option<Value>,
    compiled: OnceLock<Schema>,
}

impl Member {
    /// What its objects may look like. A version without a schema knows nothing and keeps everything.
    pub(crate) fn schema(&self) -> &Schema {
        self.compiled.get_or_init(|| {
            let compiled = self.written.as_ref().map(Schema::custom_resource);
            compiled.and_then(Result::ok).unwrap_or_else(Schema::anything)
        })
    }

    /// Such as `example.com/v1`.
    pub(crate) fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Such as `v1`.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }
}

impl Family {
    /// The family of a valid definition, which was last changed at `since`; nothing if it stores no version.
    pub(crate) fn of(definition: &Value, kind: &str, conversion: Conversion, since: Revision) -> Option<Self> {
        let spec = &definition["spec"];
        let group = spec["group"].as_str()?;
        let written = spec["versions"].as_array()?;
        let storage = written.iter().position(|version| version["storage"] == true)?;
        let versions = written.iter().map(|version| {
            let name = version["name"].as_str()?;
            let schema = &version["schema"]["openAPIV3Schema"];
            Some(Member {
                name: name.into(),
                api_version: format!("{group}/{name}").into(),
                written: schema.is_object().then(|| schema.clone()),
                compiled: OnceLock::new(),
            })
        });
        let versions: Vec<Member> = versions.collect::<Option<_>>()?;
        let alike = versions.iter().all(|version| version.written == versions[0].written);
        Some(Self {
            group: group.into(),
            kind: kind.into(),
            versions,
            storage,
            conversion,
            likeness: if alike { Likeness::Same } else { Likeness::Different },
            since,
        })
    }

    /// One of the versions.
    pub(crate) fn version(&self, name: &str) -> Option<&Member> {
        self.versions.iter().find(|version| &*version.name == name)
    }

    /// The version that objects are stored in.
    pub(crate) fn storage(&self) -> &Member {
        &self.versions[self.storage]
    }

    /// Whether an object of any version can be brought to any other without asking anybody.
    pub(crate) fn converts_at_once(&self) -> bool {
        matches!(self.conversion, Conversion::TypeOnly) || self.versions.len() == 1
    }

    /// Whether what was written at a revision is served as it is stored, but for its type.
    pub(crate) fn serves_as_stored(&self, written: Revision) -> bool {
        written > self.since && self.likeness == Likeness::Same && self.converts_at_once()
    }

    /// Brings a stored object into the state in which it is served in a version, where that can be done at once.
    pub(crate) fn serve_now(&self, object: &mut Value, to: &Member) {
        self.of_object(object).schema().apply_defaults(object);
        object["apiVersion"] = (&*to.api_version).into();
        to.schema().prune(object);
    }

    /// Brings stored objects into the state in which they are served in a version, all with one call to the webhook.
    pub(crate) async fn serve(&self, mut objects: Vec<Value>, to: &Member) -> Result<Vec<Value>, ApiError> {
        if self.converts_at_once() {
            for object in &mut objects {
                self.serve_now(object, to);
            }
            return Ok(objects);
        }
        for object in &mut objects {
            self.of_object(object).schema().apply_defaults(object);
        }
        let mut objects = self.to_version(objects, to).await?;
        for object in &mut objects {
            to.schema().prune(object);
        }
        Ok(objects)
    }

    /// Brings an object of any version into the version in which it is stored.
    pub(crate) async fn store(&self, object: Value) -> Result<Value, ApiError> {
        let storage = self.storage();
        if object["apiVersion"] == *storage.api_version {
            return Ok(object);
        }
        let mut object = match &self.conversion {
            Conversion::TypeOnly => object,
            Conversion::Through(_) => {
                let mut converted = self.to_version(vec![object], storage).await?;
                converted.pop().expect("as many objects come back as were sent")
            }
        };
        object["apiVersion"] = (&*storage.api_version).into();
        storage.schema().prune(&mut object);
        Ok(object)
    }

    /// Brings a stored object up to date with the schema of the version that it is stored in.
    pub(crate) fn refresh(&self, object: &mut Value) {
        let version = self.of_object(object);
        version.schema().apply_defaults(object);
        version.schema().prune(object);
        object["apiVersion"] = (&*version.api_version).into();
    }

    /// Converts those of the objects that are of another version.
    pub(crate) async fn to_version(&self, mut objects: Vec<Value>, to: &Member) -> Result<Vec<Value>, ApiError> {
        let converter = match &self.conversion {
            Conversion::TypeOnly => {
                for object in &mut objects {
                    object["apiVersion"] = (&*to.api_version).into();
                }
                return Ok(objects);
            }
            Conversion::Through(converter) => converter,
        };
        let desired = GroupVersion::new(Arc::clone(&self.group), Arc::clone(&to.name));
        let others: Vec<usize> = (0..objects.len())
            .filter(|index| objects[*index]["apiVersion"] != *to.api_version)
            .collect();
        if others.is_empty() {
            return Ok(objects);
        }
        let named = match objects.as_slice() {
            [only] => GroupVersionKind::new(
                Arc::clone(&self.group),
                Arc::clone(&self.of_object(only).name),
                Arc::clone(&self.kind),
            ),
            _ => GroupVersionKind::new(
                Arc::clone(&self.group),
                Arc::clone(&to.name),
                format!("{}List", self.kind),
            ),
        };
        for index in &others {
            let from = objects[*index]["apiVersion"].as_str().unwrap_or_default();
            if !self.versions.iter().any(|version| &*version.api_version == from) {
                let message = format!("request to convert CR from an invalid group/version: {from}");
                return Err(ApiError::unknown(message));
            }
        }
        let sent: Vec<Value> = others.iter().map(|index| objects[*index].clone()).collect();
        let received = converter.convert(sent, &desired).await;
        let single = objects.len() == 1;
        let received = received.map_err(|error| error.about(&named))?;
        let originals: Vec<&Value> = others.iter().map(|index| &objects[*index]).collect();
        let checked = conversion::check(&originals, received, &desired, &named, single)?;
        for (index, object) in others.into_iter().zip(checked) {
            objects[index] = object;
        }
        Ok(objects)
    }

    /// The version that an object says it is of; what does not say is of the storage version.
    fn of_object(&self, object: &Value) -> &Member {
        let named = object["apiVersion"].as_str().and_then(split_api_version);
        named
            .and_then(|(_, version)| self.version(version))
            .unwrap_or_else(|| self.storage())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::custom::conversion::{ConversionError, Converter, Converting};

    /// Moves `spec.host` to `spec.address` and back, and notes how many objects each call had.
    #[derive(Default)]
    struct Renaming {
        calls: Mutex<Vec<usize>>,
    }

    impl Converter for Renaming {
        fn convert<'c>(&'c self, mut objects: Vec<Value>, desired: &'c GroupVersion) -> Converting<'c> {
            self.calls.lock().unwrap().push(objects.len());
            let (from, to) = if &*desired.version == "v2" {
                ("host", "address")
            } else {
                ("address", "host")
            };
            for object in &mut objects {
                object["apiVersion"] = desired.to_string().into();
                if let Some(spec) = object["spec"].as_object_mut()
                    && let Some(value) = spec.remove(from)
                {
                    spec.insert(to.to_owned(), value);
                }
            }
            Box::pin(async move { Ok(objects) })
        }
    }

    struct Broken;

    impl Converter for Broken {
        fn convert<'c>(&'c self, _: Vec<Value>, _: &'c GroupVersion) -> Converting<'c> {
            Box::pin(async { Err(ConversionError::Answer("no".to_owned())) })
        }
    }

    fn definition() -> Value {
        let schema = |field: &str, default: Option<&str>| {
            let mut port = json!({ "type": "integer" });
            if let Some(default) = default {
                port["default"] = default.parse::<i64>().unwrap().into();
            }
            json!({ "openAPIV3Schema": { "type": "object", "properties": {
                "spec": { "type": "object", "properties": { field: { "type": "string" }, "port": port } },
            }}})
        };
        json!({ "spec": { "group": "example.com", "versions": [
            { "name": "v1", "served": true, "storage": true, "schema": schema("host", Some("1")) },
            { "name": "v2", "served": true, "storage": false, "schema": schema("address", None) },
        ]}})
    }

    fn family(conversion: Conversion) -> Family {
        Family::of(&definition(), "Database", conversion, Revision::new(10)).unwrap()
    }

    fn object(version: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": format!("example.com/{version}"), "kind": "Database",
            "metadata": { "name": "d", "uid": "u" }, "spec": spec,
        })
    }

    #[tokio::test]
    async fn a_list_is_converted_with_one_call_for_those_of_another_version() {
        let converter = Arc::new(Renaming::default());
        let family = family(Conversion::Through(converter.clone()));
        let stored = vec![
            object("v1", &json!({ "host": "a" })),
            object("v2", &json!({ "address": "b" })),
            object("v1", &json!({ "host": "c", "port": 7 })),
        ];
        let served = family.serve(stored, family.version("v2").unwrap()).await.unwrap();
        assert_eq!(*converter.calls.lock().unwrap(), [2]);
        assert_eq!(
            served,
            [
                object("v2", &json!({ "address": "a", "port": 1 })),
                object("v2", &json!({ "address": "b" })),
                object("v2", &json!({ "address": "c", "port": 7 })),
            ]
        );
    }

    #[tokio::test]
    async fn an_object_is_stored_in_the_storage_version() {
        let family = family(Conversion::Through(Arc::new(Renaming::default())));
        let stored = family.store(object("v2", &json!({ "address": "a" }))).await.unwrap();
        assert_eq!(stored, object("v1", &json!({ "host": "a" })));
        assert_eq!(family.store(stored.clone()).await.unwrap(), stored);
    }

    #[tokio::test]
    async fn without_a_webhook_only_the_type_changes_and_unknown_fields_go() {
        let family = family(Conversion::TypeOnly);
        let stored = family
            .store(object("v2", &json!({ "address": "a", "port": 2 })))
            .await
            .unwrap();
        assert_eq!(stored, object("v1", &json!({ "port": 2 })));
        let served = family.serve(vec![stored], family.version("v2").unwrap()).await.unwrap();
        assert_eq!(served, [object("v2", &json!({ "port": 2 }))]);
    }

    #[tokio::test]
    async fn a_failed_conversion_names_the_kind_that_it_failed_for() {
        let family = family(Conversion::Through(Arc::new(Broken)));
        let served = family
            .serve(vec![object("v1", &json!({}))], family.version("v2").unwrap())
            .await;
        let said = "conversion webhook for example.com/v1, Kind=Database failed: no";
        assert_eq!(served.unwrap_err().to_string(), said);
    }

    #[test]
    fn stored_objects_get_the_defaults_of_the_version_that_they_are_stored_in() {
        let family = family(Conversion::TypeOnly);
        let mut stored = object("v1", &json!({}));
        family.serve_now(&mut stored, family.version("v2").unwrap());
        assert_eq!(stored, object("v2", &json!({ "port": 1 })));
    }

    #[test]
    fn only_what_was_written_under_the_schemas_of_now_is_served_as_it_is_stored() {
        let differing = family(Conversion::TypeOnly);
        assert!(!differing.serves_as_stored(Revision::new(11)));
        let mut definition = definition();
        definition["spec"]["versions"].as_array_mut().unwrap().pop();
        let single = Family::of(&definition, "Database", Conversion::TypeOnly, Revision::new(10)).unwrap();
        assert!(single.serves_as_stored(Revision::new(11)));
        assert!(!single.serves_as_stored(Revision::new(10)));
    }
}
