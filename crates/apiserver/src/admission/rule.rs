//! Which requests a webhook wants to hear of.

use moorline_machinery::gvk::GroupVersionResource;
use serde_json::Value;

/// One rule of a webhook.
#[derive(Debug)]
pub(super) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resources, each with its subresource, which is empty for the object itself.
    resources: Vec<(String, String)>,
    /// Of these names alone; of all where there are none.
    names: Vec<String>,
    scope: Scope,
}

#[derive(Debug)]
enum Scope {
    Any,
    Cluster,
    Namespaced,
}

/// What a rule is held against.
pub(super) struct Asked<'a> {
    pub(super) operation: &'a str,
    pub(super) resource: &'a GroupVersionResource,
    pub(super) subresource: &'a str,
    pub(super) name: &'a str,
    /// Whether the object lives in a namespace; a namespace itself does not.
    pub(super) namespaced: bool,
}

impl Rule {
    /// Reads a valid rule.
    pub(super) fn read(rule: &Value) -> Self {
        let resources = texts(&rule["resources"]).map(|text| match text.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (text.to_owned(), String::new()),
        });
        let list = |name: &str| texts(&rule[name]).map(str::to_owned).collect();
        Self {
            operations: list("operations"),
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            resources: resources.collect(),
            names: list("resourceNames"),
            scope: match rule["scope"].as_str() {
                Some("Cluster") => Scope::Cluster,
                Some("Namespaced") => Scope::Namespaced,
                _ => Scope::Any,
            },
        }
    }

    /// Whether the rule means this request.
    pub(super) fn matches(&self, asked: &Asked<'_>) -> bool {
        let means = |wanted: &str, found: &str| wanted == "*" || wanted == found;
        let any = |list: &[String], found: &str| list.iter().any(|wanted| means(wanted, found));
        let in_scope = match self.scope {
            Scope::Any => true,
            Scope::Cluster => !asked.namespaced,
            Scope::Namespaced => asked.namespaced,
        };
        let names = |(resource, subresource): &(String, String)| {
            means(resource, &asked.resource.resource) && means(subresource, asked.subresource)
        };
        in_scope
            && any(&self.operations, asked.operation)
            && any(&self.groups, &asked.resource.group)
            && any(&self.versions, &asked.resource.version)
            && self.resources.iter().any(names)
            && (self.names.is_empty() || self.names.iter().any(|name| name == asked.name))
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(resources: &[&str], scope: &str) -> Rule {
        Rule::read(&json!({
            "operations": ["CREATE", "UPDATE"], "apiGroups": ["apps"], "apiVersions": ["*"], "resources": resources,
            "scope": scope,
        }))
    }

    fn asks(rule: &Rule, operation: &str, resource: &str, subresource: &str, namespaced: bool) -> bool {
        rule.matches(&Asked {
            operation,
            resource: &GroupVersionResource::new("apps", "v1", resource),
            subresource,
            name: "a",
            namespaced,
        })
    }

    #[test]
    fn a_star_means_all_resources_but_no_subresource() {
        let all = rule(&["*"], "*");
        assert!(asks(&all, "CREATE", "deployments", "", true));
        assert!(!asks(&all, "UPDATE", "deployments", "scale", true));
        assert!(!asks(&all, "DELETE", "deployments", "", true));
    }

    #[test]
    fn subresources_are_named_with_their_resource_or_by_a_star() {
        let every = rule(&["*/*"], "*");
        assert!(asks(&every, "UPDATE", "deployments", "scale", true));
        assert!(asks(&every, "UPDATE", "deployments", "", true));
        let status = rule(&["*/status"], "*");
        assert!(asks(&status, "UPDATE", "deployments", "status", true));
        assert!(!asks(&status, "UPDATE", "deployments", "scale", true));
        let parts = rule(&["deployments/*"], "*");
        assert!(asks(&parts, "UPDATE", "deployments", "", true));
        assert!(!asks(&parts, "UPDATE", "replicasets", "scale", true));
    }

    #[test]
    fn a_scope_leaves_out_what_lives_elsewhere() {
        let cluster = rule(&["*"], "Cluster");
        assert!(asks(&cluster, "CREATE", "deployments", "", false));
        assert!(!asks(&cluster, "CREATE", "deployments", "", true));
        assert!(!asks(&rule(&["*"], "Namespaced"), "CREATE", "deployments", "", false));
    }
}
