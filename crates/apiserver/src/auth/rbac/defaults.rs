//! The roles and bindings that are there from the start, and how they are kept complete.

use serde_json::{Map, Value, json};

use super::{
    RbacKind, RoleIndex,
    rule::{Rule, missing},
};

const TABLE: &str = include_str!("default_roles.txt");
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
/// On objects with the value `false`, hands off.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// The default objects, roles before the bindings that refer to them. Roles that gather others' rules have them already.
pub fn default_objects() -> Vec<(RbacKind, Value)> {
    let mut objects: Vec<(RbacKind, Value)> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("  ") {
            None => objects.push(head(line)),
            Some(rest) => {
                let (_, object) = objects.last_mut().expect("the table begins with a head");
                add(object, rest);
            }
        }
    }
    gather(&mut objects);
    objects
}

fn head(line: &str) -> (RbacKind, Value) {
    let mut words = line.split(' ');
    let mut next = || words.next().expect("a head has a kind and a name");
    let (kind_name, name) = (next(), next());
    let kind = match kind_name {
        "Role" => RbacKind::Role,
        "ClusterRole" => RbacKind::ClusterRole,
        "RoleBinding" => RbacKind::RoleBinding,
        "ClusterRoleBinding" => RbacKind::ClusterRoleBinding,
        other => unreachable!("the table knows no kind {other}"),
    };
    let mut labels = Map::from_iter([("kubernetes.io/bootstrapping".to_owned(), json!("rbac-defaults"))]);
    for role in words.filter_map(|word| word.strip_prefix('+')) {
        labels.insert(format!("{AGGREGATE_TO}{role}"), json!("true"));
    }
    let mut metadata = json!({ "annotations": { AUTOUPDATE: "true" }, "labels": labels });
    place(&mut metadata, name);
    let content = match kind {
        RbacKind::Role | RbacKind::ClusterRole => "rules",
        RbacKind::RoleBinding | RbacKind::ClusterRoleBinding => "subjects",
    };
    (
        kind,
        json!({ "apiVersion": API_VERSION, "kind": kind_name, "metadata": metadata, content: [] }),
    )
}

/// Sets name and perhaps namespace.
fn place(object: &mut Value, name: &str) {
    match name.split_once('/') {
        Some((namespace, name)) => {
            object["namespace"] = namespace.into();
            object["name"] = name.into();
        }
        None => object["name"] = name.into(),
    }
}

fn add(object: &mut Value, line: &str) {
    let (first, rest) = line.split_once(' ').expect("a line has several words");
    let push = |list: &mut Value, item: Value| list.as_array_mut().expect("heads begin with lists").push(item);
    match first {
        "gathers" => {
            let selector = json!({ "matchLabels": { format!("{AGGREGATE_TO}{rest}"): "true" } });
            object["aggregationRule"] = json!({ "clusterRoleSelectors": [selector] });
        }
        "grants" => {
            let (kind, name) = rest.split_once(' ').expect("a role has a kind and a name");
            object["roleRef"] = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
        }
        "to" => {
            let (kind, name) = rest.split_once(' ').expect("a subject has a kind and a name");
            let mut subject = json!({ "kind": kind });
            if kind != "ServiceAccount" {
                subject["apiGroup"] = "rbac.authorization.k8s.io".into();
            }
            place(&mut subject, name);
            push(&mut object["subjects"], subject);
        }
        verbs => push(&mut object["rules"], rule(verbs, rest).to_value()),
    }
}

