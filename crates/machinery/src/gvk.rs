//! Which kind or resource of which API group, in which version.
//!
//! The parts are shared text: these values are cloned with every object and event.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// A group and one of its versions: `apps/v1`, or `v1` for the core group, whose name is empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// Empty for the core group.
    pub group: Arc<str>,
    /// Such as `v1`.
    pub version: Arc<str>,
}

/// A kind in a version of a group. Prints as `apps/v1, Kind=Deployment`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// Empty for the core group.
    pub group: Arc<str>,
    /// Such as `v1`.
    pub version: Arc<str>,
    /// Such as `Deployment`.
    pub kind: Arc<str>,
}

/// A resource in a version of a group. Prints as `apps/v1, Resource=deployments`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    /// Empty for the core group.
    pub group: Arc<str>,
    /// Such as `v1`.
    pub version: Arc<str>,
    /// The plural, such as `deployments`.
    pub resource: Arc<str>,
}

/// A resource of a group, whatever the version. Prints as `deployments.apps`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// Empty for the core group.
    pub group: Arc<str>,
    /// The plural, such as `deployments`.
    pub resource: Arc<str>,
}

/// A kind of a group, whatever the version. Prints as `Deployment.apps`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// Empty for the core group.
    pub group: Arc<str>,
    /// Such as `Deployment`.
    pub kind: Arc<str>,
}

/// Text that is not `version` or `group/version`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unexpected GroupVersion string: {0}")]
pub struct ParseGroupVersionError(String);

impl GroupVersion {
    /// The version of a group; the core group is `""`.
    pub fn new(group: impl Into<Arc<str>>, version: impl Into<Arc<str>>) -> Self {
        GroupVersion {
            group: group.into(),
            version: version.into(),
        }
    }

    /// A kind of this version.
    pub fn with_kind(&self, kind: impl Into<Arc<str>>) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: kind.into(),
        }
    }

    /// A resource of this version.
    pub fn with_resource(&self, resource: impl Into<Arc<str>>) -> GroupVersionResource {
        GroupVersionResource {
            group: self.group.clone(),
            version: self.version.clone(),
            resource: resource.into(),
        }
    }
}

/// `apps/v1` to `("apps", "v1")` without copying; `None` when there is more than one slash.
pub fn split_api_version(api_version: &str) -> Option<(&str, &str)> {
    match api_version.split_once('/') {
        None => Some(("", api_version)),
        Some((_, version)) if version.contains('/') => None,
        Some(parts) => Some(parts),
    }
}

impl FromStr for GroupVersion {
    type Err = ParseGroupVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (group, version) = split_api_version(text).ok_or_else(|| ParseGroupVersionError(text.to_owned()))?;
        Ok(GroupVersion::new(group, version))
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_group_version(f, &self.group, &self.version)
    }
}

impl Serialize for GroupVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GroupVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl GroupVersionKind {
    /// A kind in a version of a group; the core group is `""`.
    pub fn new(group: impl Into<Arc<str>>, version: impl Into<Arc<str>>, kind: impl Into<Arc<str>>) -> Self {
        GroupVersionKind {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        }
    }

    /// From an object's `apiVersion` and `kind`. `None` when either is missing, empty or malformed.
    pub fn of(object: &Value) -> Option<Self> {
        let kind = object.get("kind")?.as_str().filter(|kind| !kind.is_empty())?;
        let (group, version) = split_api_version(object.get("apiVersion")?.as_str()?)?;
        (!version.is_empty()).then(|| GroupVersionKind::new(group, version, kind))
    }

    /// What stands in `apiVersion`.
    pub fn api_version(&self) -> String {
        self.group_version().to_string()
    }

    /// Without the kind.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion {
            group: self.group.clone(),
            version: self.version.clone(),
        }
    }

    /// Without the version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind {
            group: self.group.clone(),
            kind: self.kind.clone(),
        }
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl GroupVersionResource {
    /// A resource in a version of a group; the core group is `""`.
    pub fn new(group: impl Into<Arc<str>>, version: impl Into<Arc<str>>, resource: impl Into<Arc<str>>) -> Self {
        GroupVersionResource {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }

    /// Without the resource.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion {
            group: self.group.clone(),
            version: self.version.clone(),
        }
    }

    /// Without the version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource {
            group: self.group.clone(),
            resource: self.resource.clone(),
        }
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

