//! What a request's path is about: which resource, which object, which part of it.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;

/// A path below `/api/v1` or `/apis/GROUP/VERSION`, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    /// The API group; empty for the core one.
    pub(crate) group: String,
    /// The version.
    pub(crate) version: String,
    /// The namespace; empty at cluster scope and for lists over all namespaces.
    pub(crate) namespace: String,
    /// The resource, in the plural.
    pub(crate) resource: String,
    /// The object's name; empty for the collection.
    pub(crate) name: String,
    /// The part of the object; empty for all of it.
    pub(crate) subresource: String,
    /// What lies behind the subresource, for proxies.
    pub(crate) rest: String,
    /// Whether this is one of the old `/watch/` paths.
    pub(crate) watch: bool,
}

/// Takes a path apart; nothing when it is not about resources.
pub(crate) fn parse(path: &str) -> Option<ResourcePath> {
    // As elsewhere, a slash is a slash however it is written; no name has one.
    let path = percent_decode_str(path).decode_utf8_lossy();
    let mut segments = path.split('/').skip(1).map(Cow::Borrowed);
    let mut found = ResourcePath::default();
    match segments.next()?.as_ref() {
        "api" => {}
        "apis" => found.group = segments.next().filter(|group| !group.is_empty())?.into_owned(),
        _ => return None,
    }
    found.version = segments.next().filter(|version| !version.is_empty())?.into_owned();
    let mut rest: Vec<String> = segments.map(Cow::into_owned).collect();
    if rest.last().is_some_and(String::is_empty) {
        rest.pop();
    }
    let mut rest = rest.into_iter().peekable();
    if rest.peek().is_some_and(|segment| segment == "watch") {
        rest.next();
        found.watch = true;
    }
    found.resource = rest.next()?;
    if found.resource == "namespaces" && found.group.is_empty() {
        let Some(namespace) = rest.next() else {
            return Some(found);
        };
        match rest.next() {
            // `/namespaces/NAME`, and the parts of a namespace that are not resources within it.
            None => found.name = namespace,
            Some(part) if matches!(part.as_str(), "status" | "finalize") && rest.peek().is_none() => {
                found.name = namespace;
                found.subresource = part;
            }
            Some(resource) => {
                found.namespace = namespace;
                found.resource = resource;
                fill_object(&mut found, rest);
            }
        }
        return Some(found);
    }
    if found.resource == "namespaces"
        && let Some(namespace) = rest.next()
    {
        found.namespace = namespace;
        found.resource = rest.next()?;
    }
    fill_object(&mut found, rest);
    Some(found)
}

fn fill_object(found: &mut ResourcePath, mut rest: impl Iterator<Item = String>) {
    found.name = rest.next().unwrap_or_default();
    found.subresource = rest.next().unwrap_or_default();
    found.rest = rest.collect::<Vec<_>>().join("/");
}

/// What is done to a resource, in the words of RBAC and admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// Every verb.
    pub(crate) const ALL: [Self; 8] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
    ];

    /// The kind of the options that a request of this verb carries.
    pub(crate) fn options_kind(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Patch => "PatchOptions",
            Self::Delete | Self::DeleteCollection => "DeleteOptions",
            Self::Get => "GetOptions",
            Self::List | Self::Watch => "ListOptions",
        }
    }

    /// The verb of a method on a path; nothing for methods that mean nothing there.
    pub(crate) fn of(method: &Method, path: &ResourcePath, watch: bool) -> Option<Self> {
        let collection = path.name.is_empty();
        Some(match *method {
            Method::GET if watch || path.watch => Self::Watch,
            Method::GET if collection => Self::List,
            Method::GET => Self::Get,
            // Nothing of the server's own is asked for without its body; what a proxy leads to may be.
            Method::HEAD | Method::OPTIONS if path.subresource == "proxy" => Self::Get,
            Method::POST if collection || !path.subresource.is_empty() => Self::Create,
            Method::PUT if !collection => Self::Update,
            Method::PATCH if !collection => Self::Patch,
            Method::DELETE if collection => Self::DeleteCollection,
            Method::DELETE => Self::Delete,
            _ => return None,
        })
    }

    /// As it is written in a role.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// group, version, namespace, resource, name, subresource
    fn parts(path: &str) -> [String; 6] {
        let found = parse(path).unwrap_or_else(|| panic!("{path} is a resource path"));
        [
            found.group,
            found.version,
            found.namespace,
            found.resource,
            found.name,
            found.subresource,
        ]
    }

    #[test]
    fn every_form_of_resource_path_is_taken_apart() {
        for (path, expected) in [
            ("/api/v1/pods", ["", "v1", "", "pods", "", ""]),
            ("/api/v1/namespaces", ["", "v1", "", "namespaces", "", ""]),
            ("/api/v1/namespaces/n", ["", "v1", "", "namespaces", "n", ""]),
            ("/api/v1/namespaces/n/", ["", "v1", "", "namespaces", "n", ""]),
            (
                "/api/v1/namespaces/n/status",
                ["", "v1", "", "namespaces", "n", "status"],
            ),
            (
                "/api/v1/namespaces/n/finalize",
                ["", "v1", "", "namespaces", "n", "finalize"],
            ),
            ("/api/v1/namespaces/n/pods", ["", "v1", "n", "pods", "", ""]),
            ("/api/v1/namespaces/n/pods/p", ["", "v1", "n", "pods", "p", ""]),
            ("/api/v1/namespaces/n/pods/p/log", ["", "v1", "n", "pods", "p", "log"]),
            ("/api/v1/nodes/a/status", ["", "v1", "", "nodes", "a", "status"]),
            (
                "/apis/apps/v1/namespaces/n/deployments/d/scale",
                ["apps", "v1", "n", "deployments", "d", "scale"],
            ),
            ("/apis/apps/v1/deployments", ["apps", "v1", "", "deployments", "", ""]),
            (
                "/apis/g.io/v1/namespaces/n/things/a%2Fb%20c",
                ["g.io", "v1", "n", "things", "a", "b c"],
            ),
            ("/api/v1/watch/namespaces/n/pods", ["", "v1", "n", "pods", "", ""]),
        ] {
            assert_eq!(parts(path), expected, "{path}");
        }
        assert!(parse("/api/v1/watch/pods").unwrap().watch);
        assert_eq!(parse("/api/v1/namespaces/n/services/s/proxy/a/b").unwrap().rest, "a/b");
    }

    #[test]
    fn other_paths_are_not_about_resources() {
        for path in [
            "/",
            "/healthz",
            "/api",
            "/api/v1",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/openapi/v3",
        ] {
            assert_eq!(parse(path), None, "{path}");
        }
    }
}
