//! One rule of a role: what it allows, and what it covers of another.

use std::fmt;

use moorline_machinery::field::quote;
use serde_json::{Map, Value};

/// A rule. Rules only add: nothing is ever taken away.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// API groups; `*` for all.
    pub api_groups: Vec<String>,
    /// Resources, as `pods`, `pods/log`, `*/scale` or `*`.
    pub resources: Vec<String>,
    /// Paths outside of the API; a trailing `*` stands for anything.
    pub non_resource_urls: Vec<String>,
    /// Objects; none for all.
    pub resource_names: Vec<String>,
    /// What may be done; `*` for anything.
    pub verbs: Vec<String>,
}

/// What is asked of the rules.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// Something done to a resource.
    Resource {
        /// What.
        verb: &'a str,
        /// In which API group.
        group: &'a str,
        /// To which resource.
        resource: &'a str,
        /// To which part of it; empty for all of it.
        subresource: &'a str,
        /// To which object; empty for all.
        name: &'a str,
    },
    /// Something done to a path.
    Path {
        /// What.
        verb: &'a str,
        /// To which path.
        path: &'a str,
    },
}

impl Rule {
    /// A rule of a role object.
    pub fn from_value(value: &Value) -> Self {
        let list = |name: &str| {
            let values = value.get(name).and_then(Value::as_array).into_iter().flatten();
            values.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            api_groups: list("apiGroups"),
            resources: list("resources"),
            non_resource_urls: list("nonResourceURLs"),
            resource_names: list("resourceNames"),
            verbs: list("verbs"),
        }
    }

    /// The rules of a role object.
    pub fn all_of(role: &Value) -> Vec<Self> {
        role.get("rules")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(Self::from_value)
            .collect()
    }

    /// As it is written in a role object.
    pub fn to_value(&self) -> Value {
        let mut fields = Map::new();
        let mut add = |name: &str, list: &[String], always: bool| {
            if always || !list.is_empty() {
                fields.insert(name.to_owned(), list.into());
            }
        };
        add("verbs", &self.verbs, true);
        add("apiGroups", &self.api_groups, false);
        add("resources", &self.resources, false);
        add("resourceNames", &self.resource_names, false);
        add("nonResourceURLs", &self.non_resource_urls, false);
        Value::Object(fields)
    }

    /// Whether it allows what is asked.
    pub fn allows(&self, asked: Asked<'_>) -> bool {
        match asked {
            Asked::Resource {
                verb,
                group,
                resource,
                subresource,
                name,
            } => {
                has(&self.verbs, verb)
                    && has(&self.api_groups, group)
                    && self
                        .resources
                        .iter()
                        .any(|allowed| resource_matches(allowed, resource, subresource))
                    && (self.resource_names.is_empty() || self.resource_names.iter().any(|allowed| allowed == name))
            }
            Asked::Path { verb, path } => {
                has(&self.verbs, verb) && self.non_resource_urls.iter().any(|allowed| path_matches(allowed, path))
            }
        }
    }

    /// The parts that rules have which allow one thing each.
    fn atoms(&self) -> Vec<Self> {
        let one = |value: &String| vec![value.clone()];
        let mut atoms = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let atom = Self {
                        api_groups: one(group),
                        resources: one(resource),
                        verbs: one(verb),
                        ..Self::default()
                    };
                    if self.resource_names.is_empty() {
                        atoms.push(atom);
                        continue;
                    }
                    let named = |name| Self {
                        resource_names: one(name),
                        ..atom.clone()
                    };
                    atoms.extend(self.resource_names.iter().map(named));
                }
            }
        }
        for path in &self.non_resource_urls {
            let on_path = |verb| Self {
                non_resource_urls: one(path),
                verbs: one(verb),
                ..Self::default()
            };
            atoms.extend(self.verbs.iter().map(on_path));
        }
        atoms
    }

    /// Whether it allows all that an atom does.
    fn covers(&self, atom: &Self) -> bool {
        let (Some(verb), true) = (atom.verbs.first(), self.names_cover(atom)) else {
            return false;
        };
        has(&self.verbs, verb)
            && atom.api_groups.iter().all(|group| has(&self.api_groups, group))
            && atom
                .resources
                .iter()
                .all(|resource| self.resources.iter().any(|own| resource_covers(own, resource)))
            && atom
                .non_resource_urls
                .iter()
                .all(|path| self.non_resource_urls.iter().any(|own| path_matches(own, path)))
    }

    fn names_cover(&self, atom: &Self) -> bool {
        self.resource_names.is_empty()
            || (!atom.resource_names.is_empty() && atom.resource_names.iter().all(|n| self.resource_names.contains(n)))
    }
}

/// What the wanted rules allow beyond the held ones, put together again where it is about one resource.
pub(super) fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut compact: Vec<Rule> = Vec::new();
    let atoms = wanted
        .iter()
        .flat_map(Rule::atoms)
        .filter(|atom| !held.iter().any(|rule| rule.covers(atom)));
    for atom in atoms {
        let same_but_for_verbs = |rule: &&mut Rule| {
            !rule.resources.is_empty()
                && rule.resources == atom.resources
                && rule.api_groups == atom.api_groups
                && rule.resource_names == atom.resource_names
        };
        match compact.iter_mut().find(same_but_for_verbs) {
            Some(rule) => rule.verbs.extend(atom.verbs),
            None => compact.push(atom),
        }
    }
    compact
}

