//! Which names a definition gets: those that no other definition of its group has.

use std::collections::HashSet;

use moorline_machinery::field::quote;
use serde_json::{Map, Value};

use super::super::condition::{Condition, ESTABLISHED, NAMES_ACCEPTED};

/// The names that definitions of a group have been given.
#[derive(Default)]
pub(super) struct Taken<'d> {
    resources: HashSet<&'d str>,
    kinds: HashSet<&'d str>,
}

impl<'d> Taken<'d> {
    /// Adds the accepted names of a definition.
    pub(super) fn add(&mut self, names: &'d Value) {
        self.resources
            .extend(["plural", "singular"].iter().filter_map(|key| names[*key].as_str()));
        self.resources.extend(
            names["shortNames"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str),
        );
        self.kinds
            .extend(["kind", "listKind"].iter().filter_map(|key| names[*key].as_str()));
    }
}

/// What a definition is told about its names.
#[derive(Debug, PartialEq)]
pub(super) struct Settled {
    pub(super) names: Value,
    pub(super) accepted: Condition,
    /// How it stands with being served, as far as names decide about that.
    pub(super) established: Condition,
}

/// Decides on the names of a definition, among names that are taken, its own accepted ones included. What is in use by
/// another keeps its former value. Of several conflicts the last one is told.
pub(super) fn settle(definition: &Value, taken: &Taken<'_>) -> Settled {
    let (wanted, had) = (&definition["spec"]["names"], &definition["status"]["acceptedNames"]);
    let mut claims = Claims {
        wanted,
        had,
        names: had.as_object().cloned().unwrap_or_default(),
        conflict: None,
    };
    claims.claim("plural", "PluralConflict", &taken.resources);
    claims.claim("singular", "SingularConflict", &taken.resources);
    claims.claim_short_names(&taken.resources);
    claims.claim("kind", "KindConflict", &taken.kinds);
    claims.claim("listKind", "ListKindConflict", &taken.kinds);
    set(&mut claims.names, "categories", list(wanted, "categories"));
    let accepted = match claims.conflict {
        Some((reason, message)) => Condition::new(NAMES_ACCEPTED, false, reason, message),
        None => Condition::new(NAMES_ACCEPTED, true, "NoConflicts", "no conflicts found"),
    };
    let established = match Condition::of(definition, ESTABLISHED) {
        Some(before) if before.holds || !accepted.holds => before,
        _ if accepted.holds => Condition::new(
            ESTABLISHED,
            true,
            "InitialNamesAccepted",
            "the initial names have been accepted",
        ),
        _ => Condition::new(ESTABLISHED, false, "NotAccepted", "not all names are accepted"),
    };
    Settled {
        names: claims.names.into(),
        accepted,
        established,
    }
}

struct Claims<'d> {
    wanted: &'d Value,
    had: &'d Value,
    names: Map<String, Value>,
    /// Reason and message.
    conflict: Option<(&'static str, String)>,
}

impl Claims<'_> {
    fn claim(&mut self, key: &str, reason: &'static str, used: &HashSet<&str>) {
        let text = |names: &Value| names[key].as_str().unwrap_or_default().to_owned();
        let name = text(self.wanted);
        if name != text(self.had) && used.contains(name.as_str()) {
            self.conflict = Some((reason, in_use(&name)));
        } else {
            self.names.insert(key.to_owned(), name.into());
        }
    }

    fn claim_short_names(&mut self, used: &HashSet<&str>) {
        let (wanted, had) = (list(self.wanted, "shortNames"), list(self.had, "shortNames"));
        let new = wanted
            .iter()
            .filter(|name| !had.contains(name))
            .filter_map(Value::as_str);
        let lost: Vec<String> = new.filter(|name| used.contains(name)).map(in_use).collect();
        match lost.as_slice() {
            [] => set(&mut self.names, "shortNames", wanted),
            [only] => self.conflict = Some(("ShortNamesConflict", only.clone())),
            several => self.conflict = Some(("ShortNamesConflict", format!("[{}]", several.join(", ")))),
        }
    }
}

fn in_use(name: &str) -> String {
    format!("{} is already in use", quote(name))
}

fn list(names: &Value, key: &str) -> Vec<Value> {
    names[key].as_array().cloned().unwrap_or_default()
}

fn set(names: &mut Map<String, Value>, key: &str, list: Vec<Value>) {
    if list.is_empty() {
        names.remove(key);
    } else {
        names.insert(key.to_owned(), list.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(plural: &str, short: &[&str], kind: &str) -> Value {
        json!({ "spec": { "names": {
            "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List"),
            "shortNames": short,
        }}})
    }

    #[test]
    fn the_first_definition_of_a_group_gets_all_it_wants() {
        let settled = settle(&definition("databases", &["db"], "Database"), &Taken::default());
        assert_eq!(
            settled.names,
            json!({
                "plural": "databases", "singular": "database", "kind": "Database", "listKind": "DatabaseList",
                "shortNames": ["db"],
            })
        );
        assert_eq!(settled.accepted.reason, "NoConflicts");
        assert!(settled.established.holds);
    }

    #[test]
    fn a_name_that_is_taken_is_refused_and_the_last_conflict_is_told() {
        let first = settle(&definition("databases", &["db", "dbs"], "Database"), &Taken::default()).names;
        let mut taken = Taken::default();
        taken.add(&first);
        for (second, reason, message) in [
            (
                definition("db", &[], "Other"),
                "PluralConflict",
                "\"db\" is already in use",
            ),
            (
                definition("others", &["dbs"], "Other"),
                "ShortNamesConflict",
                "\"dbs\" is already in use",
            ),
            (
                definition("others", &["db", "dbs"], "Other"),
                "ShortNamesConflict",
                "[\"db\" is already in use, \"dbs\" is already in use]",
            ),
            (
                definition("others", &["db"], "Database"),
                "ListKindConflict",
                "\"DatabaseList\" is already in use",
            ),
        ] {
            let settled = settle(&second, &taken);
            assert_eq!(settled.accepted, Condition::new(NAMES_ACCEPTED, false, reason, message));
            assert_eq!(settled.established.reason, "NotAccepted");
            assert!(!settled.established.holds);
        }
    }

    #[test]
    fn what_is_served_stays_served_under_its_former_names() {
        let first = settle(&definition("databases", &["db"], "Database"), &Taken::default()).names;
        let mut served = definition("others", &["ot"], "Other");
        let settled = settle(&served, &Taken::default());
        served["status"]["acceptedNames"] = settled.names.clone();
        settled.accepted.set(&mut served, jiff::Timestamp::UNIX_EPOCH);
        settled.established.set(&mut served, jiff::Timestamp::UNIX_EPOCH);
        served["spec"]["names"]["shortNames"] = json!(["db"]);
        let mut taken = Taken::default();
        taken.add(&first);
        let own = served["status"]["acceptedNames"].clone();
        taken.add(&own);
        let settled = settle(&served, &taken);
        assert_eq!(settled.names["shortNames"], json!(["ot"]));
        assert_eq!(settled.accepted.reason, "ShortNamesConflict");
        assert!(settled.established.holds);
    }
}
