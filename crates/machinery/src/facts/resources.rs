//! The resources that a server serves: names, verbs, subresources, and the rules their objects follow.
//!
//! Written by hand, because no published module holds them, as one line a resource:
//!
//! ```text
//!   version APIVERSION                       the resources that follow belong to it
//!   PLURAL KIND n|c WORD...                  namespaced or cluster-wide
//!
//!   short:a,b   short names                  gen[:change|:labels|:annotations]  has a generation; only once it was
//!                                            changed; labels or annotations count
//!   cat:a,b     categories                   versioned  an update must say the version it is based on
//!   verbs:a,b   verbs, unless all eight      put        an update of what is not there creates it
//!   name:label|1035|path                     the rule for names, unless that of subdomains
//!   fields:a,b=c                             selectable fields; `a=c` is the field c under the name a
//!   sub:NAME[=KIND[@APIVERSION]][:a,b]       a subresource; its own kind and get, patch, update unless told
//!   meta:LOOKS[/LOOKS]                       how often an update of the object, and of its status, looks at the metadata:
//!                                            m as such, u at the change, M and U with any finalizers, - not at all;
//!                                            u/u unless told
//!   late                                     the metadata of a new object is looked at when all else is well
//!   store:PATH                               where it is kept, as some errors say, unless under its plural
//!   returned                                 the answer to a delete is the object
//! ```

use crate::{
    meta::{Finalizers, Generation, Look, UnversionedUpdate},
    names::NameRule,
};

/// A resource of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// As in `apiVersion`.
    pub api_version: &'static str,
    /// As in URLs.
    pub plural: &'static str,
    /// As in objects.
    pub kind: &'static str,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// What `kubectl` takes for short.
    pub short_names: Vec<&'static str>,
    /// Groups of resources that `kubectl` knows, such as `all`.
    pub categories: Vec<&'static str>,
    /// What can be done with it.
    pub verbs: Vec<&'static str>,
    /// Its parts.
    pub subresources: Vec<Subresource>,
    /// What its names may look like.
    pub names: NameRule,
    /// Which changes raise the generation.
    pub generation: Generation,
    /// Whether an update may leave out the resource version.
    pub unversioned_update: UnversionedUpdate,
    /// Whether an update of what is not there creates it.
    pub create_on_update: bool,
    /// How an update of the object looks at its metadata, beside what is done for all kinds.
    pub looks: Vec<Look>,
    /// The same for an update of its status.
    pub status_looks: Vec<Look>,
    /// How the metadata of a new object is looked at; none where that is done only when all else is well.
    pub first_look: Option<Look>,
    /// Where its objects are kept, as some errors say.
    pub stored_under: &'static str,
    /// Whether the answer to a delete is the object rather than a status.
    pub returns_deleted: bool,
    /// Selectable fields beside name and namespace: how a selector calls them, and their path in the object.
    pub fields: Vec<(&'static str, &'static str)>,
}

impl Resource {
    /// What one object is called: `deployment`.
    pub fn singular(&self) -> String {
        self.kind.to_lowercase()
    }

    /// The group, empty for the core group.
    pub fn group(&self) -> &'static str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The version.
    pub fn version(&self) -> &'static str {
        self.api_version
            .split_once('/')
            .map_or(self.api_version, |(_, version)| version)
    }

    /// A part by its name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }
}

/// A part of a resource that has a path of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    /// Such as `status`.
    pub name: &'static str,
    /// The version of its kind.
    pub api_version: &'static str,
    /// What is sent to it and received from it.
    pub kind: &'static str,
    /// What can be done with it.
    pub verbs: Vec<&'static str>,
}

/// A line that tells no resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read line {line} of the resources: {why}")]
pub struct ParseResourcesError {
    line: usize,
    why: &'static str,
}

/// All verbs of a stored resource.
pub const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// Reads the resources.
pub fn parse(text: &'static str) -> Result<Vec<Resource>, ParseResourcesError> {
    let (mut resources, mut version) = (Vec::new(), None);
    for (index, line) in text.lines().enumerate() {
        let error = |why| ParseResourcesError { line: index + 1, why };
        if line.is_empty() || line.starts_with('#') {
        } else if let Some(next) = line.strip_prefix("version ") {
            version = Some(next);
        } else {
            let version = version.ok_or_else(|| error("there is no version yet"))?;
            resources.push(resource(version, line).map_err(error)?);
        }
    }
    Ok(resources)
}

fn resource(api_version: &'static str, line: &'static str) -> Result<Resource, &'static str> {
    let mut words = line.split(' ');
    let mut next = || words.next().ok_or("a resource needs a plural, a kind and a scope");
    let (plural, kind, scope) = (next()?, next()?, next()?);
    let mut resource = Resource {
        api_version,
        plural,
        kind,
        namespaced: match scope {
            "n" => true,
            "c" => false,
            _ => return Err("the scope is n or c"),
        },
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: VERBS.to_vec(),
        subresources: Vec::new(),
        names: NameRule::DnsSubdomain,
        generation: Generation::Untracked,
        unversioned_update: UnversionedUpdate::Overwrites,
        create_on_update: false,
        looks: vec![Look::Change(Finalizers::Qualified)],
        status_looks: vec![Look::Change(Finalizers::Qualified)],
        first_look: Some(Look::Whole(Finalizers::Qualified)),
        stored_under: plural,
        returns_deleted: false,
        fields: Vec::new(),
    };
    for word in words {
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        match name {
            "short" => resource.short_names = value.split(',').collect(),
            "cat" => resource.categories = value.split(',').collect(),
            "verbs" => resource.verbs = value.split(',').collect(),
            "gen" => {
                resource.generation = match value {
                    "" => Generation::ButStatus,
                    "change" => Generation::SinceFirstChange,
                    "labels" => Generation::AlsoLabels,
                    "annotations" => Generation::AlsoAnnotations,
                    _ => return Err("unknown rule for generations"),
                }
            }
            "meta" => {
                let (object, status) = value.split_once('/').unwrap_or((value, "u"));
                (resource.looks, resource.status_looks) = (looks(object)?, looks(status)?);
                if object.contains(['M', 'U']) {
                    resource.first_look = Some(Look::Whole(Finalizers::Any));
                }
            }
            "late" => resource.first_look = None,
            "store" => resource.stored_under = value,
            "returned" => resource.returns_deleted = true,
            "versioned" => resource.unversioned_update = UnversionedUpdate::Refused,
            "put" => resource.create_on_update = true,
            "name" => {
                resource.names = match value {
                    "label" => NameRule::DnsLabel,
                    "1035" => NameRule::Dns1035Label,
                    "path" => NameRule::PathSegment,
                    _ => return Err("unknown rule for names"),
                }
            }
            "fields" => {
                let fields = value.split(',');
                resource.fields = fields
                    .map(|field| field.split_once('=').unwrap_or((field, field)))
                    .collect();
            }
            "sub" => resource.subresources.push(subresource(&resource, value)),
            _ => return Err("unknown word about a resource"),
        }
    }
    Ok(resource)
}

