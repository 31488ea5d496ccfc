use serde_json::{Value, json};

use super::*;

fn definition(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "metadata": { "name": "databases.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "databases", "kind": "Database", "shortNames": ["db"] },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": {
                        "replicas": { "type": "integer" }, "engine": { "type": "string" },
                        "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                    }},
                    "status": { "type": "object", "properties": { "replicas": { "type": "integer" } } },
                }}},
            }],
        },
    });
    change(&mut object);
    default(&mut object);
    prepare_create(&mut object);
    object
}

fn second_version(spec: &mut Value) {
    let mut second = spec["versions"][0].clone();
    second["name"] = "v2".into();
    second["storage"] = false.into();
    second["schema"]["openAPIV3Schema"]["properties"]["more"] = json!({ "type": "string" });
    spec["versions"].as_array_mut().unwrap().push(second);
}

fn complaints(object: &Value) -> Vec<String> {
    validate(object).iter().map(ToString::to_string).collect()
}

#[test]
fn what_may_be_left_out_is_filled_in() {
    let object = definition(|_| {});
    assert_eq!(object["spec"]["names"]["singular"], "database");
    assert_eq!(object["spec"]["names"]["listKind"], "DatabaseList");
    assert_eq!(object["spec"]["conversion"], json!({ "strategy": "None" }));
    assert_eq!(object["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(complaints(&object), Vec::<String>::new());
    let webhook = definition(|object| {
        let service = json!({ "namespace": "n", "name": "s" });
        object["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": {
            "clientConfig": { "service": service }, "conversionReviewVersions": ["v1"],
        }});
    });
    assert_eq!(
        webhook.pointer("/spec/conversion/webhook/clientConfig/service/port"),
        Some(&json!(443))
    );
    assert_eq!(complaints(&webhook), Vec::<String>::new());
}

#[test]
fn each_fault_is_told_in_the_words_of_kubernetes() {
    type Change = fn(&mut Value);
    let label = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                 character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
                 validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    let cases: Vec<(Change, Vec<String>)> = vec![
        (
            |object| object["metadata"]["name"] = "other.example.com".into(),
            vec![
                "metadata.name: Invalid value: \"other.example.com\": must be spec.names.plural+\".\"+spec.group".into(),
            ],
        ),
        (
            |object| {
                object["spec"]["group"] = "example".into();
                object["metadata"]["name"] = "databases.example".into();
            },
            vec!["spec.group: Invalid value: \"example\": should be a domain with at least one dot".into()],
        ),
        (
            |object| object["spec"]["scope"] = "Galaxy".into(),
            vec!["spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"".into()],
        ),
        (|object| object["spec"]["scope"] = Value::Null, vec!["spec.scope: Required value".into()]),
        (
            |object| object["spec"]["versions"][0]["schema"] = Value::Null,
            vec!["spec.versions[0].schema.openAPIV3Schema: Required value".into()],
        ),
        (
            |object| object["spec"]["names"]["shortNames"] = json!(["DB"]),
            vec![format!("spec.names.shortNames[0]: Invalid value: \"DB\": {label}")],
        ),
        (
            |object| object["spec"]["names"]["listKind"] = "Database".into(),
            vec!["spec.names.listKind: Invalid value: \"Database\": kind and listKind may not be the same".into()],
        ),
        (
            |object| object["spec"]["versions"][0]["storage"] = false.into(),
            vec![
                "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":false,\
                 \"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\
                 \"AdditionalPrinterColumns\":null,\"SelectableFields\":null}]: must have exactly one version marked \
                 as storage version"
                    .into(),
                "status.storedVersions: Invalid value: null: must have at least one stored version".into(),
            ],
        ),
        (
            |object| object["spec"]["preserveUnknownFields"] = true.into(),
            vec![
                "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set \
                 x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
                    .into(),
            ],
        ),
        (
            |object| {
                object["spec"]["versions"][0]["subresources"] = json!({ "scale": {
                    "specReplicasPath": "spec.replicas", "statusReplicasPath": ".spec.replicas",
                    "labelSelectorPath": ".metadata.labels",
                }});
            },
            vec![
                "spec.subresources.scale.specReplicasPath: Invalid value: \"spec.replicas\": must be a simple json \
                 path starting with ."
                    .into(),
                "spec.subresources.scale.statusReplicasPath: Invalid value: \".spec.replicas\": should be a json path \
                 under .status"
                    .into(),
                "spec.subresources.scale.labelSelectorPath: Invalid value: \".metadata.labels\": should be a json path \
                 under either .spec or .status"
                    .into(),
            ],
        ),
        (
            |object| {
                object["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
                    { "name": "A", "type": "time", "jsonPath": "spec.x" },
                    { "format": "hex" },
                ]);
            },
            vec![
                "spec.additionalPrinterColumns[0].type: Invalid value: \"time\": must be one of \
                 boolean,date,integer,number,string"
                    .into(),
                "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec.x\": must be a simple json path \
                 starting with ."
                    .into(),
                "spec.additionalPrinterColumns[1].name: Required value".into(),
                "spec.additionalPrinterColumns[1].type: Required value: must be one of \
                 boolean,date,integer,number,string"
                    .into(),
                "spec.additionalPrinterColumns[1].format: Invalid value: \"hex\": must be one of \
                 byte,date,date-time,double,float,int32,int64,password"
                    .into(),
                "spec.additionalPrinterColumns[1].JSONPath: Required value".into(),
            ],
        ),
        (
            |object| {
                object["spec"]["versions"][0]["selectableFields"] = json!([
                    { "jsonPath": ".spec.engine" }, { "jsonPath": ".spec.engine" }, { "jsonPath": ".spec.labels" },
                    { "jsonPath": ".spec.nothing" }, { "jsonPath": ".spec.list[0]" }, { "jsonPath": "" },
                ]);
            },
            vec![
                "spec.selectableFields[1].jsonPath: Duplicate value: \".spec.engine\"".into(),
                "spec.selectableFields[2].jsonPath: Invalid value: \".spec.labels\": must point to a field of type \
                 string, boolean or integer. Enum string fields and strings with formats are allowed."
                    .into(),
                "spec.selectableFields[3].jsonPath: Invalid value: \".spec.nothing\": is an invalid path: does not \
                 refer to a valid field"
                    .into(),
                "spec.selectableFields[4].jsonPath: Invalid value: \".spec.list[0]\": is an invalid path: does not \
                 refer to a valid field"
                    .into(),
                "spec.selectableFields[5].jsonPath: Required value".into(),
            ],
        ),
        (
            |object| object["spec"]["versions"][0]["deprecationWarning"] = "old".into(),
            vec![
                "spec.versions[0].deprecationWarning: Invalid value: \"old\": can only be set for deprecated versions"
                    .into(),
            ],
        ),
        (
            |object| {
                let version = &mut object["spec"]["versions"][0];
                version["subresources"] = json!({ "status": {} });
                version["schema"]["openAPIV3Schema"]["type"] = "array".into();
            },
            vec![
                "spec.validation.openAPIV3Schema.type: Invalid value: \"array\": only \"object\" is allowed as the type \
                 at the root of the schema if the status subresource is enabled"
                    .into(),
                "spec.validation.openAPIV3Schema.items: Required value: must be specified".into(),
                "spec.validation.openAPIV3Schema.type: Invalid value: \"array\": must be object at the root".into(),
            ],
        ),
        (
            |object| {
                object["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": {
                    "clientConfig": { "url": "http://u@h/x?y#z" }, "conversionReviewVersions": ["v2", "v2"],
                }});
            },
            vec![
                "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL \
                 scheme; desired format: https://host[/path]"
                    .into(),
                "spec.conversion.webhookClientConfig.url: Invalid value: \"u\": user information is not permitted in \
                 the URL"
                    .into(),
                "spec.conversion.webhookClientConfig.url: Invalid value: \"z\": fragments are not permitted in the URL"
                    .into(),
                "spec.conversion.webhookClientConfig.url: Invalid value: \"y\": query parameters are not permitted in \
                 the URL"
                    .into(),
                "spec.conversion.conversionReviewVersions[1]: Invalid value: \"v2\": duplicate version".into(),
                "spec.conversion.conversionReviewVersions: Invalid value: [\"v2\",\"v2\"]: must include at least one of \
                 v1, v1beta1"
                    .into(),
            ],
        ),
        (
            |object| object["spec"]["conversion"] = json!({ "strategy": "Webhook" }),
            vec![
                "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook".into(),
                "spec.conversion.conversionReviewVersions: Required value".into(),
            ],
        ),
        (
            |object| {
                object["spec"]["conversion"] =
                    json!({ "strategy": "None", "webhook": { "conversionReviewVersions": ["v1"] } });
            },
            vec![
                "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to \
                 Webhook"
                    .into(),
            ],
        ),
        (
            |object| {
                object["spec"]["group"] = "new.k8s.io".into();
                object["metadata"]["name"] = "databases.new.k8s.io".into();
            },
            vec![
                "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval \
                 annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
                    .into(),
            ],
        ),
        (
            |object| object["spec"]["versions"] = json!([]),
            vec![
                "spec.versions: Invalid value: []: must have exactly one version marked as storage version".into(),
                "status.storedVersions: Invalid value: null: must have at least one stored version".into(),
            ],
        ),
        (
            |object| {
                let service = json!({ "name": "", "namespace": "x", "path": "a//b/" });
                object["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": {
                    "clientConfig": { "service": service }, "conversionReviewVersions": ["v1"],
                }});
            },
            vec![
                "spec.conversion.webhookClientConfig.service.namespace: Required value".into(),
                "spec.conversion.webhookClientConfig.service.path: Invalid value: \"a//b/\": must start with a '/'".into(),
                "spec.conversion.webhookClientConfig.service.path: Invalid value: \"a//b/\": segment[0] may not be empty"
                    .into(),
                "spec.conversion.webhookClientConfig.service.path: Invalid value: \"a//b/\": segment[1] may not be empty"
                    .into(),
            ],
        ),
        (
            |object| object["spec"]["conversion"] = json!({ "strategy": "Other" }),
            vec![
                "spec.conversion.strategy: Unsupported value: \"Other\": supported values: \"None\", \"Webhook\"".into(),
            ],
        ),
        (
            |object| object["spec"] = json!({}),
            vec![
                "metadata.name: Invalid value: \"databases.example.com\": must be spec.names.plural+\".\"+spec.group"
                    .into(),
                "spec.group: Required value".into(),
                "spec.scope: Required value".into(),
                "spec.versions: Invalid value: null: must have exactly one version marked as storage version".into(),
                "spec.names.plural: Required value".into(),
                "spec.names.singular: Required value".into(),
                "spec.names.kind: Required value".into(),
                "spec.names.listKind: Required value".into(),
                "status.storedVersions: Invalid value: null: must have at least one stored version".into(),
            ],
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(complaints(&definition(change)), expected);
    }
}