impl fmt::Display for Rule {
    /// As Kubernetes names rules in its refusals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let parts = parts.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = parts
            .map(|(name, list)| format!("{name}:{}", quoted_list(list)))
            .collect();
        write!(f, "{{{}}}", parts.join(", "))
    }
}

/// A list as Go's `%q` prints it.
pub(super) fn quoted_list(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|text| quote(text)).collect();
    format!("[{}]", quoted.join(" "))
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == "*" || own == wanted)
}

/// `allowed` is what a rule says, the rest what is asked: `pods` and `log` is allowed by `pods/log`, `*/log` and `*`.
fn resource_matches(allowed: &str, resource: &str, subresource: &str) -> bool {
    if allowed == "*" {
        return true;
    }
    match (allowed.split_once('/'), subresource) {
        (None, "") => allowed == resource,
        (Some((own, own_part)), part) if !part.is_empty() => own_part == part && (own == "*" || own == resource),
        _ => false,
    }
}

/// As above for what another rule says.
fn resource_covers(own: &str, other: &str) -> bool {
    own == "*"
        || own == other
        || other
            .split_once('/')
            .is_some_and(|(_, part)| own.strip_prefix("*/").is_some_and(|own_part| own_part == part))
}

fn path_matches(allowed: &str, path: &str) -> bool {
    allowed == "*" || allowed == path || (allowed.ends_with('*') && path.starts_with(allowed.trim_end_matches('*')))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(value: &Value) -> Rule {
        Rule::from_value(value)
    }

    fn on<'a>(verb: &'a str, group: &'a str, resource: &'a str, subresource: &'a str, name: &'a str) -> Asked<'a> {
        Asked::Resource {
            verb,
            group,
            resource,
            subresource,
            name,
        }
    }

    #[test]
    fn a_rule_allows_its_verbs_on_its_resources() {
        let pods = rule(&json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}));
        assert!(pods.allows(on("get", "", "pods", "", "a")));
        assert!(pods.allows(on("list", "", "pods", "", "")));
        assert!(pods.allows(on("get", "", "pods", "log", "a")));
        for (verb, group, resource, part) in [
            ("delete", "", "pods", ""),
            ("get", "apps", "pods", ""),
            ("get", "", "services", ""),
            ("get", "", "pods", "exec"),
            ("get", "", "pods/log", ""),
            ("", "", "pods", ""),
        ] {
            assert!(
                !pods.allows(on(verb, group, resource, part, "a")),
                "{verb} {group} {resource} {part}"
            );
        }
        assert!(!pods.allows(Asked::Path {
            verb: "get",
            path: "/pods"
        }));
    }

    #[test]
    fn a_star_stands_for_every_verb_group_and_resource() {
        let all = rule(&json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        assert!(all.allows(on("approve", "g.io", "things", "status", "a")));
        let scales = rule(&json!({"verbs": ["update"], "apiGroups": ["*"], "resources": ["*/scale"]}));
        assert!(scales.allows(on("update", "apps", "deployments", "scale", "a")));
        assert!(!scales.allows(on("update", "apps", "deployments", "status", "a")));
        assert!(!scales.allows(on("update", "apps", "deployments", "", "a")));
    }

    #[test]
    fn named_objects_allow_nothing_without_a_name() {
        let named =
            json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]});
        let named = rule(&named);
        assert!(named.allows(on("get", "", "secrets", "", "a")));
        assert!(!named.allows(on("get", "", "secrets", "", "b")));
        assert!(!named.allows(on("list", "", "secrets", "", "")));
    }

    #[test]
    fn paths_match_whole_or_by_their_beginning() {
        let paths = rule(&json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/apis/*"]}));
        let ask = |path| paths.allows(Asked::Path { verb: "get", path });
        assert!(ask("/healthz") && ask("/apis/apps") && ask("/apis/"));
        assert!(!ask("/healthz/etcd") && !ask("/apis") && !ask("/"));
        assert!(!paths.allows(on("get", "", "pods", "", "")));
    }

    #[test]
    fn what_is_missing_is_named_once_a_resource() {
        let held = [rule(
            &json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "*/scale"]}),
        )];
        let wanted = [
            rule(&json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]})),
            rule(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["things/scale"]})),
            rule(&json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})),
            rule(&json!({"verbs": ["get"], "apiGroups": ["g"], "resources": ["things"], "resourceNames": ["a"]})),
        ];
        let missing: Vec<String> = missing(&held, &wanted).iter().map(ToString::to_string).collect();
        assert_eq!(
            missing,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
                r#"{APIGroups:["g"], Resources:["things"], ResourceNames:["a"], Verbs:["get"]}"#,
            ]
        );
    }

    #[test]
    fn a_right_to_some_objects_does_not_cover_all_of_them() {
        let named = rule(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}));
        let all = rule(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}));
        assert!(missing(std::slice::from_ref(&all), std::slice::from_ref(&named)).is_empty());
        assert_eq!(
            missing(std::slice::from_ref(&named), std::slice::from_ref(&all)).len(),
            1
        );
        let star = rule(&json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        assert!(missing(std::slice::from_ref(&star), &[all, named]).is_empty());
    }
}
