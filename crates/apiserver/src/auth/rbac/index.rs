//! All roles and bindings, kept so that a question is answered without looking at most of them.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, RwLock},
};

use moorline_machinery::{field::quote, selector::LabelSelector};
use serde_json::Value;

use super::rule::{Asked, Rule};
use crate::auth::user::{User, split_service_account};

/// One of the four kinds that this is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Kubernetes' own and say all there is")]
pub enum RbacKind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// Who may do what, by the roles and bindings it has been told of.
///
/// Reading takes a shared lock for a microsecond or so; a change takes it alone for as long.
#[derive(Default)]
pub struct RoleIndex {
    state: RwLock<State>,
}

/// By namespace, which is empty for what holds in the whole cluster.
#[derive(Default)]
struct State {
    /// By name.
    roles: HashMap<String, BTreeMap<String, Role>>,
    bindings: HashMap<String, Bindings>,
}

#[derive(Default)]
struct Bindings {
    by_name: HashMap<String, Arc<Binding>>,
    /// Which of them are about whom, in the order of their names.
    by_subject: HashMap<SubjectKind, HashMap<String, BTreeMap<String, Arc<Binding>>>>,
}

struct Role {
    rules: Vec<Rule>,
    labels: BTreeMap<String, String>,
    /// Whose rules it gathers; empty for roles that have their own.
    gathers: Vec<LabelSelector>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SubjectKind {
    User,
    Group,
    ServiceAccount,
}

/// Someone a binding is about.
struct Subject {
    kind: SubjectKind,
    /// The name of the user or group; for a service account that of the user that it is.
    name: String,
}

struct Binding {
    /// Empty for cluster role bindings.
    namespace: String,
    name: String,
    role_kind: String,
    role_name: String,
    subjects: Vec<Subject>,
}

/// What grants a permission: a binding, and the subject by which it is the user's.
#[derive(Clone)]
pub(super) struct Grant {
    binding: Arc<Binding>,
    subject: (SubjectKind, String),
}

/// Rules that apply to a user, and references that lead nowhere.
#[derive(Debug, Default)]
pub struct UserRules {
    /// The rules, in the order of the bindings' names, those of the cluster first.
    pub rules: Vec<Rule>,
    /// What is wrong with bindings that grant nothing.
    pub errors: Vec<String>,
}

impl RoleIndex {
    /// An index that has been told of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// An object is there now, new or changed.
    pub fn apply(&self, kind: RbacKind, object: &Value) {
        let metadata = &object["metadata"];
        let (namespace, name) = (
            text(metadata, "namespace").to_owned(),
            text(metadata, "name").to_owned(),
        );
        match kind {
            RbacKind::Role | RbacKind::ClusterRole => {
                let role = Role::from_value(object);
                self.write().roles.entry(namespace).or_default().insert(name, role);
            }
            RbacKind::RoleBinding | RbacKind::ClusterRoleBinding => {
                let binding = Binding::from_value(object);
                let mut state = self.write();
                let bindings = state.bindings.entry(namespace).or_default();
                bindings.remove(&name);
                bindings.insert(binding);
            }
        }
    }

    /// An object is there no more.
    pub fn remove(&self, kind: RbacKind, namespace: &str, name: &str) {
        let mut state = self.write();
        match kind {
            RbacKind::Role | RbacKind::ClusterRole => {
                if let Some(roles) = state.roles.get_mut(namespace) {
                    roles.remove(name);
                    if roles.is_empty() {
                        state.roles.remove(namespace);
                    }
                }
            }
            RbacKind::RoleBinding | RbacKind::ClusterRoleBinding => {
                if let Some(bindings) = state.bindings.get_mut(namespace) {
                    bindings.remove(name);
                    if bindings.by_name.is_empty() {
                        state.bindings.remove(namespace);
                    }
                }
            }
        }
    }

    /// What allows it, if anything does; else the references that lead nowhere. The group of masters is not looked at.
    pub(super) fn find(&self, user: &User, namespace: &str, asked: Asked<'_>) -> Result<Grant, Vec<String>> {
        let mut errors = Vec::new();
        let state = self.read();
        let granted = state.visit(user, namespace, &mut errors, &mut |binding, subject, rules| {
            let allowed = rules.iter().any(|rule| rule.allows(asked));
            allowed.then(|| Grant {
                binding: Arc::clone(binding),
                subject: (subject.0, subject.1.to_owned()),
            })
        });
        granted.ok_or(errors)
    }

