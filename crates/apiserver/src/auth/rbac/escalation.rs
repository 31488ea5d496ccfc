//! Nobody grants what they do not have.
//!
//! Whoever writes a role must hold every permission in it, or be allowed to `escalate` it; whoever binds one must hold
//! what it grants, or be allowed to `bind` it.

use moorline_machinery::{field::quote, gvk::GroupResource, status::ApiError};
use serde_json::Value;

use super::{
    Decision, RbacKind, RoleIndex, Rule,
    rule::{missing, quoted_list},
    together,
};
use crate::auth::{action::ResourceAction, user::User};

const GROUP: &str = "rbac.authorization.k8s.io";

impl RbacKind {
    /// The resource of the kind.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }

    /// The kind of a resource of the group `rbac.authorization.k8s.io`.
    pub fn of_resource(resource: &str) -> Option<Self> {
        let all = [
            Self::Role,
            Self::ClusterRole,
            Self::RoleBinding,
            Self::ClusterRoleBinding,
        ];
        all.into_iter().find(|kind| kind.resource() == resource)
    }
}

impl RoleIndex {
    /// Whether a user may write this role or binding, beyond being allowed to write the resource at all. `name` is the
    /// one in the request's path, empty for a create.
    pub fn permit_write(
        &self,
        user: &User,
        kind: RbacKind,
        namespace: &str,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        if user.is_master() {
            return Ok(());
        }
        let write = Write {
            index: self,
            user,
            kind,
            namespace,
        };
        match kind {
            RbacKind::Role | RbacKind::ClusterRole => write.role(name, object, old),
            RbacKind::RoleBinding | RbacKind::ClusterRoleBinding => write.binding(object, old),
        }
    }
}

struct Write<'a> {
    index: &'a RoleIndex,
    user: &'a User,
    kind: RbacKind,
    /// Empty for the cluster.
    namespace: &'a str,
}

impl Write<'_> {
    fn role(&self, name: &str, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        if self.may("escalate", self.kind.resource(), name) || only_letting_go(object, old) {
            return Ok(());
        }
        self.holds(&Rule::all_of(object))
            .map_err(|why| self.forbidden(object, &why))?;
        let gathers = |role: &Value| {
            let selectors = role
                .get("aggregationRule")
                .and_then(|rule| rule.get("clusterRoleSelectors"));
            selectors
                .and_then(Value::as_array)
                .is_some_and(|selectors| !selectors.is_empty())
        };
        if self.kind == RbacKind::ClusterRole && (gathers(object) || old.is_some_and(gathers)) {
            // It may gather anything.
            let star = || vec!["*".to_owned()];
            let everything = [
                Rule {
                    api_groups: star(),
                    resources: star(),
                    verbs: star(),
                    ..Rule::default()
                },
                Rule {
                    non_resource_urls: star(),
                    verbs: star(),
                    ..Rule::default()
                },
            ];
            let why = "must have cluster-admin privileges to use the aggregationRule";
            self.holds(&everything).map_err(|_| self.forbidden(object, why))?;
        }
        Ok(())
    }

    fn binding(&self, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        if only_letting_go(object, old) {
            return Ok(());
        }
        let field = |name: &str| object["roleRef"].get(name).and_then(Value::as_str).unwrap_or_default();
        let (role_kind, role_name) = (field("kind"), field("name"));
        let resource = match role_kind {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            other => {
                return Err(ApiError::unknown(format!(
                    "unsupported role reference kind: {}",
                    quote(other)
                )));
            }
        };
        if self.may("bind", resource, role_name) {
            return Ok(());
        }
        let rules = self
            .index
            .rules_of_role(role_kind, self.namespace, role_name)
            .ok_or_else(|| ApiError::not_found(&GroupResource::new(GROUP, resource), role_name))?;
        self.holds(&rules).map_err(|why| self.forbidden(object, &why))
    }

    fn may(&self, verb: &str, resource: &str, name: &str) -> bool {
        let action = ResourceAction {
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            resource: resource.to_owned(),
            namespace: self.namespace.to_owned(),
            name: name.to_owned(),
            ..ResourceAction::default()
        };
        matches!(self.index.decide(self.user, &action.into()), Decision::Allowed { .. })
    }

    fn holds(&self, wanted: &[Rule]) -> Result<(), String> {
        let held = self.index.rules_of(self.user, self.namespace);
        let missing = missing(&held.rules, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        missing.sort();
        missing.dedup();
        let mut why = format!(
            "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            quote(&self.user.name),
            quoted_list(&self.user.groups),
            missing.join("\n")
        );
        if !held.errors.is_empty() {
            why = format!("{why}; resolution errors: [{}]", together(held.errors));
        }
        Err(why)
    }

    fn forbidden(&self, object: &Value, why: &str) -> ApiError {
        let name = object["metadata"]
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        ApiError::forbidden(&GroupResource::new(GROUP, self.kind.resource()), name, why)
    }
}

/// Whether nothing changes but what garbage collection must be able to change: owners and finalizers.
fn only_letting_go(object: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    let without = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for name in [
                "ownerReferences",
                "finalizers",
                "managedFields",
                "resourceVersion",
                "selfLink",
            ] {
                metadata.remove(name);
            }
        }
        object
    };
    without(object) == without(old)
}