fn looks(text: &str) -> Result<Vec<Look>, &'static str> {
    let letters = text.chars().filter(|letter| *letter != '-');
    letters
        .map(|letter| match letter {
            'm' => Ok(Look::Whole(Finalizers::Qualified)),
            'u' => Ok(Look::Change(Finalizers::Qualified)),
            'M' => Ok(Look::Whole(Finalizers::Any)),
            'U' => Ok(Look::Change(Finalizers::Any)),
            _ => Err("unknown look at metadata"),
        })
        .collect()
}

fn subresource(parent: &Resource, text: &'static str) -> Subresource {
    let (text, verbs) = match text.split_once(':') {
        Some((text, verbs)) => (text, verbs.split(',').collect()),
        None => (text, vec!["get", "patch", "update"]),
    };
    let (name, kind) = text.split_once('=').unwrap_or((text, parent.kind));
    let (kind, api_version) = kind.split_once('@').unwrap_or((kind, parent.api_version));
    Subresource {
        name,
        api_version,
        kind,
        verbs,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::facts::Facts;

    const RESOURCES: &str = include_str!("../../../apiserver/facts/resources.txt");
    const BUILTIN: &str = include_str!("../../../apiserver/facts/builtin.txt");

    #[test]
    fn every_kind_that_is_served_is_known_to_the_facts() {
        let facts = Facts::parse(BUILTIN).unwrap();
        for resource in parse(RESOURCES).unwrap() {
            assert!(
                facts.kind(resource.api_version, resource.kind).is_some(),
                "{resource:?}"
            );
            for subresource in &resource.subresources {
                assert!(
                    facts.kind(subresource.api_version, subresource.kind).is_some(),
                    "{subresource:?}"
                );
            }
        }
    }

    #[test]
    fn every_kind_with_a_list_is_served() {
        let facts = Facts::parse(BUILTIN).unwrap();
        let resources = parse(RESOURCES).unwrap();
        let served: BTreeSet<_> = resources
            .iter()
            .map(|resource| (resource.api_version, resource.kind))
            .collect();
        for (api_version, kind, _) in facts.kinds() {
            let listed = facts.kind(api_version, &format!("{kind}List")).is_some() && api_version != "meta.k8s.io/v1";
            // `RangeAllocation` lives in the store only.
            if listed && kind != "RangeAllocation" && kind != "Status" {
                assert!(served.contains(&(api_version, kind)), "{api_version} {kind}");
            }
        }
    }

    #[test]
    fn names_are_unique_within_a_version() {
        let resources = parse(RESOURCES).unwrap();
        let unique: BTreeSet<_> = resources
            .iter()
            .map(|resource| (resource.api_version, resource.plural))
            .collect();
        assert_eq!(unique.len(), resources.len());
    }

    #[test]
    fn the_words_of_a_line_become_the_resource() {
        let text = "version apps/v1\nthings Thing n short:t cat:all gen versioned put name:label fields:a=b.c \
                    meta:mU/- store:odd/things sub:scale=Scale@autoscaling/v1 sub:log=Log:get";
        let resources = parse(text).unwrap();
        let thing = &resources[0];
        assert_eq!(
            (thing.group(), thing.version(), thing.singular()),
            ("apps", "v1", "thing".to_owned())
        );
        assert_eq!(
            (thing.names, thing.generation),
            (NameRule::DnsLabel, Generation::ButStatus)
        );
        assert_eq!(thing.unversioned_update, UnversionedUpdate::Refused);
        assert_eq!(thing.fields, [("a", "b.c")]);
        assert_eq!(
            thing.looks,
            [Look::Whole(Finalizers::Qualified), Look::Change(Finalizers::Any)]
        );
        assert_eq!((&*thing.status_looks, thing.stored_under), (&[][..], "odd/things"));
        assert_eq!(thing.subresource("scale").unwrap().api_version, "autoscaling/v1");
        assert_eq!(thing.subresource("scale").unwrap().verbs, ["get", "patch", "update"]);
        assert_eq!(thing.subresource("log").unwrap().verbs, ["get"]);
        for (text, error) in [
            (
                "things Thing n",
                "cannot read line 1 of the resources: there is no version yet",
            ),
            (
                "version v1\nthings Thing x",
                "cannot read line 2 of the resources: the scope is n or c",
            ),
            (
                "version v1\nthings Thing n odd",
                "cannot read line 2 of the resources: unknown word about a resource",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), error);
        }
    }
}