    /// All rules that apply to a user in a namespace, or, if it is empty, in the cluster.
    pub fn rules_of(&self, user: &User, namespace: &str) -> UserRules {
        let mut found = UserRules::default();
        let mut rules_found = Vec::new();
        let state = self.read();
        let _ = state.visit(user, namespace, &mut found.errors, &mut |_, _, rules| {
            rules_found.extend_from_slice(rules);
            None::<()>
        });
        found.rules = rules_found;
        found
    }

    /// The rules of the role that a binding refers to; nothing if it is not there.
    pub(super) fn rules_of_role(&self, kind: &str, namespace: &str, name: &str) -> Option<Vec<Rule>> {
        let namespace = if kind == "ClusterRole" { "" } else { namespace };
        self.read().role(namespace, name).map(|role| role.rules.clone())
    }

    /// Cluster roles that gather the rules of others and do not have them all, or have more, with the rules that they
    /// should have.
    pub fn stale_gatherings(&self) -> Vec<(String, Vec<Rule>)> {
        let state = self.read();
        let Some(cluster_roles) = state.roles.get("") else {
            return Vec::new();
        };
        let gatherers = cluster_roles.iter().filter(|(_, role)| !role.gathers.is_empty());
        gatherers
            .filter_map(|(name, role)| {
                let mut rules: Vec<Rule> = Vec::new();
                let mut seen = std::collections::HashSet::new();
                for selector in &role.gathers {
                    let selected = cluster_roles
                        .iter()
                        .filter(|(other, candidate)| *other != name && selector.matches(&candidate.labels));
                    for (_, candidate) in selected {
                        rules.extend(
                            candidate
                                .rules
                                .iter()
                                .filter(|&rule| seen.insert(rule.clone()))
                                .cloned(),
                        );
                    }
                }
                (rules != role.rules).then(|| (name.clone(), rules))
            })
            .collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Looks at the rules that a binding grants through a subject, and says when it has seen enough.
type Look<'l, T> = dyn FnMut(&Arc<Binding>, (SubjectKind, &str), &[Rule]) -> Option<T> + 'l;

impl State {
    fn role(&self, namespace: &str, name: &str) -> Option<&Role> {
        self.roles.get(namespace)?.get(name)
    }

    /// Shows the rules of each binding that applies, until one is enough.
    fn visit<T>(&self, user: &User, namespace: &str, errors: &mut Vec<String>, look: &mut Look<'_, T>) -> Option<T> {
        let of_user = [SubjectKind::User, SubjectKind::ServiceAccount].map(|kind| (kind, user.name.as_str()));
        let of_groups = user.groups.iter().map(|group| (SubjectKind::Group, group.as_str()));
        let scopes = if namespace.is_empty() {
            &[""][..]
        } else {
            &["", namespace][..]
        };
        for bindings in scopes.iter().filter_map(|scope| self.bindings.get(*scope)) {
            let mut seen: Vec<&str> = Vec::new();
            for (kind, name) in of_user.into_iter().chain(of_groups.clone()) {
                for binding in bindings.about(kind, name) {
                    // A binding may be about a user and about a group of theirs.
                    if seen.contains(&binding.name.as_str()) {
                        continue;
                    }
                    seen.push(&binding.name);
                    match self.rules_behind(binding) {
                        Ok(rules) => {
                            if let Some(found) = look(binding, (kind, name), rules) {
                                return Some(found);
                            }
                        }
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
        None
    }

    fn rules_behind(&self, binding: &Binding) -> Result<&[Rule], String> {
        let (namespace, kind) = match binding.role_kind.as_str() {
            "ClusterRole" => ("", "clusterrole"),
            "Role" => (binding.namespace.as_str(), "role"),
            other => return Err(format!("unsupported role reference kind: {}", quote(other))),
        };
        self.role(namespace, &binding.role_name)
            .map(|role| role.rules.as_slice())
            .ok_or_else(|| {
                format!(
                    "{kind}.rbac.authorization.k8s.io {} not found",
                    quote(&binding.role_name)
                )
            })
    }
}

impl Bindings {
    fn about(&self, kind: SubjectKind, name: &str) -> impl Iterator<Item = &Arc<Binding>> {
        let of_kind = self.by_subject.get(&kind).and_then(|subjects| subjects.get(name));
        of_kind.into_iter().flat_map(BTreeMap::values)
    }

    fn insert(&mut self, binding: Binding) {
        let binding = Arc::new(binding);
        for Subject { kind, name } in &binding.subjects {
            let subjects = self.by_subject.entry(*kind).or_default();
            subjects
                .entry(name.clone())
                .or_default()
                .insert(binding.name.clone(), Arc::clone(&binding));
        }
        self.by_name.insert(binding.name.clone(), binding);
    }

    fn remove(&mut self, name: &str) {
        let Some(binding) = self.by_name.remove(name) else {
            return;
        };
        for subject in &binding.subjects {
            let Some(subjects) = self.by_subject.get_mut(&subject.kind) else {
                continue;
            };
            if let Some(bindings) = subjects.get_mut(&subject.name) {
                bindings.remove(name);
                if bindings.is_empty() {
                    subjects.remove(&subject.name);
                }
            }
        }
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

impl Role {
    fn from_value(object: &Value) -> Self {
        let labels = object["metadata"]
            .get("labels")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let selectors = object
            .get("aggregationRule")
            .and_then(|rule| rule.get("clusterRoleSelectors"));
        let selectors = selectors.and_then(Value::as_array).into_iter().flatten();
        Self {
            rules: Rule::all_of(object),
            labels: labels.collect(),
            gathers: selectors
                .filter_map(|selector| LabelSelector::from_json(Some(selector)).ok())
                .collect(),
        }
    }
}

impl Binding {
    fn from_value(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let (namespace, name) = (
            text(metadata, "namespace").to_owned(),
            text(metadata, "name").to_owned(),
        );
        let subjects = object.get("subjects").and_then(Value::as_array).into_iter().flatten();
        let subjects = subjects
            .filter_map(|subject| Subject::from_value(subject, &namespace))
            .collect();
        let role = &object["roleRef"];
        let (role_kind, role_name) = (text(role, "kind").to_owned(), text(role, "name").to_owned());
        Self {
            namespace,
            name,
            role_kind,
            role_name,
            subjects,
        }
    }
}

impl Subject {
    fn from_value(subject: &Value, binding_namespace: &str) -> Option<Self> {
        let name = text(subject, "name");
        let (kind, name) = match text(subject, "kind") {
            "User" => (SubjectKind::User, name.to_owned()),
            "Group" => (SubjectKind::Group, name.to_owned()),
            "ServiceAccount" => {
                let namespace = Some(text(subject, "namespace")).filter(|namespace| !namespace.is_empty());
                // One of no namespace is nobody.
                let namespace = Some(namespace.unwrap_or(binding_namespace)).filter(|found| !found.is_empty())?;
                (
                    SubjectKind::ServiceAccount,
                    User::service_account(namespace, name, "").name,
                )
            }
            _ => return None,
        };
        Some(Self { kind, name })
    }
}

impl fmt::Display for Grant {
    /// As Kubernetes tells in access reviews.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding {
            namespace,
            name,
            role_kind,
            role_name,
            ..
        } = &*self.binding;
        match namespace.as_str() {
            "" => write!(f, "ClusterRoleBinding {}", quote(name))?,
            namespace => write!(f, "RoleBinding {}", quote(&format!("{name}/{namespace}")))?,
        }
        write!(f, " of {role_kind} {} to ", quote(role_name))?;
        let (kind, name) = &self.subject;
        match (kind, split_service_account(name)) {
            (SubjectKind::ServiceAccount, Some((namespace, name))) => {
                write!(f, "ServiceAccount {}", quote(&format!("{name}/{namespace}")))
            }
            (SubjectKind::Group, _) => write!(f, "Group {}", quote(name)),
            _ => write!(f, "User {}", quote(name)),
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for RoleIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.read();
        f.debug_struct("RoleIndex")
            .field("roles", &state.roles.values().map(BTreeMap::len).sum::<usize>())
            .field(
                "bindings",
                &state
                    .bindings
                    .values()
                    .map(|bindings| bindings.by_name.len())
                    .sum::<usize>(),
            )
            .finish_non_exhaustive()
    }
}