#[test]
fn what_versions_do_not_share_is_named_by_its_version() {
    let object = definition(|object| {
        second_version(&mut object["spec"]);
        object["spec"]["versions"][1]["name"] = "v1".into();
        object["spec"]["versions"][1]["subresources"] = json!({ "scale": { "statusReplicasPath": ".status.x" } });
    });
    let complaints = complaints(&object);
    assert_eq!(
        complaints[0],
        "spec.versions[1].subresources.scale.specReplicasPath: Required value"
    );
    assert!(
        complaints[1].ends_with("must contain unique version names"),
        "{complaints:?}"
    );
}

#[test]
fn more_than_eight_fields_cannot_be_selected_by() {
    let object = definition(|object| {
        let version = &mut object["spec"]["versions"][0];
        let names: Vec<String> = (0..9).map(|number| format!("f{number}")).collect();
        for name in &names {
            version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][name] = json!({"type": "string"});
        }
        let paths: Vec<Value> = names
            .iter()
            .map(|name| json!({ "jsonPath": format!(".spec.{name}") }))
            .collect();
        version["selectableFields"] = json!(paths);
    });
    assert_eq!(
        complaints(&object),
        ["spec.selectableFields: Too many: 9: must have at most 8 items"]
    );
    let mut changed = object.clone();
    changed["spec"]["names"]["categories"] = json!(["all"]);
    assert_eq!(validate_update(&changed, &object), Vec::new());
}

