use std::{
    sync::atomic::{AtomicU64, Ordering},
    task::Waker,
};

use jiff::Timestamp;
use moorline_machinery::{gvk::GroupVersionResource, schema::Schema};
use moorline_store::{Attributes, Options, Resource, Store};
use serde_json::json;

use super::{super::webhook_client::FindService, *};
use crate::{
    core::World,
    resource::{LazySchema, Registry},
    strategy::Strategy,
    wire::TypePrefix,
};

struct TestWorld(AtomicU64);

impl World for TestWorld {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn random(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn uid(&self) -> String {
        format!("uid-{}", self.random())
    }
}

/// A kind with no rules of its own.
struct Plain;

impl Strategy for Plain {}

struct NoServices;

impl FindService for NoServices {
    fn find(&self, namespace: &str, name: &str, _: u16) -> Result<std::net::SocketAddr, String> {
        Err(format!("no service {name} in {namespace}"))
    }
}

/// A server that serves nothing but definitions.
struct Server {
    store: Store,
    registry: Arc<Registry>,
    controller: Controller,
}

impl HasRegistry for Registry {
    fn registry(&self) -> &Registry {
        self
    }
}

fn definitions() -> ResourceType {
    let gvr = kinds::definitions();
    let gvk = moorline_machinery::gvk::GroupVersionKind::new(
        gvr.group.clone(),
        gvr.version.clone(),
        "CustomResourceDefinition",
    );
    ResourceType {
        storage: Resource::new("apiextensions.k8s.io/customresourcedefinitions"),
        prefix: TypePrefix::new(&gvk.api_version(), &gvk.kind),
        list_kind: "CustomResourceDefinitionList".into(),
        singular: "customresourcedefinition".into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: false,
        verbs: Vec::new(),
        subresources: Vec::new(),
        strategy: Arc::new(Plain),
        schema: LazySchema::new(Schema::anything),
        gvr,
        gvk,
    }
}

impl Server {
    fn new() -> Self {
        Self::over(Store::memory(Options::default(), |_: &Key, _: &[u8]| {
            Attributes::default()
        }))
    }

    fn over(store: Store) -> Self {
        let registry = Arc::new(Registry::new([Arc::new(definitions())]));
        let world = Arc::new(TestWorld(AtomicU64::new(0)));
        let client = Arc::new(WebhookClient::new(Arc::new(NoServices)));
        let controller = Controller::begin(store.clone(), world, registry.clone(), client).unwrap();
        Self {
            store,
            registry,
            controller,
        }
    }

    /// Lets the controller do all there is to do, as its task would.
    fn settle(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Seen::Definition(name)) = self.controller.poll_seen(&mut context) {
            let mut names = BTreeSet::from([name]);
            while let Some(name) = names.pop_first() {
                while let Some(writes) = self.controller.decide(&name) {
                    let outcomes = writes.pending.into_iter().map(Pending::wait).collect();
                    if self.controller.wrote(&name, writes.of, outcomes, &mut names) == After::Rest {
                        break;
                    }
                }
                if self.store.get(&self.controller.key(&name)).is_none() {
                    names.extend(self.controller.forget(&name));
                }
            }
        }
    }

    fn create(&mut self, mut definition: Value) -> String {
        definition::default(&mut definition);
        definition::prepare_create(&mut definition);
        assert_eq!(definition::validate(&definition), Vec::new());
        definition["metadata"]["uid"] = self.controller.world.uid().into();
        definition["metadata"]["generation"] = 1.into();
        definition["metadata"]["managedFields"] = json!([{
            "manager": "kubectl", "operation": "Update", "apiVersion": "apiextensions.k8s.io/v1",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": {} }, "time": "1970-01-01T00:00:00Z",
        }]);
        let name = meta::of(&definition).name().to_owned();
        let key = self.controller.key(&name);
        self.store.create(key, wire::to_stored(&definition)).wait().unwrap();
        self.settle();
        name
    }

    fn definition(&self, name: &str) -> Option<Value> {
        let record = self.store.get(&self.controller.key(name))?;
        Some(self.controller.read(record).1)
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let old = self.definition(name).unwrap();
        let mut new = old.clone();
        change(&mut new);
        if new["spec"] != old["spec"] {
            definition::prepare_update(&mut new, &old);
            let generation = meta::of(&old).generation() + 1;
            new["metadata"]["generation"] = generation.into();
        }
        self.store
            .put(self.controller.key(name), wire::to_stored(&new))
            .wait()
            .unwrap();
        self.settle();
    }

    fn delete(&mut self, name: &str) {
        self.change(name, |definition| {
            meta::mark_deleted(definition, Timestamp::UNIX_EPOCH, Some(Duration::ZERO));
            definition::prepare_delete(definition);
        });
    }

    fn served(&self, version: &str, resource: &str) -> Option<Arc<ResourceType>> {
        self.registry
            .find(&GroupVersionResource::new("example.com", version, resource))
    }

