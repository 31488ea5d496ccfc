//! Who owns the number of replicas after a write to a scale, which is a kind of its own and sees nothing else.

use serde_json::Value;

use super::{
    FieldSet, Writer,
    managed::{self, ManagedFields, Manager, Operation, Owned},
};

/// Whether a write to a scale changed the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rescaled {
    /// It is another one.
    Yes,
    /// It is none any more, which a scale does not write down.
    ToNothing,
    /// It is the one that was there.
    No,
}

/// Records in `new` who owns what after a write to its scale, `replicas` being where the number stands in it.
///
/// As at other API servers: what nobody owned stays nobody's. A new number is the writer's, and the entry has no time,
/// since the scale does not tell it. An updater whose number was left alone has an entry for it apart from its other
/// fields, because in the scale it goes by the version of the scale.
pub fn rescale(old: &Value, new: &mut Value, writer: &Writer<'_>, replicas: &FieldSet, rescaled: Rescaled) {
    let owners = ManagedFields::of(old).unwrap_or_default();
    let number = || Owned {
        fields: replicas.clone(),
        api_version: writer.api_version.to_owned(),
        time: None,
    };
    let mut entries: Vec<(Manager, Owned)> = Vec::new();
    let mut is_owned = false;
    for (manager, owned) in owners.iter() {
        let mut owned = owned.clone();
        if !owned.fields.intersection(replicas).is_empty() {
            is_owned = true;
            if rescaled != Rescaled::No || manager.operation == Operation::Update {
                owned.fields.subtract(replicas);
            }
            if rescaled == Rescaled::No && manager.operation == Operation::Update {
                entries.push((manager.clone(), number()));
            }
        }
        if !owned.fields.is_empty() {
            entries.push((manager.clone(), owned));
        }
    }
    if is_owned && rescaled == Rescaled::Yes {
        let scaler = Manager::new(
            writer.manager,
            Operation::Update,
            writer.api_version,
            writer.subresource,
        );
        entries.push((scaler, number()));
    }
    managed::store(entries.iter().map(|(manager, owned)| (manager, owned)).collect(), new);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
            "fieldsV1": { "f:spec": fields }, "time": "2026-01-01T00:00:00Z",
        })
    }

    /// Who owns what after bob scaled: manager, operation, subresource, fields of the spec, whether there is a time.
    fn after(entries: &[Value], rescaled: Rescaled) -> Vec<String> {
        let old = json!({ "metadata": { "managedFields": entries } });
        let mut new = old.clone();
        let writer = Writer {
            manager: "bob",
            api_version: "apps/v1",
            subresource: "scale",
            now: "2026-01-02T00:00:00Z",
            reset: &FieldSet::EMPTY,
        };
        rescale(
            &old,
            &mut new,
            &writer,
            &FieldSet::of_fields(["spec.replicas"]),
            rescaled,
        );
        let entries = new["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let said = entries.iter().map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
            let timed = if entry["time"].is_null() { "timeless" } else { "timed" };
            format!(
                "{} {} {} {} {timed}",
                text("manager"),
                text("operation"),
                text("subresource"),
                entry["fieldsV1"]["f:spec"]
            )
        });
        said.collect()
    }

    #[test]
    fn a_new_number_is_the_scalers_and_nobody_elses() {
        let both = json!({ "f:replicas": {}, "f:paused": {} });
        let entries = [
            entry("alice", "Apply", &both),
            entry("carol", "Update", &json!({ "f:replicas": {} })),
        ];
        assert_eq!(
            after(&entries, Rescaled::Yes),
            [
                r#"alice Apply - {"f:paused":{}} timed"#,
                r#"bob Update scale {"f:replicas":{}} timeless"#,
            ]
        );
    }

    #[test]
    fn who_scales_to_nothing_owns_nothing() {
        let entries = [entry("carol", "Update", &json!({ "f:replicas": {} }))];
        assert_eq!(after(&entries, Rescaled::ToNothing), Vec::<String>::new());
    }

    #[test]
    fn a_number_that_nobody_owned_stays_nobodys() {
        let entries = [entry("alice", "Apply", &json!({ "f:paused": {} }))];
        assert_eq!(
            after(&entries, Rescaled::Yes),
            [r#"alice Apply - {"f:paused":{}} timed"#]
        );
    }

    #[test]
    fn the_same_number_again_only_sets_the_updaters_apart() {
        let both = json!({ "f:replicas": {}, "f:paused": {} });
        let entries = [entry("alice", "Apply", &both), entry("carol", "Update", &both)];
        assert_eq!(
            after(&entries, Rescaled::No),
            [
                r#"alice Apply - {"f:paused":{},"f:replicas":{}} timed"#,
                r#"carol Update - {"f:replicas":{}} timeless"#,
                r#"carol Update - {"f:paused":{}} timed"#,
            ]
        );
    }
}
