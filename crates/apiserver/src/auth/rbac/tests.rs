use std::time::Instant;

use serde_json::{Value, json};

use super::*;

/// An index of the default roles and these objects.
pub(in crate::auth) fn index(objects: &[Value]) -> RoleIndex {
    let index = RoleIndex::new();
    for (kind, object) in default_objects() {
        index.apply(kind, &object);
    }
    for object in objects {
        index.apply(kind_of(object), object);
    }
    index
}

fn kind_of(object: &Value) -> RbacKind {
    let resource = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
    RbacKind::of_resource(&resource).unwrap()
}

pub(in crate::auth) fn user(name: &str) -> User {
    User {
        name: name.to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        ..User::default()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "objects are written where they are needed")]
pub(in crate::auth) fn role(namespace: &str, name: &str, rules: Value) -> Value {
    match namespace {
        "" => json!({"kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}),
        _ => json!({"kind": "Role", "metadata": {"name": name, "namespace": namespace}, "rules": rules}),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "objects are written where they are needed")]
pub(in crate::auth) fn binding(namespace: &str, name: &str, role: (&str, &str), subject: Value) -> Value {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1});
    let kind = if namespace.is_empty() {
        "ClusterRoleBinding"
    } else {
        "RoleBinding"
    };
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"kind": kind, "metadata": metadata, "roleRef": role, "subjects": [subject]})
}

pub(in crate::auth) fn jane() -> Value {
    json!({"kind": "User", "name": "jane"})
}

fn get_pods(namespace: &str) -> Action {
    on("get", "pods", namespace)
}

fn on(verb: &str, resource: &str, namespace: &str) -> Action {
    let (verb, resource, namespace) = (verb.to_owned(), resource.to_owned(), namespace.to_owned());
    ResourceAction {
        verb,
        resource,
        namespace,
        ..ResourceAction::default()
    }
    .into()
}

fn allowed(index: &RoleIndex, user: &User, action: &Action) -> bool {
    matches!(index.decide(user, action), Decision::Allowed { .. })
}

fn pod_reader() -> Value {
    json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}])
}

#[test]
fn a_role_holds_where_it_is_bound() {
    let index = index(&[
        role("", "reader", pod_reader()),
        role("a", "local", pod_reader()),
        binding("n", "b", ("ClusterRole", "reader"), jane()),
        binding("a", "b", ("Role", "local"), jane()),
    ]);
    let jane = user("jane");
    assert!(allowed(&index, &jane, &get_pods("n")));
    assert!(allowed(&index, &jane, &get_pods("a")));
    assert!(!allowed(&index, &jane, &get_pods("m")));
    assert!(!allowed(&index, &jane, &get_pods("")));
    assert!(!allowed(&index, &user("joe"), &get_pods("n")));
    index.apply(
        RbacKind::ClusterRoleBinding,
        &binding(
            "",
            "b",
            ("ClusterRole", "reader"),
            json!({"kind": "User", "name": "joe"}),
        ),
    );
    assert!(allowed(&index, &user("joe"), &get_pods("")));
    assert!(allowed(&index, &user("joe"), &get_pods("anywhere")));
}

#[test]
fn groups_and_service_accounts_are_bound_too() {
    let account = json!({"kind": "ServiceAccount", "name": "a"});
    let index = index(&[
        role("", "reader", pod_reader()),
        binding(
            "n",
            "g",
            ("ClusterRole", "reader"),
            json!({"kind": "Group", "name": "devs"}),
        ),
        binding("m", "s", ("ClusterRole", "reader"), account.clone()),
        binding("", "nobody", ("ClusterRole", "reader"), account),
    ]);
    let mut joe = user("joe");
    assert!(!allowed(&index, &joe, &get_pods("n")));
    joe.groups.push("devs".to_owned());
    assert!(allowed(&index, &joe, &get_pods("n")));
    assert!(allowed(&index, &User::service_account("m", "a", ""), &get_pods("m")));
    assert!(!allowed(&index, &User::service_account("n", "a", ""), &get_pods("m")));
    assert!(!allowed(&index, &User::service_account("m", "a", ""), &get_pods("")));
    // A user is not a group of the same name.
    assert!(!allowed(&index, &user("devs"), &get_pods("n")));
}

