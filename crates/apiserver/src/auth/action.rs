//! What a request is about to do, in the words of an authorizer.

use http::{Method, Uri};
use moorline_machinery::status::{ApiError, Attempt};

use crate::path::{self, ResourcePath, Verb};

/// Something that a user may or may not be allowed to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// On a resource.
    Resource(ResourceAction),
    /// On a path that is no resource.
    Path {
        /// The method, in lower case.
        verb: String,
        /// The path.
        path: String,
    },
}

/// Something done to a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAction {
    /// What is done, such as `list`.
    pub verb: String,
    /// The API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The part of the object; empty for all of it.
    pub subresource: String,
    /// Where; empty for the cluster.
    pub namespace: String,
    /// To which object; empty for all.
    pub name: String,
}

impl Action {
    /// What a request does. Nothing is said here about whether there is such a resource.
    pub fn of(method: &Method, uri: &Uri) -> Self {
        let watch = query_is_true(uri, "watch");
        let resource = path::parse(uri.path())
            .filter(|found| !found.resource.is_empty())
            .and_then(|found| Verb::of(method, &found, watch).map(|verb| (found, verb)));
        match resource {
            Some((found, verb)) => Self::on(&found, verb, uri),
            None => Self::Path {
                verb: method.as_str().to_ascii_lowercase(),
                path: uri.path().to_owned(),
            },
        }
    }

    fn on(found: &ResourcePath, verb: Verb, uri: &Uri) -> Self {
        let mut action = ResourceAction::of(verb, found);
        if action.name.is_empty() && matches!(verb, Verb::List | Verb::Watch) {
            // Rules about named objects then apply to lists and watches too.
            action.name = selected_name(uri).unwrap_or_default();
        }
        Self::Resource(action)
    }

    /// The answer to a user who may not.
    pub fn denied(&self, user: &str, reason: &str) -> ApiError {
        let attempt = match self {
            Self::Resource(action) => Attempt {
                user,
                verb: &action.verb,
                group: &action.group,
                resource: &action.resource,
                subresource: &action.subresource,
                namespace: &action.namespace,
                name: &action.name,
                path: "",
                reason,
            },
            Self::Path { verb, path } => Attempt {
                user,
                verb,
                path,
                reason,
                ..Attempt::default()
            },
        };
        ApiError::unpermitted(&attempt)
    }
}

impl ResourceAction {
    /// What a verb does to what a path is about.
    pub(crate) fn of(verb: Verb, path: &ResourcePath) -> Self {
        // A namespace is its own place: a role within it can grant reading it.
        let is_namespace = path.group.is_empty() && path.resource == "namespaces";
        let namespace = if is_namespace { &path.name } else { &path.namespace };
        Self {
            verb: verb.as_str().to_owned(),
            group: path.group.clone(),
            resource: path.resource.clone(),
            subresource: path.subresource.clone(),
            namespace: namespace.clone(),
            name: path.name.clone(),
        }
    }
}

impl From<ResourceAction> for Action {
    fn from(action: ResourceAction) -> Self {
        Self::Resource(action)
    }
}

fn query_is_true(uri: &Uri, name: &str) -> bool {
    let query = uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes())
        .any(|(key, value)| key == name && matches!(&*value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// The one name that the field selector allows.
fn selected_name(uri: &Uri) -> Option<String> {
    let query = uri.query()?;
    let (_, selector) = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "fieldSelector")?;
    let selector: moorline_machinery::selector::FieldSelector = selector.parse().ok()?;
    let name = selector.exact("metadata.name")?;
    moorline_machinery::names::path_segment(name, moorline_machinery::names::NamePart::Whole)
        .is_empty()
        .then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(method: &Method, uri: &str) -> String {
        match Action::of(method, &uri.parse().unwrap()) {
            Action::Resource(a) => {
                format!(
                    "{} {}|{}|{}|{}|{}",
                    a.verb, a.group, a.resource, a.subresource, a.namespace, a.name
                )
            }
            Action::Path { verb, path } => format!("{verb} {path}"),
        }
    }

    #[test]
    fn a_request_is_put_into_the_words_of_roles() {
        for (method, uri, expected) in [
            (Method::GET, "/api/v1/pods", "list |pods|||"),
            (Method::GET, "/api/v1/pods?watch=true", "watch |pods|||"),
            (
                Method::GET,
                "/api/v1/namespaces/n/pods?watch=1&fieldSelector=metadata.name%3Da",
                "watch |pods||n|a",
            ),
            (
                Method::GET,
                "/api/v1/pods?fieldSelector=spec.nodeName%3Da",
                "list |pods|||",
            ),
            (Method::GET, "/api/v1/namespaces/n", "get |namespaces||n|n"),
            (
                Method::PUT,
                "/api/v1/namespaces/n/finalize",
                "update |namespaces|finalize|n|n",
            ),
            (
                Method::POST,
                "/api/v1/namespaces/n/pods/p/exec",
                "create |pods|exec|n|p",
            ),
            (
                Method::PATCH,
                "/apis/apps/v1/namespaces/n/deployments/d/scale",
                "patch apps|deployments|scale|n|d",
            ),
            (
                Method::DELETE,
                "/apis/apps/v1/namespaces/n/deployments",
                "deletecollection apps|deployments||n|",
            ),
            (Method::GET, "/healthz", "get /healthz"),
            (Method::GET, "/apis/apps/v1", "get /apis/apps/v1"),
            (Method::OPTIONS, "/api/v1/pods", "options /api/v1/pods"),
        ] {
            assert_eq!(action(&method, uri), expected, "{method} {uri}");
        }
    }

    #[test]
    fn a_denial_says_what_was_tried() {
        let list = Action::of(&Method::GET, &"/api/v1/namespaces/n/pods".parse().unwrap());
        assert_eq!(
            list.denied("x", "").to_string(),
            r#"pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "n""#
        );
        let metrics = Action::of(&Method::GET, &"/metrics".parse().unwrap());
        assert_eq!(
            metrics.denied("x", "").to_string(),
            r#"forbidden: User "x" cannot get path "/metrics""#
        );
    }
}
