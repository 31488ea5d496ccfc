//! Custom resource definitions, and objects of kinds that nobody compiled in.

use crate::harness::Namespace;

/// A namespace, and a definition of widgets in a group of this test's own.
struct Widgets {
    ns: Namespace,
    group: String,
}

impl Widgets {
    fn new() -> Self {
        let ns = Namespace::new();
        let group = format!("{}.example.com", ns.name);
        let widgets = Self { ns, group };
        widgets.ns.ok_with(
            "create -f -",
            &include_str!("widgets.yaml").replace("GROUP", &widgets.group),
        );
        widgets.ns.ok(&format!(
            "wait --for=condition=Established crd/widgets.{} --timeout=30s",
            widgets.group
        ));
        widgets
    }

    /// A widget `a` with this spec, as YAML.
    fn widget(&self, spec: &str) -> String {
        format!(
            "apiVersion: {}/v1\nkind: Widget\nmetadata: {{name: a}}\nspec: {spec}\n",
            self.group
        )
    }

    /// The resource, in words that no other test's definition answers to.
    fn resource(&self) -> String {
        format!("widgets.{}", self.group)
    }

    fn created(spec: &str) -> Self {
        let widgets = Self::new();
        let said = widgets.ns.ok_with("create -f -", &widgets.widget(spec));
        assert_eq!(said, format!("widget.{}/a created\n", widgets.group));
        widgets
    }

    /// What one path of the widget `a` holds.
    fn value(&self, path: &str) -> String {
        self.ns.ok(&format!("get {} a -o jsonpath={{{path}}}", self.resource()))
    }
}

impl Drop for Widgets {
    fn drop(&mut self) {
        // The definition is not in the namespace; a shared reference cluster would keep it.
        self.ns
            .run(&format!("delete crd widgets.{} --wait=false", self.group), "");
    }
}

#[test]
fn a_definition_serves_its_kind_under_every_name() {
    let widgets = Widgets::created("{size: 2}");
    let resources = widgets
        .ns
        .ok(&format!("api-resources --api-group={} -o wide", widgets.group));
    let line = resources.lines().nth(1).unwrap();
    assert!(
        line.starts_with("widgets   ") && line.contains(" wd ") && line.ends_with("tools"),
        "{resources}"
    );
    let group = &widgets.group;
    for name in [
        format!("widget.{group}"),
        format!("widgets.v1.{group}"),
        format!("wd.{group}"),
    ] {
        assert!(
            widgets.ns.ok(&format!("get {name} a -o name")).ends_with("/a\n"),
            "{name}"
        );
    }
}

#[test]
fn values_left_out_get_their_defaults_and_unknown_ones_are_refused_or_pruned() {
    let widgets = Widgets::created("{size: 2}");
    assert_eq!(widgets.value(".spec.color"), "green");
    let unknown = widgets.widget("{size: 2, weight: 5}").replace("name: a", "name: b");
    let complaint = widgets.ns.fails_with("create -f -", &unknown);
    assert!(
        complaint.contains("strict decoding error: unknown field \"spec.weight\""),
        "{complaint}"
    );
    widgets.ns.ok_with("create -f - --validate=ignore", &unknown);
    assert_eq!(
        widgets
            .ns
            .ok(&format!("get {} b -o jsonpath={{.spec.weight}}", widgets.resource())),
        ""
    );
}

#[test]
fn values_against_the_schema_are_refused_field_by_field() {
    let widgets = Widgets::new();
    let complaint = widgets
        .ns
        .fails_with("create -f -", &widgets.widget("{size: 11, color: blue}"));
    assert!(complaint.starts_with("The Widget \"a\" is invalid: "), "{complaint}");
    for part in [
        "* spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10",
        "* spec.color: Unsupported value: \"blue\": supported values: \"red\", \"green\"",
    ] {
        assert!(complaint.contains(part), "{part} is missing: {complaint}");
    }
    let complaint = widgets.ns.fails_with("create -f -", &widgets.widget("{color: red}"));
    assert!(complaint.contains("spec.size: Required value"), "{complaint}");
    let complaint = widgets
        .ns
        .fails_with("create -f - --validate=ignore", &widgets.widget("{size: many}"));
    assert!(
        complaint
            .contains("spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\""),
        "{complaint}"
    );
}