#[test]
fn a_served_kind_keeps_its_scope_and_its_names() {
    let mut old = definition(|_| {});
    let mut new = old.clone();
    new["spec"]["scope"] = "Cluster".into();
    new["spec"]["names"]["kind"] = "Base".into();
    new["spec"]["names"]["plural"] = "bases".into();
    let said = |new: &Value, old: &Value| -> Vec<String> {
        validate_update(new, old).iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        said(&new, &old),
        ["spec.names.plural: Invalid value: \"bases\": field is immutable"]
    );
    Condition::new(condition::ESTABLISHED, true, "", "").set(&mut old, jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(
        said(&new, &old),
        [
            "spec.scope: Invalid value: \"Cluster\": field is immutable",
            "spec.names.kind: Invalid value: \"Base\": field is immutable",
            "spec.names.plural: Invalid value: \"bases\": field is immutable",
        ]
    );
}

#[test]
fn a_version_stays_while_objects_may_be_stored_in_it() {
    let old = definition(|object| second_version(&mut object["spec"]));
    let mut new = old.clone();
    new["spec"]["versions"].as_array_mut().unwrap().remove(0);
    new["spec"]["versions"][0]["storage"] = true.into();
    prepare_update(&mut new, &old);
    assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
    let said: Vec<String> = validate_update(&new, &old).iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage \
          version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 \
          and removes v1 from status.storedVersions"
        ]
    );
    let mut migrated = old.clone();
    migrated["status"]["storedVersions"] = json!(["v2"]);
    assert_eq!(validate_update(&migrated, &old), Vec::new());
}