fn rule(verbs: &str, rest: &str) -> Rule {
    const READ: [&str; 3] = ["get", "list", "watch"];
    const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];
    let list = |words: &str, by: char| words.split(by).map(str::to_owned).collect::<Vec<_>>();
    let mut verbs = match verbs {
        "read" => READ.map(str::to_owned).to_vec(),
        "write" => WRITE.map(str::to_owned).to_vec(),
        "read+write" => READ.into_iter().chain(WRITE).map(str::to_owned).collect(),
        verbs => list(verbs, ','),
    };
    verbs.sort();
    let (groups, what) = rest.split_once(' ').expect("a rule has groups and resources");
    if groups == "paths" {
        return Rule {
            verbs,
            non_resource_urls: list(what, ' '),
            ..Rule::default()
        };
    }
    let (resources, names) = what
        .split_once(" named ")
        .map_or((what, None), |(what, names)| (what, Some(names)));
    let api_groups = groups
        .split(',')
        .map(|group| if group == "core" { "" } else { group }.to_owned())
        .collect();
    let resource_names = names.map_or_else(Vec::new, |names| list(names, ' '));
    Rule {
        verbs,
        api_groups,
        resources: list(resources, ' '),
        resource_names,
        ..Rule::default()
    }
}

fn gather(objects: &mut [(RbacKind, Value)]) {
    let index = RoleIndex::new();
    for (kind, object) in objects.iter() {
        index.apply(*kind, object);
    }
    loop {
        // Roles gather from roles that gather: as often as there is something new.
        let stale = index.stale_gatherings();
        if stale.is_empty() {
            return;
        }
        for (name, rules) in stale {
            let is_it = |(kind, object): &&mut (RbacKind, Value)| {
                *kind == RbacKind::ClusterRole && object["metadata"]["name"] == *name
            };
            if let Some((kind, object)) = objects.iter_mut().find(is_it) {
                object["rules"] = rules.iter().map(Rule::to_value).collect();
                index.apply(*kind, object);
            }
        }
    }
}

/// What to do about a default object.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconciled {
    /// It lacks nothing, or is not to be touched.
    Keep,
    /// It is not there.
    Create,
    /// It lacks something, and this is how it should be.
    Update(Value),
    /// It is a binding to another role, which cannot be changed: delete it and create the default one.
    Replace,
}

/// Compares a default object with what is there. What is missing is added; what was added by others stays.
pub fn reconcile(default: &Value, existing: Option<&Value>) -> Reconciled {
    let Some(existing) = existing else {
        return Reconciled::Create;
    };
    if existing["metadata"]["annotations"]
        .get(AUTOUPDATE)
        .is_some_and(|value| value == "false")
    {
        return Reconciled::Keep;
    }
    if default
        .get("roleRef")
        .is_some_and(|role| existing.get("roleRef") != Some(role))
    {
        return Reconciled::Replace;
    }
    let mut complete = existing.clone();
    for name in ["labels", "annotations"] {
        let wanted = default["metadata"][name].as_object().into_iter().flatten();
        for (key, value) in wanted {
            let map = &mut complete["metadata"][name];
            if map.get(key).is_none() {
                map[key] = value.clone();
            }
        }
    }
    if let Some(rule) = default.get("aggregationRule") {
        append_missing(
            &mut complete["aggregationRule"]["clusterRoleSelectors"],
            &rule["clusterRoleSelectors"],
        );
    } else if default.get("rules").is_some() {
        let missing = missing(&Rule::all_of(existing), &Rule::all_of(default));
        if !missing.is_empty() {
            let held = Rule::all_of(existing);
            complete["rules"] = held.iter().chain(&missing).map(Rule::to_value).collect();
        }
    }
    if let Some(subjects) = default.get("subjects") {
        append_missing(&mut complete["subjects"], subjects);
    }
    if complete == *existing {
        Reconciled::Keep
    } else {
        Reconciled::Update(complete)
    }
}

