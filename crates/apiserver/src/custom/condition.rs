//! The conditions in the status of a definition.

use jiff::Timestamp;
use moorline_machinery::time;
use serde_json::{Map, Value, json};

/// Its names are taken by no other definition of the group.
pub(crate) const NAMES_ACCEPTED: &str = "NamesAccepted";
/// Its kind is served.
pub(crate) const ESTABLISHED: &str = "Established";
/// It is on its way out.
pub(crate) const TERMINATING: &str = "Terminating";
/// It lies in a group of the Kubernetes project, and says by what right.
pub(crate) const APPROVED: &str = "KubernetesAPIApprovalPolicyConformant";

/// What is said of one aspect of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) name: &'static str,
    pub(crate) holds: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Condition {
    pub(crate) fn new(name: &'static str, holds: bool, reason: &str, message: impl Into<String>) -> Self {
        Self {
            name,
            holds,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    /// What the definition says of an aspect.
    pub(crate) fn of(definition: &Value, name: &'static str) -> Option<Self> {
        let found = find(definition, name)?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Some(Self {
            name,
            holds: found["status"] == "True",
            reason: text("reason"),
            message: text("message"),
        })
    }

    /// Says it in the status. The time is that of the last change between true and false.
    pub(crate) fn set(&self, definition: &mut Value, now: Timestamp) {
        let status = if self.holds { "True" } else { "False" };
        let now = time::format(now);
        let conditions = &mut definition["status"]["conditions"];
        if !conditions.is_array() {
            *conditions = json!([]);
        }
        let Some(conditions) = conditions.as_array_mut() else {
            return;
        };
        let since = conditions
            .iter()
            .find(|condition| condition["type"] == self.name && condition["status"] == status)
            .and_then(|condition| condition["lastTransitionTime"].as_str())
            .map_or(now, str::to_owned);
        let mut said = Map::new();
        said.insert("type".to_owned(), self.name.into());
        said.insert("status".to_owned(), status.into());
        said.insert("lastTransitionTime".to_owned(), since.into());
        for (key, text) in [("reason", &self.reason), ("message", &self.message)] {
            if !text.is_empty() {
                said.insert(key.to_owned(), text.clone().into());
            }
        }
        match conditions.iter_mut().find(|condition| condition["type"] == self.name) {
            Some(condition) => *condition = said.into(),
            None => conditions.push(said.into()),
        }
    }
}

/// Whether the definition says so.
pub(crate) fn holds(definition: &Value, name: &str) -> bool {
    find(definition, name).is_some_and(|condition| condition["status"] == "True")
}

fn find<'d>(definition: &'d Value, name: &str) -> Option<&'d Value> {
    let conditions = definition["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_condition_moves_only_when_it_turns() {
        let mut definition = json!({});
        let at = |second| Timestamp::from_second(second).unwrap();
        Condition::new(ESTABLISHED, false, "Installing", "soon").set(&mut definition, at(0));
        Condition::new(ESTABLISHED, false, "NotAccepted", "").set(&mut definition, at(5));
        assert_eq!(
            definition["status"]["conditions"],
            json!([{
                "type": "Established", "status": "False", "reason": "NotAccepted",
                "lastTransitionTime": "1970-01-01T00:00:00Z",
            }])
        );
        Condition::new(ESTABLISHED, true, "InitialNamesAccepted", "").set(&mut definition, at(9));
        assert_eq!(
            definition["status"]["conditions"][0]["lastTransitionTime"],
            "1970-01-01T00:00:09Z"
        );
        assert!(holds(&definition, ESTABLISHED));
        assert!(!holds(&definition, TERMINATING));
    }
}
