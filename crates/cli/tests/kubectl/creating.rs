//! `kubectl create`, `run` and `expose`: typed commands, whose bodies are protobuf, and files.

use crate::harness::Namespace;

#[test]
fn a_config_map_is_created_from_literals() {
    let ns = Namespace::new();
    assert_eq!(
        ns.ok("create configmap a --from-literal=x=1 --from-literal=y=2"),
        "configmap/a created\n"
    );
    assert_eq!(ns.ok("get cm a -o jsonpath={.data}"), r#"{"x":"1","y":"2"}"#);
}

#[test]
fn a_secret_keeps_its_values_in_base64() {
    let ns = Namespace::new();
    ns.ok("create secret generic s --from-literal=password=hunter2");
    assert_eq!(
        ns.ok("get secret s -o jsonpath={.type}/{.data.password}"),
        "Opaque/aHVudGVyMg=="
    );
    ns.ok("create secret docker-registry d --docker-server=r --docker-username=u --docker-password=p");
    assert_eq!(
        ns.ok("get secret d -o jsonpath={.type}"),
        "kubernetes.io/dockerconfigjson"
    );
}

#[test]
fn a_deployment_is_created_with_its_defaults() {
    let ns = Namespace::new();
    assert_eq!(
        ns.ok("create deployment web --image=nginx --replicas=2"),
        "deployment.apps/web created\n"
    );
    assert_eq!(
        ns.ok("get deploy web -o jsonpath={.spec.replicas}/{.spec.strategy.type}/{.spec.revisionHistoryLimit}"),
        "2/RollingUpdate/10"
    );
    assert_eq!(
        ns.ok("get deploy web -o jsonpath={.spec.template.spec.containers[0].imagePullPolicy}"),
        "Always"
    );
}

#[test]
fn a_new_namespace_is_active_and_gets_a_service_account_and_the_root_certificate() {
    let ns = Namespace::new();
    assert_eq!(
        ns.ok(&format!("get ns {} -o jsonpath={{.status.phase}}", ns.name)),
        "Active"
    );
    ns.eventually("get sa -o name", |names| {
        names.stdout.contains("serviceaccount/default")
    });
    ns.eventually("get cm kube-root-ca.crt -o yaml", |text| {
        text.stdout.contains("BEGIN CERTIFICATE")
    });
}

#[test]
fn roles_and_bindings_are_created_from_flags() {
    let ns = Namespace::new();
    ns.ok("create role reader --verb=get,list --resource=pods,deployments.apps");
    assert_eq!(
        ns.ok("get role reader -o jsonpath={.rules[*].apiGroups}/{.rules[0].verbs}"),
        r#"[""] ["apps"]/["get","list"]"#
    );
    ns.ok(&format!(
        "create rolebinding readers --role=reader --serviceaccount={}:default",
        ns.name
    ));
    assert_eq!(
        ns.ok("get rolebinding readers -o jsonpath={.subjects[0].name}"),
        "default"
    );
}

#[test]
fn a_service_account_gets_a_token_with_three_parts() {
    let ns = Namespace::new();
    ns.ok("create serviceaccount bot");
    let token = ns.ok("create token bot --duration=1h");
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
}

#[test]
fn every_other_typed_command_creates_its_kind() {
    let ns = Namespace::new();
    for (command, created) in [
        ("create job j --image=busybox -- true", "job.batch/j created\n"),
        (
            "create cronjob c --image=busybox --schedule='*/5 * * * *' -- true",
            "cronjob.batch/c created\n",
        ),
        ("create service clusterip s --tcp=80:8080", "service/s created\n"),
        ("create quota q --hard=pods=3", "resourcequota/q created\n"),
        (
            "create ingress i --rule=host/path=s:80",
            "ingress.networking.k8s.io/i created\n",
        ),
        (
            "create poddisruptionbudget b --selector=app=web --min-available=1",
            "poddisruptionbudget.policy/b created\n",
        ),
        ("run p --image=busybox --labels=app=p", "pod/p created\n"),
        ("expose pod p --port=80 --name=exposed", "service/exposed exposed\n"),
        ("create deployment web --image=nginx", "deployment.apps/web created\n"),
        (
            "autoscale deployment web --max=3",
            "horizontalpodautoscaler.autoscaling/web autoscaled\n",
        ),
    ] {
        assert_eq!(ns.ok(command), created, "{command}");
    }
}

#[test]
fn a_job_is_copied_out_of_a_cron_job() {
    let ns = Namespace::new();
    ns.ok("create cronjob c --image=busybox --schedule='*/5 * * * *' -- true");
    ns.ok("create job now --from=cronjob/c");
    assert_eq!(
        ns.ok("get job now -o jsonpath={.metadata.ownerReferences[0].kind}"),
        "CronJob"
    );
}

#[test]
fn a_generated_name_ends_in_five_characters() {
    let ns = Namespace::new();
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"made-"}}"#;
    let first = ns.ok_with("create -f - -o name", object);
    let second = ns.ok_with("create -f - -o name", object);
    assert_eq!(first.trim().len(), "configmap/made-".len() + 5, "{first}");
    assert_ne!(first, second);
}

#[test]
fn a_file_of_several_objects_creates_each() {
    let ns = Namespace::new();
    let created = ns.ok_with(
        "create -f -",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: b}\n",
    );
    assert_eq!(created, "configmap/a created\nserviceaccount/b created\n");
}

#[test]
fn a_dry_run_answers_as_if_and_keeps_nothing() {
    let ns = Namespace::new();
    assert_eq!(
        ns.ok("create configmap a --dry-run=server"),
        "configmap/a created (server dry run)\n"
    );
    assert_eq!(
        ns.ok("create configmap a --dry-run=client"),
        "configmap/a created (dry run)\n"
    );
    let deployment = ns.ok("create deployment w --image=nginx --dry-run=server -o yaml");
    assert!(
        deployment.contains("uid:") && deployment.contains("maxSurge: 25%"),
        "{deployment}"
    );
    assert_eq!(ns.ok("get cm a --ignore-not-found"), "");
    assert_eq!(ns.ok("get deploy w --ignore-not-found"), "");
}
