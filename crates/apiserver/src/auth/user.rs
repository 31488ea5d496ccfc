//! Users, as Kubernetes names them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

/// The user that nobody vouches for.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of all who have proved who they are.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all who have not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of all service accounts.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Someone who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct User {
    /// The name.
    #[serde(rename = "username")]
    pub name: String,
    /// What tells two users of the same name at different times apart; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// What else is known, by names that are in lower case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user that nobody vouches for.
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// The server itself, where it acts in its own name.
    pub fn server() -> Self {
        let groups = vec![MASTERS.to_owned(), AUTHENTICATED.to_owned()];
        Self {
            name: "system:apiserver".to_owned(),
            groups,
            ..Self::default()
        }
    }

    /// A service account, without the group of the authenticated.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"),
            uid: uid.to_owned(),
            groups: service_account_groups(namespace),
            ..Self::default()
        }
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Whether the user may do everything.
    pub fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    /// As `UserInfo` in reviews and admission requests.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a user holds nothing that JSON cannot")
    }

    /// From a `UserInfo`, or the like-named fields of a review with `user` for the name.
    pub(super) fn from_fields(name: &str, fields: &Map<String, Value>) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = |value: Option<&Value>| {
            let values = value.and_then(Value::as_array).into_iter().flatten();
            values.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        let extra = fields.get("extra").and_then(Value::as_object).into_iter().flatten();
        Self {
            name: text(fields.get(name)),
            uid: text(fields.get("uid")),
            groups: list(fields.get("groups")),
            extra: extra
                .map(|(key, values)| (key.to_lowercase(), list(Some(values))))
                .collect(),
        }
    }
}

/// The groups of the service accounts of a namespace.
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// The namespace and name of the service account that a user name stands for.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let valid = moorline_machinery::names::is_dns_label(namespace) && moorline_machinery::names::is_dns_subdomain(name);
    valid.then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_account_is_a_user_with_a_name_that_leads_back() {
        let user = User::service_account("n", "s.a", "u");
        assert_eq!(user.name, "system:serviceaccount:n:s.a");
        assert_eq!(split_service_account(&user.name), Some(("n", "s.a")));
        for other in [
            "jane",
            "system:serviceaccount:n",
            "system:serviceaccount::a",
            "system:serviceaccount:n:A:b",
        ] {
            assert_eq!(split_service_account(other), None, "{other}");
        }
    }

    #[test]
    fn a_user_is_written_as_user_info() {
        let user = User::service_account("n", "a", "u");
        let groups = ["system:serviceaccounts", "system:serviceaccounts:n"];
        assert_eq!(
            user.to_value(),
            json!({"username": "system:serviceaccount:n:a", "uid": "u", "groups": groups})
        );
        assert_eq!(
            User::from_fields("username", user.to_value().as_object().unwrap()),
            user
        );
    }
}
