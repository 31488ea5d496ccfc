//! What can be done at which path, before it is written down in one version of `OpenAPI` or the other.

use std::fmt::Write as _;

use moorline_machinery::gvk::{GroupVersion, GroupVersionKind};

use super::names;
use crate::{
    path::Verb,
    resource::{ResourceType, Served, Subresource},
};

/// A path and what can be done there.
pub(super) struct PathItem {
    pub(super) path: String,
    /// What every operation takes.
    pub(super) parameters: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

/// One thing that can be done.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) id: String,
    pub(super) description: String,
    pub(super) action: &'static str,
    pub(super) gvk: Option<GroupVersionKind>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Option<Content>,
    pub(super) answer: Answer,
    /// The codes of success.
    pub(super) codes: &'static [u16],
}

/// What a request carries.
pub(super) enum Content {
    /// An object of a definition.
    Object { definition: String },
    /// Options that may be left out.
    Options { definition: &'static str },
    /// A patch, in one of these forms.
    Patch { media_types: &'static [&'static str] },
}

/// What comes back.
pub(super) enum Answer {
    /// An object of a definition.
    Object { definition: String },
    /// A list, or its changes as they happen.
    List { definition: String },
    /// Plain text, or a connection that speaks something else.
    Text,
}

/// Something that a path or a query says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) kind: &'static str,
    pub(super) description: &'static str,
}

/// Where a parameter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Path,
    Query,
}

const fn query(name: &'static str, kind: &'static str, description: &'static str) -> Parameter {
    Parameter {
        name,
        place: Place::Query,
        kind,
        description,
    }
}

const fn in_path(name: &'static str, description: &'static str) -> Parameter {
    Parameter {
        name,
        place: Place::Path,
        kind: "string",
        description,
    }
}

const NAME: Parameter = in_path("name", "the name of the object");
const NAMESPACE: Parameter = in_path("namespace", "the namespace of the objects");
const PRETTY: Parameter = query("pretty", "string", "whether the answer is laid out for reading");
const DRY_RUN: Parameter = query(
    "dryRun",
    "string",
    "`All` carries the request through without storing the outcome",
);
const FIELD_MANAGER: Parameter = query(
    "fieldManager",
    "string",
    "who writes, in the records of field ownership",
);
const FIELD_VALIDATION: Parameter = query(
    "fieldValidation",
    "string",
    "what unknown and repeated fields lead to: `Ignore`, `Warn` or `Strict`",
);
const FORCE: Parameter = query("force", "boolean", "for an apply: take over fields that others own");

const WRITING: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
const PATCHING: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
const LISTING: &[Parameter] = &[
    query(
        "allowWatchBookmarks",
        "boolean",
        "for a watch: marks of progress are welcome",
    ),
    query("continue", "string", "where the page before ended"),
    query("fieldSelector", "string", "which objects, by their fields"),
    query("labelSelector", "string", "which objects, by their labels"),
    query("limit", "integer", "the most objects of a page"),
    query("resourceVersion", "string", "the revision that is asked for"),
    query("resourceVersionMatch", "string", "how the revision is meant"),
    query(
        "sendInitialEvents",
        "boolean",
        "for a watch: begin with the objects that are there",
    ),
    query("timeoutSeconds", "integer", "how long the request may last"),
    query("watch", "boolean", "report changes as they happen"),
];
const DELETING: &[Parameter] = &[
    DRY_RUN,
    query("gracePeriodSeconds", "integer", "how long the object may take to go"),
    query("orphanDependents", "boolean", "superseded by propagationPolicy"),
    query(
        "propagationPolicy",
        "string",
        "what becomes of dependents: `Orphan`, `Background` or `Foreground`",
    ),
];
const LOGS: &[Parameter] = &[
    query("container", "string", "which container"),
    query("follow", "boolean", "go on as the log grows"),
    query("limitBytes", "integer", "the most bytes to answer with"),
    query("previous", "boolean", "the log of the container's previous run"),
    query("sinceSeconds", "integer", "only what is younger"),
    query("tailLines", "integer", "only the last lines"),
    query("timestamps", "boolean", "begin each line with its time"),
];
const RUNNING: &[Parameter] = &[
    query("command", "string", "what to run"),
    query("container", "string", "in which container"),
    query("stderr", "boolean", "forward what is written to standard error"),
    query("stdin", "boolean", "forward standard input"),
    query("stdout", "boolean", "forward what is written to standard output"),
    query("tty", "boolean", "give it a terminal"),
];

const FORWARDING: &[Parameter] = &[query("ports", "integer", "the ports to forward")];
const PROXYING: &[Parameter] = &[query("path", "string", "where to, behind the proxy")];