#[test]
fn rules_are_held_against_the_new_object_and_the_old_one() {
    let widgets = Widgets::created("{size: 2, color: red, serial: s1}");
    let patch = |spec: &str| format!(r#"patch {} a --type=merge -p '{{"spec":{spec}}}'"#, widgets.resource());
    let complaint = widgets.ns.fails(&patch(r#"{"size":3}"#));
    assert!(complaint.contains("red widgets come in pairs"), "{complaint}");
    let complaint = widgets.ns.fails(&patch(r#"{"serial":"s2"}"#));
    assert!(complaint.contains("a serial stays"), "{complaint}");
    widgets.ns.ok(&patch(r#"{"size":4}"#));
}

#[test]
fn columns_are_those_of_the_definition() {
    let widgets = Widgets::created("{size: 2}");
    let table = widgets.ns.ok(&format!("get {}", widgets.resource()));
    assert_eq!(table, "NAME   SIZE\na      2\n");
    let wide = widgets.ns.ok(&format!("get {} -o wide", widgets.resource()));
    assert_eq!(wide, "NAME   SIZE   COLOR\na      2      green\n");
}

#[test]
fn spec_and_status_are_written_apart() {
    let widgets = Widgets::created("{size: 2}");
    let resource = widgets.resource();
    widgets.ns.ok(&format!(
        r#"patch {resource} a --subresource=status --type=merge -p '{{"status":{{"size":1}},"spec":{{"size":6}}}}'"#
    ));
    widgets.ns.ok(&format!(
        r#"patch {resource} a --type=merge -p '{{"status":{{"size":9}}}}'"#
    ));
    assert_eq!(widgets.value(".spec.size"), "2");
    assert_eq!(widgets.value(".status.size"), "1");
    assert_eq!(widgets.value(".metadata.generation"), "1");
}

#[test]
fn a_custom_object_is_scaled_and_waited_for() {
    let widgets = Widgets::created("{size: 2}");
    let resource = widgets.resource();
    widgets.ns.ok(&format!("scale {resource} a --replicas=6"));
    assert_eq!(widgets.value(".spec.size"), "6");
    widgets.ns.ok(&format!(
        r#"patch {resource} a --subresource=status --type=merge -p '{{"status":{{"conditions":[{{"type":"Ready","status":"True"}}]}}}}'"#
    ));
    widgets
        .ns
        .ok(&format!("wait --for=condition=Ready {resource}/a --timeout=30s"));
}

#[test]
fn a_custom_object_is_applied_from_both_sides() {
    let widgets = Widgets::new();
    let ns = &widgets.ns;
    ns.ok_with("apply -f -", &widgets.widget("{size: 2, parts: [{name: gone}]}"));
    ns.ok_with("apply -f -", &widgets.widget("{size: 4}"));
    assert_eq!(widgets.value(".spec"), r#"{"color":"green","size":4}"#);
    ns.ok_with(
        "apply --server-side --field-manager=one -f - --force-conflicts",
        &widgets.widget("{size: 4, parts: [{name: p, count: 1}]}"),
    );
    ns.ok_with(
        "apply --server-side --field-manager=two -f -",
        &widgets.widget("{size: 4, parts: [{name: q, count: 2}]}"),
    );
    assert_eq!(widgets.value(".spec.parts[*].name"), "p q");
    let complaint = ns.fails_with(
        "apply --server-side --field-manager=two -f -",
        &widgets.widget("{size: 4, parts: [{name: p, count: 3}]}"),
    );
    assert!(complaint.contains("conflict with \"one\""), "{complaint}");
    assert!(complaint.contains(".spec.parts[name=\"p\"].count"), "{complaint}");
}

#[test]
fn a_strategic_patch_of_a_custom_object_is_refused() {
    let widgets = Widgets::created("{size: 2}");
    let complaint = widgets.ns.fails(&format!(
        r#"patch {} a --type=strategic -p '{{"spec":{{"size":4}}}}'"#,
        widgets.resource()
    ));
    assert!(
        complaint.contains("application/strategic-merge-patch+json is not supported by"),
        "{complaint}"
    );
}

#[test]
fn every_served_version_reads_the_same_object() {
    let widgets = Widgets::created("{size: 2}");
    let older = widgets.ns.ok(&format!(
        "get widgets.v1alpha1.{} a -o jsonpath={{.apiVersion}}/{{.spec.size}}",
        widgets.group
    ));
    assert_eq!(older, format!("{}/v1alpha1/2", widgets.group));
}

#[test]
fn explain_and_describe_know_a_custom_kind() {
    let widgets = Widgets::created("{size: 2}");
    let said = widgets.ns.ok(&format!(
        "explain {}.spec --api-version={}/v1",
        "widgets", widgets.group
    ));
    assert!(said.contains("size\t<integer> -required-"), "{said}");
    assert!(said.contains("How many there are."), "{said}");
    let described = widgets.ns.ok(&format!("describe {} a", widgets.resource()));
    assert!(
        described.contains("Kind:         Widget") && described.contains("Size:   2"),
        "{described}"
    );
}

#[test]
fn deleting_a_definition_deletes_its_objects_and_stops_serving() {
    let widgets = Widgets::created("{size: 2}");
    widgets
        .ns
        .ok(&format!("delete crd widgets.{} --timeout=30s", widgets.group));
    let complaint = widgets.ns.fails(&format!("get {}", widgets.resource()));
    assert!(
        complaint.contains("the server doesn't have a resource type"),
        "{complaint}"
    );
}

#[test]
fn a_definition_without_a_structural_schema_is_refused() {
    let ns = Namespace::new();
    let group = format!("{}.example.com", ns.name);
    let definition = include_str!("gadgets.yaml")
        .replace("kept.example.com", &group)
        .replace(
            "{openAPIV3Schema: {type: object}}",
            "{openAPIV3Schema: {properties: {spec: {}}}}",
        );
    let complaint = ns.fails_with("create -f -", &definition);
    assert!(complaint.contains("must not be empty for"), "{complaint}");
}
