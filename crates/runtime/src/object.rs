//! Objects: the bytes of the API's JSON, shared, with what everybody asks for read out of them once.

use std::{
    any::Any,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, Weak},
};

use moorline_machinery::selector::Lookup;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _};
use serde_json::Value;

use crate::{decode, kind::Kind};

/// An object of any kind. Cloning it shares it; nothing changes it.
///
/// It keeps the JSON as bytes, which take a seventh of the room of the decoded structure, and what caches and
/// controllers ask of every object (names, labels, owners, versions) beside it. [`decode`](Self::decode) gives the
/// typed object, which is kept for as long as anybody holds it.
#[derive(Clone)]
pub struct Object(Arc<Shared>);

struct Shared {
    kind: Kind,
    /// The member cluster that it lives in; none for the home.
    cluster: Option<Arc<str>>,
    meta: Meta,
    /// Text, which needs no second look at whether it is.
    json: Box<str>,
    /// What the last call of `decode` gave, if somebody still has it.
    decoded: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

/// What is read out of every object at the door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Empty for what lives in no namespace.
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) uid: Arc<str>,
    /// The resource version; 0 for an object that no server has seen.
    pub(crate) version: u64,
    pub(crate) generation: i64,
    pub(crate) deleting: bool,
    pub(crate) labels: Box<[(Arc<str>, Arc<str>)]>,
    pub(crate) owners: Box<[Owner]>,
    pub(crate) finalizers: Box<[Arc<str>]>,
    /// What field owners of this process own, as the server tells it: `(field owner, fieldsV1)`.
    pub(crate) applied: Box<[(Arc<str>, Box<str>)]>,
}

/// An owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Group and version.
    pub api_version: Arc<str>,
    /// The kind's name.
    pub kind: Arc<str>,
    /// The owner's name.
    pub name: Arc<str>,
    /// Which one of that name it is.
    pub uid: Arc<str>,
    /// Whether it is the one that manages the object.
    pub controller: bool,
}

/// Which object: kind, namespace and name, and the cluster if it is not the one at hand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The kind.
    pub kind: Kind,
    /// The namespace; empty for what lives in none.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The cluster, where it is not the one that the controller reads its own objects from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Arc<str>>,
}

/// Why bytes are not an object, or not of the type asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {what}: {why}")]
pub struct DecodeError {
    pub(crate) what: String,
    pub(crate) why: String,
}

impl Object {
    /// What the API says an object is. `keep` are the field owners whose ownership is remembered.
    pub fn read(kind: &Kind, json: &[u8], keep: &[Arc<str>]) -> Result<Self, DecodeError> {
        let (meta, json) = decode::at_the_door(kind, json, keep)?;
        Ok(Self(Arc::new(Shared {
            kind: kind.clone(),
            cluster: None,
            meta,
            json,
            decoded: Mutex::new(None),
        })))
    }

    /// The same object, in a member cluster.
    #[must_use]
    pub(crate) fn placed_in(self, cluster: Option<Arc<str>>) -> Self {
        if cluster == self.0.cluster {
            return self;
        }
        Self(Arc::new(Shared {
            kind: self.0.kind.clone(),
            cluster,
            meta: self.0.meta.clone(),
            json: self.0.json.clone(),
            decoded: Mutex::new(None),
        }))
    }

    /// The member cluster that it lives in; none for the home.
    pub fn cluster(&self) -> Option<&str> {
        self.0.cluster.as_deref()
    }

    /// An object that shall be, of a typed structure.
    pub fn of<K>(desired: &K) -> Result<Self, DecodeError>
    where
        K: kube::Resource<DynamicType = ()> + Serialize + 'static,
        K::Scope: 'static,
    {
        let kind = Kind::of::<K>();
        let json = serde_json::to_vec(desired).map_err(|error| DecodeError {
            what: format!("a desired {kind}"),
            why: error.to_string(),
        })?;
        Self::read(&kind, &json, &[])
    }

    /// An object that shall be, of JSON.
    pub fn from_value(kind: &Kind, desired: &Value) -> Result<Self, DecodeError> {
        Self::read(kind, desired.to_string().as_bytes(), &[])
    }