    fn put_object(&self, name: &str, object: &Value) {
        let key = Key::new(&kinds::storage("example.com", "databases"), "n", name);
        self.store
            .put(key, wire::to_stored_with_version(object))
            .wait()
            .unwrap();
    }

    fn objects(&self) -> Vec<Value> {
        let scope = Scope::Resource(kinds::storage("example.com", "databases"));
        let records = self.store.list(&moorline_store::List::all(scope)).unwrap().records;
        records
            .iter()
            .map(|record| wire::from_stored(record.value(), "", "Database"))
            .collect()
    }
}

fn database() -> Value {
    json!({
        "metadata": { "name": "databases.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "databases", "kind": "Database", "shortNames": ["db"], "categories": ["all"] },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "properties": { "replicas": { "type": "integer" } } },
                }}},
                "subresources": { "status": {} },
            }],
        },
    })
}

fn other(plural: &str, kind: &str, short: &str) -> Value {
    let mut other = database();
    other["metadata"]["name"] = format!("{plural}.example.com").into();
    other["spec"]["names"] = json!({ "plural": plural, "kind": kind, "shortNames": [short] });
    other
}

#[test]
fn a_new_definition_is_served_before_it_is_called_established() {
    let mut server = Server::new();
    let mut watch = server
        .store
        .watch(Scope::Resource(definitions().storage), Start::Now)
        .unwrap();
    let name = server.create(database());
    let definition = server.definition(&name).unwrap();
    assert_eq!(
        definition["status"],
        json!({
            "acceptedNames": {
                "plural": "databases", "singular": "database", "kind": "Database", "listKind": "DatabaseList",
                "shortNames": ["db"], "categories": ["all"],
            },
            "conditions": [
                { "type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found",
                  "lastTransitionTime": "1970-01-01T00:00:00Z" },
                { "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
                  "message": "the initial names have been accepted", "lastTransitionTime": "1970-01-01T00:00:00Z" },
            ],
            "storedVersions": ["v1"],
        })
    );
    let managers = definition["metadata"]["managedFields"].as_array().unwrap();
    assert!(
        managers
            .iter()
            .any(|entry| entry["manager"] == "kube-apiserver" && entry["subresource"] == "status")
    );
    // The creation and one write: nobody waits for the steps between.
    assert!(watch.try_next().is_some() && watch.try_next().is_some() && watch.try_next().is_none());
    let databases = server.served("v1", "databases").unwrap();
    assert_eq!(&*databases.gvk.kind, "Database");
    assert!(databases.namespaced && databases.has_status());
}

#[test]
fn a_restarted_server_serves_what_was_established_without_a_write() {
    let store = Store::memory(Options::default(), |_: &Key, _: &[u8]| Attributes::default());
    let mut server = Server::over(store.clone());
    server.create(database());
    let revision = store.revision();
    let again = Server::over(store.clone());
    assert!(again.served("v1", "databases").is_some());
    assert_eq!(store.revision(), revision);
}

#[test]
fn a_definition_that_was_never_looked_at_is_settled_at_the_start() {
    let store = Store::memory(Options::default(), |_: &Key, _: &[u8]| Attributes::default());
    let mut definition = database();
    definition::default(&mut definition);
    definition::prepare_create(&mut definition);
    let key = Key::new(&definitions().storage, "", "databases.example.com");
    store.create(key, wire::to_stored(&definition)).wait().unwrap();
    let server = Server::over(store);
    assert!(condition::holds(
        &server.definition("databases.example.com").unwrap(),
        condition::ESTABLISHED
    ));
    assert!(server.served("v1", "databases").is_some());
}

#[test]
fn names_are_first_come_first_served_and_free_once_their_owner_goes() {
    let mut server = Server::new();
    let first = server.create(database());
    let second = server.create(other("dbs", "Other", "db"));
    let definition = server.definition(&second).unwrap();
    let said = Condition::of(&definition, condition::NAMES_ACCEPTED).unwrap();
    assert_eq!(said.message, "\"db\" is already in use");
    assert!(server.served("v1", "dbs").is_none());
    server.delete(&first);
    assert!(server.definition(&first).is_none());
    assert!(server.served("v1", "databases").is_none());
    assert!(condition::holds(
        &server.definition(&second).unwrap(),
        condition::ESTABLISHED
    ));
    assert!(server.served("v1", "dbs").is_some());
}

#[test]
fn a_changed_definition_is_served_as_it_is_now() {
    let mut server = Server::new();
    let name = server.create(database());
    let before = server.served("v1", "databases").unwrap();
    server.change(&name, |definition| {
        let mut second = definition["spec"]["versions"][0].clone();
        second["name"] = "v2".into();
        second["storage"] = false.into();
        second["subresources"]["scale"] =
            json!({ "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas" });
        definition["spec"]["versions"].as_array_mut().unwrap().push(second);
        definition["spec"]["names"]["shortNames"] = json!(["base"]);
    });
    let v2 = server.served("v2", "databases").unwrap();
    assert_eq!(v2.strategy.scale().unwrap().spec, "/spec/replicas");
    assert!(v2.subresource("scale").is_some());
    assert_eq!(v2.short_names, vec!["base".into()]);
    assert!(!Arc::ptr_eq(&before, &server.served("v1", "databases").unwrap()));
    server.change(&name, |definition| {
        definition["spec"]["versions"][1]["served"] = false.into();
    });
    assert!(server.served("v2", "databases").is_none());
    assert!(server.served("v1", "databases").is_some());
}

