//! Which sort of object: group, version, kind, and where the API serves it.

use std::{
    any::TypeId,
    collections::HashMap,
    fmt,
    sync::{Arc, LazyLock, RwLock},
};

use serde::{Deserialize, Serialize};

/// A kind of object as the API serves it. Cloning it shares it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Described", into = "Described")]
pub struct Kind(Arc<Described>);

/// Where the objects of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// Each in a namespace.
    Namespaced,
    /// In none.
    Cluster,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct Described {
    group: String,
    kind: String,
    version: String,
    plural: String,
    scope: Scope,
}

impl From<Described> for Kind {
    fn from(described: Described) -> Self {
        Self(Arc::new(described))
    }
}

impl From<Kind> for Described {
    fn from(kind: Kind) -> Self {
        Arc::unwrap_or_clone(kind.0)
    }
}

impl Kind {
    /// A kind that is only known at run time. The group of Kubernetes' oldest kinds is empty.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str, scope: Scope) -> Self {
        Self::from(Described {
            group: group.to_owned(),
            kind: kind.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            scope,
        })
    }

    /// The kind of a type.
    pub fn of<K>() -> Self
    where
        K: kube::Resource<DynamicType = ()> + 'static,
        K::Scope: 'static,
    {
        static KNOWN: LazyLock<RwLock<HashMap<TypeId, Kind>>> = LazyLock::new(RwLock::default);
        let poisoned = "nothing panics while it holds the map of kinds";
        if let Some(kind) = KNOWN.read().expect(poisoned).get(&TypeId::of::<K>()) {
            return kind.clone();
        }
        let scope = if TypeId::of::<K::Scope>() == TypeId::of::<k8s_openapi::ClusterResourceScope>() {
            Scope::Cluster
        } else {
            Scope::Namespaced
        };
        let kind = Self::new(&K::group(&()), &K::version(&()), &K::kind(&()), &K::plural(&()), scope);
        let mut known = KNOWN.write().expect(poisoned);
        known.entry(TypeId::of::<K>()).or_insert(kind).clone()
    }

    /// The API group; empty for the oldest kinds.
    pub fn group(&self) -> &str {
        &self.0.group
    }

    /// The version within the group.
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// The name of the kind, such as `Pod`.
    pub fn name(&self) -> &str {
        &self.0.kind
    }

    /// The name in paths, such as `pods`.
    pub fn plural(&self) -> &str {
        &self.0.plural
    }

    /// Where its objects live.
    pub fn scope(&self) -> Scope {
        self.0.scope
    }

    /// Group and version as objects say them.
    pub fn api_version(&self) -> String {
        match self.group() {
            "" => self.version().to_owned(),
            group => format!("{group}/{}", self.version()),
        }
    }

    /// Whether it is this kind, in any version.
    pub(crate) fn is(&self, group: &str, kind: &str) -> bool {
        self.group() == group && self.name() == kind
    }

    /// Whether a wholesale watch would bring the secrets of everybody into this process.
    pub(crate) fn is_bulky(&self) -> bool {
        self.is("", "Secret") || self.is("", "ConfigMap")
    }

    /// The path of all objects, or of those in a namespace.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group().is_empty() {
            format!("/api/{}", self.version())
        } else {
            format!("/apis/{}/{}", self.group(), self.version())
        };
        match namespace {
            Some(namespace) if self.scope() == Scope::Namespaced => {
                format!("{root}/namespaces/{namespace}/{}", self.plural())
            }
            _ => format!("{root}/{}", self.plural()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.plural(), self.api_version())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};

    use super::*;

    #[test]
    fn a_type_tells_its_kind_and_where_it_is_served() {
        let deployment = Kind::of::<Deployment>();
        assert_eq!(
            deployment.path(Some("prod")),
            "/apis/apps/v1/namespaces/prod/deployments"
        );
        assert_eq!(deployment.path(None), "/apis/apps/v1/deployments");
        let node = Kind::of::<Node>();
        assert_eq!(node.scope(), Scope::Cluster);
        assert_eq!(node.path(Some("prod")), "/api/v1/nodes");
        assert_eq!(node, Kind::new("", "v1", "Node", "nodes", Scope::Cluster));
    }
}
