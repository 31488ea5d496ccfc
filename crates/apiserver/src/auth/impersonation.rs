//! Acting as someone else, for those who may.

use http::HeaderMap;
use moorline_machinery::status::ApiError;
use percent_encoding::percent_decode_str;

use super::{
    action::{Action, ResourceAction},
    rbac::RoleIndex,
    user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User, service_account_groups, split_service_account},
};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// As whom a request is to be treated: the one who makes it, or the one whom its headers name.
pub fn acting_as(user: User, headers: &HeaderMap, roles: &RoleIndex) -> Result<User, ApiError> {
    let Some(wanted) = wanted(headers)? else {
        return Ok(user);
    };
    for thing in wanted.things() {
        roles.permit(&user, &Action::Resource(thing))?;
    }
    Ok(wanted.user())
}

/// Takes the headers out of a request: nothing further on should act on them again.
pub fn remove_headers(headers: &mut HeaderMap) {
    let ours: Vec<_> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    for name in ours {
        headers.remove(name);
    }
}

/// Whom the headers name.
#[derive(Debug, Default)]
struct Wanted {
    user: User,
    groups_named: bool,
}

fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, ApiError> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let one = |name| headers.get(name).map(text).unwrap_or_default();
    let mut user = User {
        name: one(USER),
        uid: one(UID),
        ..User::default()
    };
    user.groups = headers.get_all(GROUP).iter().map(text).collect();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            user.extra.entry(unescaped(key)).or_default().push(text(value));
        }
    }
    let groups_named = !user.groups.is_empty();
    if user.name.is_empty() {
        if groups_named || !user.uid.is_empty() || !user.extra.is_empty() {
            return Err(ApiError::bad_request(
                "requested groups, a uid or extra fields without impersonating a user",
            ));
        }
        return Ok(None);
    }
    Ok(Some(Wanted { user, groups_named }))
}