#[test]
fn a_write_that_leaves_the_specification_alone_leaves_what_is_served_alone() {
    let mut server = Server::new();
    let name = server.create(database());
    let before = server.served("v1", "databases").unwrap();
    server.change(&name, |definition| {
        definition["metadata"]["labels"] = json!({ "a": "b" });
    });
    assert!(Arc::ptr_eq(&before, &server.served("v1", "databases").unwrap()));
}

#[test]
fn objects_go_before_their_definition_and_no_new_ones_come() {
    let mut server = Server::new();
    let name = server.create(database());
    let object = |name: &str, finalizers: Value| {
        json!({ "apiVersion": "example.com/v1", "kind": "Database",
                "metadata": { "name": name, "namespace": "n", "finalizers": finalizers } })
    };
    server.put_object("free", &object("free", json!([])));
    server.put_object("held", &object("held", json!(["mine"])));
    server.delete(&name);
    let databases = server.served("v1", "databases").unwrap();
    assert_eq!(
        databases.strategy.creation_refused(),
        Some("create not allowed while custom resource definition is terminating")
    );
    let left = server.objects();
    assert_eq!(left.len(), 1);
    assert_eq!(meta::of(&left[0]).name(), "held");
    assert!(meta::of(&left[0]).is_deleting());
    let said = Condition::of(&server.definition(&name).unwrap(), condition::TERMINATING).unwrap();
    assert_eq!((said.holds, said.reason.as_str()), (true, "InstanceDeletionInProgress"));
    let key = Key::new(&kinds::storage("example.com", "databases"), "n", "held");
    server.store.delete(key).wait().unwrap();
    server.settle();
    assert!(server.definition(&name).is_none());
    assert!(server.served("v1", "databases").is_none());
}

#[test]
fn a_definition_that_others_hold_stays_when_its_objects_are_gone() {
    let mut server = Server::new();
    let name = server.create(database());
    server.change(&name, |definition| {
        definition["metadata"]["finalizers"] = json!(["mine"]);
    });
    server.delete(&name);
    let definition = server.definition(&name).unwrap();
    assert_eq!(definition["metadata"]["finalizers"], json!(["mine"]));
    let said = Condition::of(&definition, condition::TERMINATING).unwrap();
    assert_eq!((said.holds, said.reason.as_str()), (false, "InstanceDeletionCompleted"));
}

#[test]
fn a_definition_with_a_webhook_that_nobody_can_trust_is_not_established() {
    let mut server = Server::new();
    let mut definition = database();
    definition["spec"]["conversion"] = json!({ "strategy": "Webhook", "webhook": {
        "clientConfig": { "url": "https://h", "caBundle": "bm8gY2VydGlmaWNhdGU=" },
        "conversionReviewVersions": ["v1"],
    }});
    let name = server.create(definition);
    let said = Condition::of(&server.definition(&name).unwrap(), condition::ESTABLISHED).unwrap();
    assert_eq!((said.holds, said.reason.as_str()), (false, "InvalidCABundle"));
}

#[test]
fn a_version_in_a_group_of_the_project_says_by_what_right() {
    let mut server = Server::new();
    let mut definition = database();
    definition["spec"]["group"] = "data.k8s.io".into();
    definition["metadata"] = json!({
        "name": "databases.data.k8s.io", "annotations": { "api-approved.kubernetes.io": "unapproved, a test" },
    });
    let name = server.create(definition);
    let said = Condition::of(&server.definition(&name).unwrap(), condition::APPROVED).unwrap();
    assert_eq!((said.holds, said.reason.as_str()), (false, "UnapprovedAnnotation"));
}

#[tokio::test]
async fn the_task_serves_a_definition_as_soon_as_it_is_written() {
    let Server {
        store,
        registry,
        controller,
    } = Server::new();
    let mut watch = store.watch(Scope::Resource(definitions().storage), Start::Now).unwrap();
    let key = controller.key("databases.example.com");
    let task = tokio::spawn(controller.run());
    let mut definition = database();
    definition::default(&mut definition);
    definition::prepare_create(&mut definition);
    store.create(key, wire::to_stored(&definition)).await.unwrap();
    let established = poll_fn(|context| watch.poll_next(context));
    established.await.unwrap();
    let event = poll_fn(|context| watch.poll_next(context)).await.unwrap();
    let definition = wire::from_stored(event.record().unwrap().value(), "", "");
    assert!(condition::holds(&definition, condition::ESTABLISHED));
    assert!(
        registry
            .find(&GroupVersionResource::new("example.com", "v1", "databases"))
            .is_some()
    );
    store.close();
    task.await.unwrap();
}