#[test]
fn a_deleted_definition_waits_for_its_objects() {
    let mut object = definition(|_| {});
    object["metadata"]["finalizers"] = json!(["mine"]);
    object["metadata"]["generation"] = 4.into();
    meta::mark_deleted(
        &mut object,
        jiff::Timestamp::UNIX_EPOCH,
        Some(std::time::Duration::ZERO),
    );
    prepare_delete(&mut object);
    prepare_delete(&mut object);
    assert_eq!(object["metadata"]["finalizers"], json!(["mine", CLEANUP]));
    assert_eq!(object["metadata"]["generation"], 4);
    assert_eq!(object["metadata"].get("deletionGracePeriodSeconds"), None);
    let said = Condition::of(&object, condition::TERMINATING).unwrap();
    assert_eq!((said.holds, said.reason.as_str()), (true, "InstanceDeletionPending"));
}

#[test]
fn certificates_are_looked_at_only_once_they_are_needed() {
    let broken = |object: &mut Value| {
        object["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": {
            "clientConfig": { "url": "https://h", "caBundle": "bm8gY2VydGlmaWNhdGU=" },
            "conversionReviewVersions": ["v1"],
        }});
    };
    assert_eq!(complaints(&definition(broken)), Vec::<String>::new());
    let mut old = definition(|_| {});
    Condition::new(condition::ESTABLISHED, true, "", "").set(&mut old, jiff::Timestamp::UNIX_EPOCH);
    let said = validate_update(&definition(broken), &old);
    assert_eq!(said[0].field, "spec.conversion.webhookClientConfig.caBundle");
}