    /// The typed object. Decoding happens once while anybody holds the result.
    pub fn decode<K: DeserializeOwned + Send + Sync + 'static>(&self) -> Result<Arc<K>, DecodeError> {
        let mut decoded = self.0.decoded.lock().expect("nothing panics while it holds this");
        let shared = decoded.as_ref().and_then(Weak::upgrade);
        if let Some(typed) = shared.and_then(|any| any.downcast::<K>().ok()) {
            return Ok(typed);
        }
        let typed: Arc<K> = Arc::new(serde_json::from_str(&self.0.json).map_err(|error| DecodeError {
            what: self.target().to_string(),
            // The words of an error quote what was read, and go into statuses and logs.
            why: if self.0.kind.is("", "Secret") {
                format!("it is not of that type, at column {}", error.column())
            } else {
                error.to_string()
            },
        })?);
        let any: Arc<dyn Any + Send + Sync> = typed.clone();
        *decoded = Some(Arc::downgrade(&any));
        Ok(typed)
    }

    /// The object as a tree of JSON.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0.json).expect("it was read as JSON when it came in")
    }

    /// Its status as a tree of JSON; the rest is not looked into.
    pub(crate) fn status(&self) -> Value {
        #[derive(Deserialize)]
        struct Part {
            #[serde(default)]
            status: Value,
        }
        let part: Part = serde_json::from_str(&self.0.json).expect("it was read as JSON when it came in");
        part.status
    }

    /// The object as JSON text, without managed fields.
    pub fn json(&self) -> &[u8] {
        self.0.json.as_bytes()
    }

    /// Its kind.
    pub fn kind(&self) -> &Kind {
        &self.0.kind
    }

    /// Its namespace; empty for what lives in none.
    pub fn namespace(&self) -> &str {
        &self.0.meta.namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.meta.name
    }

    /// Which one of its name it is; empty for an object that no server has seen.
    pub fn uid(&self) -> &str {
        &self.0.meta.uid
    }

    /// The resource version; 0 for an object that no server has seen.
    pub fn version(&self) -> u64 {
        self.0.meta.version
    }

    /// How often its specification changed.
    pub fn generation(&self) -> i64 {
        self.0.meta.generation
    }

    /// Whether it has been deleted and only waits for its finalizers.
    pub fn is_deleting(&self) -> bool {
        self.0.meta.deleting
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let labels = &self.0.meta.labels;
        labels
            .iter()
            .find(|(name, _)| &**name == key)
            .map(|(_, value)| &**value)
    }

    /// Its labels, sorted by key.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.meta.labels.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Its owners.
    pub fn owners(&self) -> &[Owner] {
        &self.0.meta.owners
    }

    /// The owner that manages it.
    pub fn controller(&self) -> Option<&Owner> {
        self.owners().iter().find(|owner| owner.controller)
    }

    /// Whether it carries a finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.0.meta.finalizers.iter().any(|name| &**name == finalizer)
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.0.meta
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Which object it is.
    pub fn target(&self) -> Target {
        Target {
            kind: self.0.kind.clone(),
            namespace: Arc::clone(&self.0.meta.namespace),
            name: Arc::clone(&self.0.meta.name),
            cluster: self.0.cluster.clone(),
        }
    }
}

impl moorline_plan::Object for Object {
    type Target = Target;

    fn target(&self) -> Target {
        Object::target(self)
    }
}

/// What a label selector looks into.
impl Lookup for Object {
    fn value_of(&self, key: &str) -> Option<&str> {
        self.label(key)
    }
}

/// The same contents, whatever the order of the fields.
impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
            || (self.0.kind == other.0.kind
                && self.0.cluster == other.0.cluster
                && (self.0.json == other.0.json || self.value() == other.value()))
    }
}

/// Tells which object and which version of it, never the contents: those may be secret.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.target(), self.version())
    }
}

#[derive(Serialize, Deserialize)]
struct Written {
    resource: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<Arc<str>>,
    object: Value,
    /// What field owners of the process that wrote it had applied: whether an apply would change anything depends on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    applied: Vec<(Arc<str>, Box<str>)>,
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            resource: self.0.kind.clone(),
            cluster: self.0.cluster.clone(),
            object: self.value(),
            applied: self.meta().applied.to_vec(),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let json = written.object.to_string();
        let (mut meta, json) =
            decode::at_the_door(&written.resource, json.as_bytes(), &[]).map_err(D::Error::custom)?;
        meta.applied = written.applied.into_boxed_slice();
        Ok(Self(Arc::new(Shared {
            kind: written.resource,
            cluster: written.cluster,
            meta,
            json,
            decoded: Mutex::new(None),
        })))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if let Some(cluster) = &self.cluster {
            write!(f, "{cluster}:")?;
        }
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// The name of an object of a kind that is known: what a controller's queue holds.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The namespace; empty for what lives in none.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of a name in a namespace, which is empty for what lives in none.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: crate::intern::intern(namespace),
            name: Arc::from(name),
        }
    }

    /// The key of a name in the namespace of another object.
    pub fn beside(object: &impl kube::Resource, name: &str) -> Self {
        Self::new(object.meta().namespace.as_deref().unwrap_or_default(), name)
    }

    /// The key of an object.
    pub fn of(object: &Object) -> Self {
        Self {
            namespace: Arc::clone(&object.meta().namespace),
            name: Arc::clone(&object.meta().name),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.namespace == other.namespace
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.name.hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        (&self.namespace, &self.name).cmp(&(&other.namespace, &other.name))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}
