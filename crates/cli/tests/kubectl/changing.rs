//! What changes an object that is there: patch, label, annotate, edit, replace, scale, set.

use crate::harness::Namespace;

#[test]
fn a_merge_patch_sets_and_removes_keys() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=1 --from-literal=y=2");
    assert_eq!(
        ns.ok(r#"patch cm a --type=merge -p '{"data":{"x":"5","y":null}}'"#),
        "configmap/a patched\n"
    );
    assert_eq!(ns.ok("get cm a -o jsonpath={.data}"), r#"{"x":"5"}"#);
    assert_eq!(
        ns.ok(r#"patch cm a --type=merge -p '{"data":{"x":"5"}}'"#),
        "configmap/a patched (no change)\n"
    );
}

#[test]
fn a_json_patch_tests_before_it_changes() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=1 --from-literal=y=2");
    ns.ok(
        r#"patch cm a --type=json -p '[{"op":"test","path":"/data/x","value":"1"},{"op":"remove","path":"/data/y"}]'"#,
    );
    assert_eq!(ns.ok("get cm a -o jsonpath={.data}"), r#"{"x":"1"}"#);
    assert_eq!(
        ns.fails(r#"patch cm a --type=json -p '[{"op":"test","path":"/data/x","value":"9"}]'"#),
        "The request is invalid: the server rejected our request due to an error in our request\n"
    );
}

#[test]
fn a_strategic_patch_merges_containers_by_name_and_deletes_on_demand() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx");
    let patch = |containers: &str| {
        ns.ok(&format!(
            r#"patch deploy web -p '{{"spec":{{"template":{{"spec":{{"containers":[{containers}]}}}}}}}}'"#
        ));
        ns.ok("get deploy web -o jsonpath={.spec.template.spec.containers[*].name}")
    };
    assert_eq!(patch(r#"{"name":"side","image":"i"}"#), "side nginx");
    assert_eq!(patch(r#"{"name":"nginx","$patch":"delete"}"#), "side");
}

#[test]
fn a_patch_of_a_subresource_changes_nothing_else() {
    let ns = Namespace::new();
    // A kind whose status nobody else writes.
    ns.ok("create ingress i --rule=example.com/=s:80 --class=first");
    let status = |address: &str| format!(r#""status":{{"loadBalancer":{{"ingress":[{{"ip":"{address}"}}]}}}}"#);
    let patch = |verb: &str, fields: &str| ns.ok(&format!("{verb} ingress i --type=merge -p '{{{fields}}}'"));
    patch(
        "patch --subresource=status",
        &format!(r#"{},"spec":{{"ingressClassName":"second"}}"#, status("10.0.0.3")),
    );
    let told = "get ingress i -o jsonpath={.spec.ingressClassName}/{.status.loadBalancer.ingress[0].ip}";
    assert_eq!(ns.ok(told), "first/10.0.0.3");
    patch("patch", &status("10.0.0.7"));
    assert_eq!(ns.ok(told), "first/10.0.0.3");
}

#[test]
fn labels_are_set_overwritten_on_demand_and_removed() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    assert_eq!(ns.ok("label cm a team=one"), "configmap/a labeled\n");
    assert_eq!(
        ns.fails("label cm a team=two"),
        "error: 'team' already has a value (one), and --overwrite is false\n"
    );
    ns.ok("label cm a team=two --overwrite");
    assert_eq!(ns.ok("get cm a -o jsonpath={.metadata.labels}"), r#"{"team":"two"}"#);
    assert_eq!(ns.ok("label cm a team-"), "configmap/a unlabeled\n");
    assert_eq!(ns.ok("get cm a -o jsonpath={.metadata.labels}"), "");
}

#[test]
fn annotations_are_set_on_all_that_a_selector_finds() {
    let ns = Namespace::new();
    for name in ["a", "b", "c"] {
        ns.ok(&format!("create configmap {name}"));
    }
    ns.ok("label cm a b pick=me");
    assert_eq!(
        ns.ok("annotate cm -l pick=me note=hello"),
        "configmap/a annotated\nconfigmap/b annotated\n"
    );
    assert_eq!(ns.ok("get cm c -o jsonpath={.metadata.annotations}"), "");
}

#[test]
fn edit_sends_what_the_editor_changed() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=before");
    assert_eq!(ns.edit("sed -i s/before/after/", "cm a"), "configmap/a edited\n");
    assert_eq!(ns.ok("get cm a -o jsonpath={.data.x}"), "after");
    assert!(ns.edit("true", "cm a").is_empty());
}

#[test]
fn replace_takes_the_file_as_the_whole_object() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=1 --from-literal=y=2");
    let object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {z: three}\n";
    assert_eq!(ns.ok_with("replace -f -", object), "configmap/a replaced\n");
    assert_eq!(ns.ok("get cm a -o jsonpath={.data}"), r#"{"z":"three"}"#);
}

#[test]
fn replace_of_an_older_object_is_a_conflict() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=1");
    let old = ns.ok("get cm a -o json");
    ns.ok("label cm a newer=yes");
    assert_eq!(
        ns.fails_with("replace -f -", &old),
        "Error from server (Conflict): error when replacing \"STDIN\": Operation cannot be fulfilled on configmaps \
         \"a\": the object has been modified; please apply your changes to the latest version and try again\n"
    );
}

#[test]
fn a_forced_replace_makes_a_new_object() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=1");
    let before = ns.ok("get cm a -o jsonpath={.metadata.uid}");
    ns.ok_with(
        "replace --force -f -",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
    );
    assert_ne!(before, ns.ok("get cm a -o jsonpath={.metadata.uid}"));
}

#[test]
fn scale_sets_the_replicas_when_they_are_as_expected() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx --replicas=2");
    assert_eq!(ns.ok("scale deploy web --replicas=4"), "deployment.apps/web scaled\n");
    assert_eq!(
        ns.fails("scale deploy web --replicas=5 --current-replicas=9"),
        "error: Expected replicas to be 9, was 4\n"
    );
    assert_eq!(ns.ok("get deploy web -o jsonpath={.spec.replicas}"), "4");
    assert_eq!(
        ns.ok("get deploy web --subresource=scale -o jsonpath={.kind}/{.spec.replicas}/{.status.selector}"),
        "Scale/4/app=web"
    );
}

#[test]
fn a_change_of_the_spec_counts_as_a_generation_and_a_label_does_not() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx");
    ns.ok("label deploy web some=label");
    assert_eq!(ns.ok("get deploy web -o jsonpath={.metadata.generation}"), "1");
    ns.ok("set image deploy/web nginx=nginx:2");
    assert_eq!(ns.ok("get deploy web -o jsonpath={.metadata.generation}"), "2");
}

#[test]
fn set_changes_image_environment_resources_and_subjects() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx");
    assert_eq!(
        ns.ok("set image deploy/web nginx=nginx:2"),
        "deployment.apps/web image updated\n"
    );
    assert_eq!(ns.ok("set env deploy/web A=B"), "deployment.apps/web env updated\n");
    ns.ok("set resources deploy/web --requests=cpu=100m --limits=memory=64Mi");
    ns.ok("set serviceaccount deploy/web default");
    let pod = "jsonpath={.spec.template.spec.containers[0].image}/{.spec.template.spec.containers[0].env[0].value}/\
               {.spec.template.spec.containers[0].resources.limits.memory}/{.spec.template.spec.serviceAccountName}";
    assert_eq!(ns.ok(&format!("get deploy web -o {pod}")), "nginx:2/B/64Mi/default");
}