#[test]
fn changes_and_removals_take_effect_at_once() {
    let index = index(&[
        role("", "reader", pod_reader()),
        binding("n", "b", ("ClusterRole", "reader"), jane()),
    ]);
    let jane_user = user("jane");
    assert!(allowed(&index, &jane_user, &get_pods("n")));
    index.apply(RbacKind::ClusterRole, &role("", "reader", json!([])));
    assert!(!allowed(&index, &jane_user, &get_pods("n")));
    index.apply(RbacKind::ClusterRole, &role("", "reader", pod_reader()));
    index.apply(
        RbacKind::RoleBinding,
        &binding(
            "n",
            "b",
            ("ClusterRole", "reader"),
            json!({"kind": "User", "name": "joe"}),
        ),
    );
    assert!(!allowed(&index, &jane_user, &get_pods("n")));
    assert!(allowed(&index, &user("joe"), &get_pods("n")));
    index.remove(RbacKind::RoleBinding, "n", "b");
    assert!(!allowed(&index, &user("joe"), &get_pods("n")));
    index.remove(RbacKind::RoleBinding, "n", "b");
    index.remove(RbacKind::Role, "n", "never was");
}

#[test]
fn a_binding_to_a_role_that_is_not_there_says_so() {
    let index = index(&[
        binding("n", "b", ("Role", "gone"), jane()),
        binding("n", "c", ("Role", "gone"), jane()),
    ]);
    let error = index.permit(&user("jane"), &get_pods("n")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pods is forbidden: User \"jane\" cannot get resource \"pods\" in API group \"\" in the namespace \"n\": \
         RBAC: role.rbac.authorization.k8s.io \"gone\" not found"
    );
}

#[test]
fn masters_may_do_everything_even_without_roles() {
    let mut root = user("root");
    root.groups.push("system:masters".to_owned());
    assert!(allowed(&RoleIndex::new(), &root, &on("anything", "things", "")));
}

#[test]
fn the_default_roles_let_everyone_discover_and_nobody_read() {
    let index = index(&[]);
    let path = |path: &str| Action::Path {
        verb: "get".to_owned(),
        path: path.to_owned(),
    };
    let (known, unknown) = (user("jane"), User::anonymous());
    for open in ["/healthz", "/readyz", "/livez", "/version"] {
        assert!(
            allowed(&index, &known, &path(open)) && allowed(&index, &unknown, &path(open)),
            "{open}"
        );
    }
    for known_only in ["/api", "/apis/apps/v1", "/openapi/v3"] {
        assert!(allowed(&index, &known, &path(known_only)), "{known_only}");
        assert!(!allowed(&index, &unknown, &path(known_only)), "{known_only}");
    }
    assert!(!allowed(&index, &known, &path("/metrics")));
    assert!(!allowed(&index, &known, &get_pods("default")));
    let mut node = user("system:node:a");
    node.groups.push("system:nodes".to_owned());
    assert!(allowed(&index, &node, &get_pods("default")));
}

#[test]
fn a_permission_tells_where_it_comes_from() {
    let index = index(&[
        role("", "reader", pod_reader()),
        binding(
            "n",
            "b",
            ("ClusterRole", "reader"),
            json!({"kind": "ServiceAccount", "name": "a", "namespace": "m"}),
        ),
        binding("", "c", ("ClusterRole", "reader"), jane()),
    ]);
    let why = |user: &User| match index.decide(user, &get_pods("n")) {
        Decision::Allowed { why } => why,
        Decision::Denied { .. } => panic!("{} may", user.name),
    };
    assert_eq!(
        why(&User::service_account("m", "a", "")),
        r#"RBAC: allowed by RoleBinding "b/n" of ClusterRole "reader" to ServiceAccount "a/m""#
    );
    assert_eq!(
        why(&user("jane")),
        r#"RBAC: allowed by ClusterRoleBinding "c" of ClusterRole "reader" to User "jane""#
    );
}

#[test]
fn a_gathering_follows_the_labels_of_others() {
    let gatherer = json!({
        "kind": "ClusterRole", "metadata": {"name": "all"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}, {"matchExpressions": [
            {"key": "also", "operator": "Exists"}]}]},
    });
    let mut one = role("", "one", pod_reader());
    one["metadata"]["labels"] = json!({"for": "all", "also": ""});
    let index = index(&[gatherer.clone(), one]);
    let expected: Vec<Rule> = pod_reader().as_array().unwrap().iter().map(Rule::from_value).collect();
    assert_eq!(index.stale_gatherings(), [("all".to_owned(), expected.clone())]);
    let mut filled = gatherer;
    filled["rules"] = pod_reader();
    index.apply(RbacKind::ClusterRole, &filled);
    assert_eq!(index.stale_gatherings(), []);
    index.remove(RbacKind::ClusterRole, "", "one");
    assert_eq!(index.stale_gatherings(), [("all".to_owned(), Vec::new())]);
}