fn append_missing(list: &mut Value, wanted: &Value) {
    let wanted = wanted.as_array().into_iter().flatten();
    let present = list.as_array().cloned().unwrap_or_default();
    let missing: Vec<Value> = wanted.filter(|item| !present.contains(item)).cloned().collect();
    if !missing.is_empty() {
        *list = present.into_iter().chain(missing).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'o>(objects: &'o [(RbacKind, Value)], kind: RbacKind, name: &str) -> &'o Value {
        let found = objects
            .iter()
            .find(|(of, object)| *of == kind && object["metadata"]["name"] == *name);
        &found.unwrap_or_else(|| panic!("there is a default {name}")).1
    }

    #[test]
    fn the_table_gives_whole_objects() {
        let objects = default_objects();
        assert_eq!(
            *named(&objects, RbacKind::ClusterRole, "cluster-admin"),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {
                    "name": "cluster-admin",
                    "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
                    "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
                },
                "rules": [
                    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                    {"verbs": ["*"], "nonResourceURLs": ["*"]},
                ],
            })
        );
        assert_eq!(
            named(&objects, RbacKind::ClusterRole, "system:kube-controller-manager")["rules"][2],
            json!({
                "verbs": ["get", "update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "resourceNames": ["kube-controller-manager"],
            })
        );
        let binding = named(&objects, RbacKind::RoleBinding, "system::leader-locking-kube-scheduler");
        assert_eq!(binding["metadata"]["namespace"], "kube-system");
        assert_eq!(
            binding["subjects"],
            json!([
                {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-scheduler"},
                {"kind": "ServiceAccount", "namespace": "kube-system", "name": "kube-scheduler"},
            ])
        );
    }

    #[test]
    fn every_binding_refers_to_a_role_of_the_table() {
        let objects = default_objects();
        for (kind, object) in objects.iter().filter(|(_, object)| object.get("roleRef").is_some()) {
            let role = object["roleRef"]["name"].as_str().unwrap();
            let of = if object["roleRef"]["kind"] == "Role" {
                RbacKind::Role
            } else {
                RbacKind::ClusterRole
            };
            named(&objects, of, role);
            assert!(matches!(kind, RbacKind::RoleBinding | RbacKind::ClusterRoleBinding));
        }
    }

    #[test]
    fn admin_has_gathered_what_edit_and_view_have() {
        let objects = default_objects();
        let rules = |name| Rule::all_of(named(&objects, RbacKind::ClusterRole, name));
        let (admin, edit, view) = (rules("admin"), rules("edit"), rules("view"));
        assert_eq!(missing(&admin, &edit), []);
        assert_eq!(missing(&edit, &view), []);
        assert_eq!(missing(&admin, &rules("system:aggregate-to-admin")), []);
        assert!(!missing(&view, &edit).is_empty());
        assert!(!view.is_empty());
    }

    #[test]
    fn what_is_missing_is_added_and_what_others_added_stays() {
        let objects = default_objects();
        let role = named(&objects, RbacKind::ClusterRole, "system:basic-user");
        assert_eq!(reconcile(role, None), Reconciled::Create);
        assert_eq!(reconcile(role, Some(role)), Reconciled::Keep);

        let mut changed = role.clone();
        changed["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        changed["metadata"]["labels"] = json!({"mine": "yes"});
        let Reconciled::Update(healed) = reconcile(role, Some(&changed)) else {
            panic!("it lacks something")
        };
        assert_eq!(healed["rules"][0], changed["rules"][0]);
        assert_eq!(missing(&Rule::all_of(&healed), &Rule::all_of(role)), []);
        assert_eq!(
            healed["metadata"]["labels"],
            json!({"mine": "yes", "kubernetes.io/bootstrapping": "rbac-defaults"})
        );

        changed["metadata"]["annotations"] = json!({AUTOUPDATE: "false"});
        assert_eq!(reconcile(role, Some(&changed)), Reconciled::Keep);
    }

    #[test]
    fn a_default_binding_gets_its_subjects_back_and_never_another_role() {
        let objects = default_objects();
        let binding = named(&objects, RbacKind::ClusterRoleBinding, "system:discovery");
        let mut changed = binding.clone();
        changed["subjects"] = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]);
        let Reconciled::Update(healed) = reconcile(binding, Some(&changed)) else {
            panic!("it lacks something")
        };
        assert_eq!(healed["subjects"].as_array().unwrap().len(), 2);
        changed["roleRef"]["name"] = "cluster-admin".into();
        assert_eq!(reconcile(binding, Some(&changed)), Reconciled::Replace);
    }
}