/// A name with percent signs undone, unless they make no sense.
fn unescaped(key: &str) -> String {
    let bytes = key.as_bytes();
    let escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    let makes_sense = escapes
        .map(|(at, _)| bytes.get(at + 1..at + 3))
        .all(|digits| digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    match percent_decode_str(key).decode_utf8() {
        Ok(decoded) if makes_sense => decoded.into_owned(),
        _ => key.to_owned(),
    }
}

impl Wanted {
    /// Everything that one must be allowed to impersonate.
    fn things(&self) -> Vec<ResourceAction> {
        const GROUP_OF_REST: &str = "authentication.k8s.io";
        let thing = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| ResourceAction {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let User {
            name,
            uid,
            groups,
            extra,
        } = &self.user;
        let mut things = vec![match split_service_account(name) {
            Some((namespace, name)) => thing("", "serviceaccounts", "", namespace, name),
            None => thing("", "users", "", "", name),
        }];
        things.extend(groups.iter().map(|group| thing("", "groups", "", "", group)));
        for (key, values) in extra {
            things.extend(
                values
                    .iter()
                    .map(|value| thing(GROUP_OF_REST, "userextras", key, "", value)),
            );
        }
        if !uid.is_empty() {
            things.push(thing(GROUP_OF_REST, "uids", "", "", uid));
        }
        things
    }

    fn user(self) -> User {
        let Self { mut user, groups_named } = self;
        if let Some((namespace, _)) = split_service_account(&user.name).filter(|_| !groups_named) {
            user.groups = service_account_groups(namespace);
        }
        if user.name == ANONYMOUS {
            if !user.is_in(UNAUTHENTICATED) {
                user.groups.push(UNAUTHENTICATED.to_owned());
            }
        } else if !user.is_in(AUTHENTICATED) && !user.is_in(UNAUTHENTICATED) {
            user.groups.push(AUTHENTICATED.to_owned());
        }
        user
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::rbac::tests::{binding, index, jane, role, user};

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn impersonator() -> RoleIndex {
        let rules = json!([
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["joe", "system:anonymous"]},
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["groups"], "resourceNames": ["devs", "system:unauthenticated"]},
            {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["serviceaccounts"]},
            {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["userextras/a/b"]},
            {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["uids"], "resourceNames": ["u"]},
        ]);
        index(&[
            role("", "imp", rules),
            binding("", "imp", ("ClusterRole", "imp"), jane()),
        ])
    }

    fn act(pairs: &[(&str, &str)]) -> Result<User, String> {
        acting_as(user("jane"), &headers(pairs), &impersonator()).map_err(|error| error.to_string())
    }

    #[test]
    fn without_headers_everyone_is_themselves() {
        assert_eq!(act(&[]).unwrap(), user("jane"));
    }

    #[test]
    fn who_may_becomes_someone_else_in_full() {
        let joe = act(&[
            ("Impersonate-User", "joe"),
            ("Impersonate-Group", "devs"),
            ("Impersonate-Uid", "u"),
            ("Impersonate-Extra-A%2fB", "x"),
        ]);
        assert_eq!(
            joe.unwrap().to_value(),
            json!({
                "username": "joe", "uid": "u", "groups": ["devs", "system:authenticated"], "extra": {"a/b": ["x"]},
            })
        );
    }

    #[test]
    fn a_service_account_comes_with_its_groups_unless_others_are_named() {
        let account = ("Impersonate-User", "system:serviceaccount:n:a");
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:n",
            "system:authenticated",
        ];
        assert_eq!(act(&[account]).unwrap().groups, groups);
        assert_eq!(
            act(&[account, ("Impersonate-Group", "devs")]).unwrap().groups,
            ["devs", "system:authenticated"]
        );
    }

    #[test]
    fn nobody_stays_nobody() {
        let anonymous = act(&[("Impersonate-User", "system:anonymous")]).unwrap();
        assert_eq!(anonymous, User::anonymous());
        let joe = act(&[
            ("Impersonate-User", "joe"),
            ("Impersonate-Group", "system:unauthenticated"),
        ])
        .unwrap();
        assert_eq!(joe.groups, ["system:unauthenticated"]);
    }

    #[test]
    fn each_thing_needs_its_own_permission() {
        assert_eq!(
            act(&[("Impersonate-User", "root")]).unwrap_err(),
            "users \"root\" is forbidden: User \"jane\" cannot impersonate resource \"users\" in API group \"\" at the \
             cluster scope"
        );
        assert_eq!(
            act(&[("Impersonate-User", "joe"), ("Impersonate-Group", "system:masters")]).unwrap_err(),
            "groups \"system:masters\" is forbidden: User \"jane\" cannot impersonate resource \"groups\" in API group \
             \"\" at the cluster scope"
        );
        let extra = act(&[("Impersonate-User", "joe"), ("Impersonate-Extra-Scopes", "x")]).unwrap_err();
        assert!(
            extra.contains("cannot impersonate resource \"userextras/scopes\""),
            "{extra}"
        );
        assert!(act(&[("Impersonate-User", "joe"), ("Impersonate-Uid", "other")]).is_err());
    }

    #[test]
    fn groups_without_a_user_make_no_sense() {
        for name in ["Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-A"] {
            assert!(
                act(&[(name, "devs")])
                    .unwrap_err()
                    .contains("without impersonating a user")
            );
        }
    }

    #[test]
    fn a_percent_sign_that_makes_no_sense_is_kept() {
        assert_eq!(unescaped("a%2fb"), "a/b");
        assert_eq!(unescaped("a%2"), "a%2");
        assert_eq!(unescaped("a%zzb%2f"), "a%zzb%2f");
        assert_eq!(unescaped("%ff"), "%ff");
    }

    #[test]
    fn the_headers_go_no_further() {
        let mut headers = headers(&[
            ("Impersonate-User", "joe"),
            ("Impersonate-Extra-A", "x"),
            ("Accept", "*/*"),
        ]);
        remove_headers(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