#[test]
fn nobody_writes_a_role_with_more_than_they_hold() {
    let index = index(&[
        role(
            "",
            "writer",
            json!([
                {"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]},
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            ]),
        ),
        role(
            "",
            "no-star",
            json!([{"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}]),
        ),
        binding("n", "b", ("ClusterRole", "no-star"), jane()),
        binding("m", "b", ("ClusterRole", "writer"), jane()),
    ]);
    let mut jane = user("jane");
    jane.groups.push("devs".to_owned());
    let write = |namespace: &str, rules: Value, old: Option<&Value>| {
        let role = role(namespace, "r", rules);
        index
            .permit_write(&jane, RbacKind::Role, namespace, "", &role, old)
            .map_err(|error| error.to_string())
    };
    let wanted = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]);
    assert_eq!(
        write("n", wanted.clone(), None).unwrap_err(),
        "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"jane\" (groups=[\"system:authenticated\" \"devs\"]) is \
         attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\" \"list\"]}"
    );
    // Whoever has every verb on roles may escalate.
    assert_eq!(write("m", wanted.clone(), None), Ok(()));
    assert_eq!(write("n", json!([]), None), Ok(()));
    // Taking an owner away grants nothing.
    let mut old = role("n", "r", wanted.clone());
    old["metadata"]["finalizers"] = json!(["x"]);
    assert_eq!(write("n", wanted, Some(&old)), Ok(()));
}

#[test]
fn nobody_binds_a_role_with_more_than_they_hold() {
    let binder = json!([
        {"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["edit"]},
    ]);
    let index = index(&[
        role("", "reader", pod_reader()),
        role("", "binder", binder),
        binding("n", "b", ("ClusterRole", "reader"), jane()),
        binding("n", "c", ("ClusterRole", "binder"), jane()),
    ]);
    let jane_user = user("jane");
    let bind = |namespace: &str, role: (&str, &str)| {
        let object = binding(namespace, "new", role, jane());
        index
            .permit_write(&jane_user, kind_of(&object), namespace, "", &object, None)
            .map_err(|error| error.to_string())
    };
    assert_eq!(bind("n", ("ClusterRole", "reader")), Ok(()), "held");
    assert_eq!(bind("n", ("ClusterRole", "edit")), Ok(()), "allowed to bind");
    let error = bind("n", ("ClusterRole", "cluster-admin")).unwrap_err();
    assert_eq!(
        error,
        "rolebindings.rbac.authorization.k8s.io \"new\" is forbidden: user \"jane\" (groups=[\"system:authenticated\"]) is \
         attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}\n{NonResourceURLs:[\"*\"], Verbs:[\"*\"]}"
    );
    assert!(
        bind("", ("ClusterRole", "reader"))
            .unwrap_err()
            .contains("not currently held"),
        "held in n only"
    );
    assert_eq!(
        bind("n", ("Role", "gone")).unwrap_err(),
        "roles.rbac.authorization.k8s.io \"gone\" not found"
    );
    let master = User {
        groups: vec!["system:masters".to_owned()],
        ..user("root")
    };
    let object = binding("n", "new", ("Role", "gone"), jane());
    index
        .permit_write(&master, RbacKind::RoleBinding, "n", "", &object, None)
        .unwrap();
}

#[test]
fn only_who_may_do_everything_gathers_rules() {
    let writer = json!([{"verbs": ["create"], "apiGroups": ["*"], "resources": ["*"]}]);
    let index = index(&[role("", "w", writer), binding("", "w", ("ClusterRole", "w"), jane())]);
    let mut gatherer = role("", "g", json!([]));
    gatherer["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let error = index
        .permit_write(&user("jane"), RbacKind::ClusterRole, "", "", &gatherer, None)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "clusterroles.rbac.authorization.k8s.io \"g\" is forbidden: must have cluster-admin privileges to use the \
         aggregationRule"
    );
}

/// Prints what a check costs; the bound is wide, for busy machines.
#[test]
fn a_check_costs_microseconds_among_thousands_of_bindings() {
    let mut objects = vec![role("", "reader", pod_reader())];
    for number in 0..2000 {
        let subject = json!({"kind": "User", "name": format!("user-{number}")});
        objects.push(binding(
            &format!("n-{}", number % 100),
            &format!("b-{number}"),
            ("ClusterRole", "edit"),
            subject,
        ));
    }
    let index = index(&objects);
    let somebody = user("user-1999");
    let cases = [
        (
            "in the last of a long role",
            on("deletecollection", "configmaps", "n-99"),
            true,
        ),
        ("denied", on("get", "nodes", "n-99"), false),
    ];
    for (case, action, expected) in cases {
        const TIMES: u32 = 2000;
        let start = Instant::now();
        for _ in 0..TIMES {
            let (namespace, asked) = asked(&action);
            assert_eq!(index.find(&somebody, namespace, asked).is_ok(), expected);
        }
        let each = start.elapsed() / TIMES;
        eprintln!("{case}: {each:?}");
        assert!(each.as_micros() < 200, "{case}: {each:?}");
    }
}