const PATCHES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
const CUSTOM_PATCHES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
];

/// Every path of a version, in order.
pub(super) fn paths(served: &Served, version: &GroupVersion) -> Vec<PathItem> {
    let mut paths = vec![resource_list(version)];
    for resource in served.resources(version).into_iter().flatten() {
        Writer { resource, version }.write(&mut paths);
    }
    paths.sort_by(|a, b| a.path.cmp(&b.path));
    paths
}

fn resource_list(version: &GroupVersion) -> PathItem {
    let operation = Operation {
        method: "get",
        id: format!("get{}APIResources", names::of_version(version)),
        description: "list the resources of this version".to_owned(),
        action: "",
        gvk: None,
        parameters: Vec::new(),
        body: None,
        answer: Answer::Object {
            definition: names::RESOURCE_LIST.to_owned(),
        },
        codes: &[200],
    };
    PathItem {
        path: format!("{}/", names::root(version)),
        parameters: Vec::new(),
        operations: vec![operation],
    }
}

/// Whether a subresource hands the connection over rather than answering.
fn is_connection(subresource: &Subresource) -> bool {
    matches!(&*subresource.name, "exec" | "attach" | "portforward" | "proxy")
}

/// Writes down the paths of one resource.
struct Writer<'r> {
    resource: &'r ResourceType,
    version: &'r GroupVersion,
}

