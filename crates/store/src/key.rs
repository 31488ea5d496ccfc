use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// Where an object is kept. Keys order by resource, then namespace, then name, so a resource and a namespace of it are
/// each one contiguous range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    resource: Resource,
    namespace: Arc<str>,
    name: Arc<str>,
}

impl Key {
    /// The key of `name` in `namespace`; the namespace is empty for objects that have none.
    pub fn new(resource: &Resource, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            resource: resource.clone(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The kind of object.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The namespace; empty when the object has none.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The scopes that the key lies in, widest first.
    pub(crate) fn scopes(&self) -> [Scope; 3] {
        [
            Scope::Resource(self.resource.clone()),
            Scope::Namespace(self.resource.clone(), Arc::clone(&self.namespace)),
            Scope::Object(self.clone()),
        ]
    }

    /// Bytes of text that the key holds.
    pub(crate) fn size(&self) -> usize {
        self.resource.as_str().len() + self.namespace.len() + self.name.len()
    }

    /// The same key, holding `neighbour`'s copies of whatever text is equal in both.
    pub(crate) fn sharing_with(mut self, neighbour: &Self) -> Self {
        if self.resource == neighbour.resource {
            self.resource = neighbour.resource.clone();
        }
        if self.namespace == neighbour.namespace {
            self.namespace = Arc::clone(&neighbour.namespace);
        }
        self
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.resource, self.name)
        } else {
            write!(f, "{} {}/{}", self.resource, self.namespace, self.name)
        }
    }
}

/// A kind of object, such as `apps/deployments`. Cheap to clone; make one per kind and keep it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resource(Arc<str>);

impl Resource {
    /// The resource of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name it was made with.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for Resource {
    fn cmp(&self, other: &Self) -> Ordering {
        // Keys of one resource share its text, and ordered maps compare nothing else as often.
        if Arc::ptr_eq(&self.0, &other.0) {
            Ordering::Equal
        } else {
            self.0.cmp(&other.0)
        }
    }
}

impl PartialOrd for Resource {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a list or a watch looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All objects of a resource, in every namespace.
    Resource(Resource),
    /// The objects of a resource in one namespace.
    Namespace(Resource, Arc<str>),
    /// One object.
    Object(Key),
}

impl Scope {
    /// Everything of `resource` in `namespace`.
    pub fn namespace(resource: &Resource, namespace: impl Into<Arc<str>>) -> Self {
        Self::Namespace(resource.clone(), namespace.into())
    }

    /// The resource that all objects in this scope share.
    pub fn resource(&self) -> &Resource {
        match self {
            Self::Resource(resource) | Self::Namespace(resource, _) => resource,
            Self::Object(key) => key.resource(),
        }
    }

    /// Whether `key` lies within.
    pub fn contains(&self, key: &Key) -> bool {
        match self {
            Self::Resource(resource) => resource == key.resource(),
            Self::Namespace(resource, namespace) => **namespace == *key.namespace() && resource == key.resource(),
            Self::Object(object) => object == key,
        }
    }

    /// A key that no key within comes before.
    pub(crate) fn first(&self) -> Key {
        match self {
            Self::Resource(resource) => Key::new(resource, "", ""),
            Self::Namespace(resource, namespace) => Key::new(resource, Arc::clone(namespace), ""),
            Self::Object(key) => key.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_one_range_even_beside_names_that_extend_it() {
        let pods = Resource::new("pods");
        let mut keys = [
            Key::new(&pods, "a-b", "x"),
            Key::new(&pods, "a", "z"),
            Key::new(&pods, "a.b", "x"),
            Key::new(&pods, "a", "b"),
        ];
        keys.sort();
        let order: Vec<String> = keys.iter().map(ToString::to_string).collect();
        assert_eq!(order, ["pods a/b", "pods a/z", "pods a-b/x", "pods a.b/x"]);
    }

    #[test]
    fn resources_order_by_name_whoever_holds_the_text() {
        let (one, same, other) = (Resource::new("pods"), Resource::new("pods"), Resource::new("secrets"));
        assert_eq!(one.cmp(&same), Ordering::Equal);
        assert!(one < other && same < other);
    }
}