impl GroupResource {
    /// A resource of a group; the core group is `""`.
    pub fn new(group: impl Into<Arc<str>>, resource: impl Into<Arc<str>>) -> Self {
        GroupResource {
            group: group.into(),
            resource: resource.into(),
        }
    }
}

impl From<&str> for GroupResource {
    /// `deployments.apps`; everything up to the first dot is the resource.
    fn from(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        GroupResource::new(group, resource)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.resource, &self.group)
    }
}

impl GroupKind {
    /// A kind of a group; the core group is `""`.
    pub fn new(group: impl Into<Arc<str>>, kind: impl Into<Arc<str>>) -> Self {
        GroupKind {
            group: group.into(),
            kind: kind.into(),
        }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.kind, &self.group)
    }
}

/// The three-part values are objects in JSON: `{"group": "apps", "version": "v1", "kind": "Deployment"}`.
macro_rules! as_json_object {
    ($name:ident { $($field:ident),+ }) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let mut object = serializer.serialize_struct(stringify!($name), [$(stringify!($field)),+].len())?;
                $(object.serialize_field(stringify!($field), &*self.$field)?;)+
                object.end()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                struct Parts { $($field: String),+ }
                let parts = Parts::deserialize(deserializer)?;
                Ok($name { $($field: parts.$field.into()),+ })
            }
        }
    };
}
as_json_object!(GroupVersionKind { group, version, kind });
as_json_object!(GroupVersionResource {
    group,
    version,
    resource
});
as_json_object!(GroupResource { group, resource });
as_json_object!(GroupKind { group, kind });

fn write_group_version(f: &mut fmt::Formatter<'_>, group: &str, version: &str) -> fmt::Result {
    if group.is_empty() {
        f.write_str(version)
    } else {
        write!(f, "{group}/{version}")
    }
}

fn write_qualified(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    if group.is_empty() {
        f.write_str(name)
    } else {
        write!(f, "{name}.{group}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_group_version_survives_text_and_json() {
        for text in ["v1", "apps/v1", "rbac.authorization.k8s.io/v1beta1"] {
            let parsed: GroupVersion = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            assert_eq!(serde_json::to_value(&parsed).unwrap(), json!(text));
            assert_eq!(serde_json::from_value::<GroupVersion>(json!(text)).unwrap(), parsed);
        }
        assert_eq!(
            "a/b/c".parse::<GroupVersion>().unwrap_err().to_string(),
            "unexpected GroupVersion string: a/b/c"
        );
    }

    #[test]
    fn an_object_tells_its_kind_only_when_it_has_one() {
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
        assert_eq!(
            GroupVersionKind::of(&deployment),
            Some(GroupVersionKind::new("apps", "v1", "Deployment"))
        );
        for object in [
            json!({"kind": "Pod"}),
            json!({"apiVersion": "v1", "kind": ""}),
            json!({"apiVersion": "a/b/c", "kind": "X"}),
        ] {
            assert_eq!(GroupVersionKind::of(&object), None);
        }
    }

    #[test]
    fn values_print_as_in_kubernetes() {
        assert_eq!(GroupVersionKind::new("", "v1", "Event").to_string(), "/v1, Kind=Event");
        assert_eq!(
            GroupVersionResource::new("apps", "v1", "deployments").to_string(),
            "apps/v1, Resource=deployments"
        );
        assert_eq!(GroupResource::from("deployments.apps").to_string(), "deployments.apps");
        assert_eq!(GroupResource::from("pods").to_string(), "pods");
        assert_eq!(GroupKind::new("apps", "Deployment").to_string(), "Deployment.apps");
    }

    #[test]
    fn a_kind_is_an_object_in_json() {
        let kind = GroupVersionKind::new("apps", "v1", "Deployment");
        let value = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
        assert_eq!(serde_json::to_value(&kind).unwrap(), value);
        assert_eq!(serde_json::from_value::<GroupVersionKind>(value).unwrap(), kind);
    }
}