impl Writer<'_> {
    fn write(&self, paths: &mut Vec<PathItem>) {
        let root = names::root(self.version);
        let plural = &self.resource.gvr.resource;
        let collection = if self.resource.namespaced {
            format!("{root}/namespaces/{{namespace}}/{plural}")
        } else {
            format!("{root}/{plural}")
        };
        if self.resource.namespaced && self.can(Verb::List) {
            paths.push(PathItem {
                path: format!("{root}/{plural}"),
                parameters: vec![PRETTY],
                operations: vec![self.list("ForAllNamespaces")],
            });
        }
        let mut shared = vec![PRETTY];
        if self.resource.namespaced {
            shared.insert(0, NAMESPACE);
        }
        let mut add = |path: String, parameters: Vec<Parameter>, operations: Vec<Operation>| {
            if !operations.is_empty() {
                paths.push(PathItem {
                    path,
                    parameters,
                    operations,
                });
            }
        };
        add(collection.clone(), shared.clone(), self.on_collection());
        shared.insert(0, NAME);
        add(format!("{collection}/{{name}}"), shared.clone(), self.on_object());
        for subresource in &self.resource.subresources {
            let mut parameters = shared.clone();
            if is_connection(subresource) {
                parameters.retain(|parameter| *parameter != PRETTY);
            }
            parameters.extend_from_slice(match &*subresource.name {
                "log" => LOGS,
                "exec" => RUNNING,
                // What runs already needs no command.
                "attach" => &RUNNING[1..],
                "portforward" => FORWARDING,
                "proxy" => PROXYING,
                _ => &[],
            });
            let path = format!("{collection}/{{name}}/{}", subresource.name);
            add(path, parameters, self.on_subresource(subresource));
        }
    }

    fn can(&self, verb: Verb) -> bool {
        self.resource.verbs.contains(&verb)
    }

    fn on_collection(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        if self.can(Verb::List) {
            operations.push(self.list(""));
        }
        if self.can(Verb::Create) {
            operations.push(Operation {
                parameters: WRITING.to_vec(),
                body: names::definition(&self.resource.gvk).map(|definition| Content::Object { definition }),
                codes: &[200, 201, 202],
                ..self.operation("post", "create", "post", None)
            });
        }
        if self.can(Verb::DeleteCollection) {
            let mut parameters: Vec<Parameter> = DELETING.to_vec();
            parameters.extend(
                LISTING
                    .iter()
                    .filter(|parameter| !parameter.name.to_lowercase().contains("watch")),
            );
            parameters.sort_by_key(|parameter| parameter.name);
            operations.push(Operation {
                id: self.id("delete", "Collection", ""),
                description: format!("delete all selected {}", self.resource.gvr.resource),
                parameters,
                body: Some(Content::Options {
                    definition: names::DELETE_OPTIONS,
                }),
                answer: Answer::Object {
                    definition: names::STATUS.to_owned(),
                },
                ..self.operation("delete", "delete", "deletecollection", None)
            });
        }
        operations
    }

    fn on_object(&self) -> Vec<Operation> {
        let mut operations = self.read_and_write(&self.resource.verbs, None);
        if self.can(Verb::Delete) {
            operations.push(Operation {
                parameters: DELETING.to_vec(),
                body: Some(Content::Options {
                    definition: names::DELETE_OPTIONS,
                }),
                answer: Answer::Object {
                    definition: names::STATUS.to_owned(),
                },
                codes: &[200, 202],
                ..self.operation("delete", "delete", "delete", None)
            });
        }
        operations
    }

    fn on_subresource(&self, subresource: &Subresource) -> Vec<Operation> {
        if is_connection(subresource) {
            let methods: &[(&str, &str, Verb)] = &[
                ("get", "Get", Verb::Get),
                ("post", "Post", Verb::Create),
                ("put", "Put", Verb::Update),
                ("patch", "Patch", Verb::Patch),
                ("delete", "Delete", Verb::Delete),
            ];
            let served = methods.iter().filter(|(.., verb)| subresource.verbs.contains(verb));
            return served
                .map(|(method, title, _)| Operation {
                    id: self.id("connect", title, &subresource.name),
                    answer: Answer::Text,
                    ..self.operation(method, "connect", "connect", Some(subresource))
                })
                .collect();
        }
        let mut operations = self.read_and_write(&subresource.verbs, Some(subresource));
        if subresource.verbs.contains(&Verb::Create) {
            operations.push(Operation {
                parameters: WRITING.to_vec(),
                body: names::definition(&subresource.gvk).map(|definition| Content::Object { definition }),
                codes: &[200, 201, 202],
                ..self.operation("post", "create", "post", Some(subresource))
            });
        }
        if &*subresource.name == "log" {
            for operation in &mut operations {
                operation.answer = Answer::Text;
            }
        }
        operations
    }

    fn read_and_write(&self, verbs: &[Verb], subresource: Option<&Subresource>) -> Vec<Operation> {
        let gvk = subresource.map_or(&self.resource.gvk, |subresource| &subresource.gvk);
        let mut operations = Vec::new();
        if verbs.contains(&Verb::Get) {
            operations.push(self.operation("get", "read", "get", subresource));
        }
        if verbs.contains(&Verb::Update) {
            operations.push(Operation {
                parameters: WRITING.to_vec(),
                body: names::definition(gvk).map(|definition| Content::Object { definition }),
                codes: &[200, 201],
                ..self.operation("put", "replace", "put", subresource)
            });
        }
        if verbs.contains(&Verb::Patch) {
            let media_types = if names::is_built_in(&self.resource.gvk) {
                PATCHES
            } else {
                CUSTOM_PATCHES
            };
            operations.push(Operation {
                parameters: PATCHING.to_vec(),
                body: Some(Content::Patch { media_types }),
                codes: &[200, 201],
                ..self.operation("patch", "patch", "patch", subresource)
            });
        }
        operations
    }

    fn list(&self, suffix: &str) -> Operation {
        let list = GroupVersionKind {
            kind: self.resource.list_kind.clone(),
            ..self.resource.gvk.clone()
        };
        let mut id = format!("list{}", names::of_version(self.version));
        let namespaced = if self.resource.namespaced && suffix.is_empty() {
            "Namespaced"
        } else {
            ""
        };
        let _ = write!(id, "{namespaced}{}{suffix}", self.resource.gvk.kind);
        Operation {
            id,
            parameters: LISTING.to_vec(),
            answer: names::definition(&list).map_or(Answer::Text, |definition| Answer::List { definition }),
            ..self.operation("get", "list", "list", None)
        }
    }

    /// An operation that answers with the object, or with what travels at the subresource.
    fn operation(
        &self,
        method: &'static str,
        verb: &str,
        action: &'static str,
        subresource: Option<&Subresource>,
    ) -> Operation {
        let gvk = subresource.map_or(&self.resource.gvk, |subresource| &subresource.gvk);
        let part = subresource.map_or("", |subresource| &subresource.name);
        let described = if names::is_built_in(&self.resource.gvk) {
            gvk
        } else {
            &self.resource.gvk
        };
        let of = if part.is_empty() {
            String::new()
        } else {
            format!("{part} of ")
        };
        Operation {
            method,
            id: self.id(verb, "", part),
            description: format!("{verb} {of}{}", self.resource.gvk.kind),
            action,
            gvk: Some(described.clone()),
            parameters: Vec::new(),
            body: None,
            answer: names::definition(gvk).map_or(Answer::Text, |definition| Answer::Object { definition }),
            codes: &[200],
        }
    }

    fn id(&self, verb: &str, infix: &str, subresource: &str) -> String {
        let namespaced = if self.resource.namespaced { "Namespaced" } else { "" };
        let version = names::of_version(self.version);
        let part = names::title(subresource);
        format!("{verb}{version}{infix}{namespaced}{}{part}", self.resource.gvk.kind)
    }
}
