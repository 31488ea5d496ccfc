//! The conditions that the runtime writes: what every object can say of itself, whoever acts for it.

use jiff::Timestamp;
use moorline_plan::{Class, End, LookAgain, Outcome, Outcomes};
use serde_json::{Value, json};

use crate::{
    execute::Effect,
    object::{Object, Target},
};

/// What is known when a reconcile ends, besides the outcomes of its steps.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// What is relied on and is not there; `None` when nothing is relied on.
    pub(crate) unmet: Option<Vec<String>>,
    /// Trouble of the making of the plan: class and words.
    pub(crate) trouble: Vec<(Class, String)>,
    /// Why it is looked at again without a change.
    pub(crate) look_again: Option<String>,
    /// Owned objects that are not as they shall be yet.
    pub(crate) unready: Vec<String>,
    /// The object is on its way out.
    pub(crate) finalizing: bool,
}

impl Account {
    pub(crate) fn note_end(&mut self, end: &End, look_again: Option<&LookAgain>) {
        if let End::Failed(failed) = end {
            self.trouble.extend(
                failed
                    .iter()
                    .map(|failed| (failed.failure.class, failed.failure.message.clone())),
            );
        }
        self.look_again = look_again.map(|look| look.reason.clone());
    }
}

/// What an owned object says of itself that keeps its owner from being ready.
pub(crate) fn unready(child: &Object) -> Option<String> {
    let target = child.target();
    if child.is_deleting() {
        return Some(format!("{target} is being deleted"));
    }
    let value = child.value();
    let status = &value["status"];
    let observed = status["observedGeneration"].as_i64();
    // Kubernetes' own workloads tell when they were last looked at; of one that does not, nothing is known yet.
    let unseen = observed.is_none() && child.kind().group() == "apps" && child.generation() > 0;
    if unseen || observed.is_some_and(|observed| observed < child.generation()) {
        return Some(format!("{target} has not been looked at since it was changed"));
    }
    let conditions = status["conditions"].as_array()?;
    let telling = conditions
        .iter()
        .find(|condition| matches!(condition["type"].as_str(), Some("Ready" | "Available")))
        .filter(|condition| condition["status"] != "True")?;
    let message = telling["message"]
        .as_str()
        .filter(|message| !message.is_empty())
        .or(telling["reason"].as_str());
    Some(match message {
        Some(message) => format!("{target} is not ready: {message}"),
        None => format!("{target} is not ready"),
    })
}

/// Writes the conditions into a status. Those that the actor wrote itself for this generation are left alone.
pub(crate) fn write(
    status: &mut Value,
    before: &Value,
    generation: i64,
    now: Timestamp,
    account: &Account,
    outcomes: &Outcomes<Target, Effect>,
) {
    if !status.is_object() {
        *status = json!({});
    }
    let mut trouble = account.trouble.clone();
    let mut changed = 0_usize;
    for (_, outcome) in outcomes.iter() {
        match outcome {
            Outcome::Failed(failure) => trouble.push((failure.class, failure.message.clone())),
            Outcome::Done(Effect::None) | Outcome::Blocked { .. } | Outcome::Cancelled => {}
            Outcome::Done(_) => changed += 1,
        }
    }
    let words = |class: Class| {
        let told: Vec<&str> = trouble
            .iter()
            .filter(|(of, _)| *of == class)
            .map(|(_, words)| words.as_str())
            .collect();
        (!told.is_empty()).then(|| told.join("; "))
    };
    let (failing, stuck, mut waiting) = (words(Class::Retry), words(Class::Terminal), words(Class::Waiting));
    if waiting.is_none() {
        waiting.clone_from(&account.look_again);
    }
    let unready = (!account.unready.is_empty()).then(|| account.unready.join("; "));

    let stalled = match &stuck {
        Some(words) => ("True", "Terminal", words.clone()),
        None => ("False", "NotStalled", String::new()),
    };
    let progressing = if account.finalizing {
        let words = failing.clone().or_else(|| stuck.clone()).or_else(|| waiting.clone());
        ("True", "Finalizing", words.unwrap_or_default())
    } else if let Some(words) = &failing {
        ("True", "Retrying", words.clone())
    } else if stuck.is_some() {
        ("False", "Stalled", String::new())
    } else if let Some(words) = &waiting {
        ("True", "Waiting", words.clone())
    } else if changed > 0 {
        ("True", "Applying", format!("{changed} changes were made"))
    } else if let Some(words) = &unready {
        ("True", "Waiting", words.clone())
    } else {
        ("False", "Settled", String::new())
    };
    let ready = if account.finalizing {
        ("False", "Finalizing", String::new())
    } else if let Some(words) = failing.or(stuck) {
        ("False", "Error", words)
    } else if let Some(words) = waiting.or(unready) {
        ("False", "Waiting", words)
    } else if changed > 0 {
        ("False", "Applying", String::new())
    } else {
        ("True", "Settled", String::new())
    };
    let dependencies = account.unmet.as_ref().map(|unmet| {
        if unmet.is_empty() {
            ("True", "Met", String::new())
        } else {
            ("False", "Unmet", unmet.join("; "))
        }
    });
    let all = [
        ("Ready", Some(ready)),
        ("Progressing", Some(progressing)),
        ("Stalled", Some(stalled)),
        ("DependenciesReady", dependencies),
    ];
    for (name, condition) in all {
        let Some((is, reason, message)) = condition else {
            continue;
        };
        put(status, before, name, generation, now, (is, reason, &message));
    }
    status["observedGeneration"] = generation.into();
}

fn put(status: &mut Value, before: &Value, name: &str, generation: i64, now: Timestamp, said: (&str, &str, &str)) {
    let (is, reason, message) = said;
    let before = before["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == name);
    let since = before
        .filter(|before| before["status"] == is)
        .and_then(|before| before["lastTransitionTime"].as_str())
        .map_or_else(|| format!("{now:.0}"), str::to_owned);
    let message: String = message.chars().take(32_768).collect();
    let condition = json!({
        "type": name, "status": is, "reason": reason, "message": message,
        "observedGeneration": generation, "lastTransitionTime": since,
    });
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let conditions = status["conditions"]
        .as_array_mut()
        .expect("it was made an array just now");
    match conditions.iter_mut().find(|condition| condition["type"] == name) {
        // The actor's own words, as long as they are not merely what was there before.
        Some(own) if Some(&*own) != before && own["observedGeneration"] == generation => {}
        Some(other) => *other = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use moorline_plan::{PlanBuilder, Step};

    use super::*;
    use crate::kind::Kind;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn none() -> Outcomes<Target, Effect> {
        serde_json::from_value(json!([])).unwrap()
    }

    fn condition<'s>(status: &'s Value, name: &str) -> &'s Value {
        let conditions = status["conditions"].as_array().unwrap();
        conditions.iter().find(|condition| condition["type"] == name).unwrap()
    }

    fn written(before: &Value, now: Timestamp, account: &Account) -> Value {
        let mut status = before.clone();
        write(&mut status, before, 3, now, account, &none());
        status
    }

    #[test]
    fn nothing_to_do_is_ready_and_writing_it_again_changes_nothing() {
        let status = written(&Value::Null, NOW, &Account::default());
        assert_eq!(condition(&status, "Ready")["status"], "True");
        assert_eq!(condition(&status, "Progressing")["status"], "False");
        assert_eq!(condition(&status, "Stalled")["status"], "False");
        assert_eq!(condition(&status, "Ready")["observedGeneration"], 3);
        assert_eq!(status["observedGeneration"], 3);
        let later = NOW + jiff::SignedDuration::from_hours(1);
        assert_eq!(written(&status, later, &Account::default()), status);
    }

    #[test]
    fn the_time_of_a_condition_moves_only_when_its_status_does() {
        let ready = written(&Value::Null, NOW, &Account::default());
        let later = NOW + jiff::SignedDuration::from_hours(1);
        let waiting = Account {
            look_again: Some("a while".to_owned()),
            ..Account::default()
        };
        let status = written(&ready, later, &waiting);
        assert_eq!(
            condition(&status, "Ready")["lastTransitionTime"],
            "1970-01-01T01:00:00Z"
        );
        assert_eq!(condition(&status, "Ready")["reason"], "Waiting");
        assert_eq!(
            condition(&status, "Stalled")["lastTransitionTime"],
            "1970-01-01T00:00:00Z"
        );
    }

    #[test]
    fn what_the_actor_says_itself_is_left_alone() {
        let own = json!({ "type": "Ready", "status": "False", "reason": "Elsewhere", "observedGeneration": 3 });
        let mut status = json!({ "conditions": [own] });
        write(&mut status, &Value::Null, 3, NOW, &Account::default(), &none());
        assert_eq!(condition(&status, "Ready")["reason"], "Elsewhere");
        assert_eq!(condition(&status, "Progressing")["reason"], "Settled");
    }

    #[test]
    fn a19_a_child_that_has_not_been_looked_at_since_it_was_changed_keeps_its_owner_from_being_ready() {
        let child = |generation: i64, observed: i64, available: &str| {
            let value = json!({
                "metadata": { "name": "web", "namespace": "n", "generation": generation },
                "status": { "observedGeneration": observed, "conditions": [
                    { "type": "Available", "status": available, "message": "one is missing" },
                ] },
            });
            Object::from_value(&Kind::of::<Deployment>(), &value).unwrap()
        };
        assert_eq!(unready(&child(2, 2, "True")), None);
        let lagging = "Deployment n/web has not been looked at since it was changed";
        assert_eq!(unready(&child(2, 1, "True")).unwrap(), lagging);
        assert_eq!(
            unready(&child(2, 2, "False")).unwrap(),
            "Deployment n/web is not ready: one is missing"
        );
        let account = Account {
            unready: vec![lagging.to_owned()],
            ..Account::default()
        };
        let status = written(&Value::Null, NOW, &account);
        assert_eq!(condition(&status, "Ready")["status"], "False");
        assert_eq!(condition(&status, "Progressing")["message"], lagging);
    }

    #[test]
    fn failures_of_steps_show_by_their_class() {
        let object = Object::from_value(&Kind::of::<Deployment>(), &json!({ "metadata": { "name": "web" } })).unwrap();
        let plan = PlanBuilder::new(|object: &Object| Ok(Step::status(object.clone(), object.clone(), "x")));
        let key = plan.build(&object).unwrap().plan.root_key().clone();
        assert_eq!(key.target, object.target());
        for (class, ready, progressing, stalled) in [
            ("retry", ("False", "Error"), ("True", "Retrying"), "False"),
            ("terminal", ("False", "Error"), ("False", "Stalled"), "True"),
            ("waiting", ("False", "Waiting"), ("True", "Waiting"), "False"),
        ] {
            let outcomes: Outcomes<Target, Effect> = serde_json::from_value(json!([
                [key, { "failed": { "class": class, "message": "words" } }],
            ]))
            .unwrap();
            let mut status = Value::Null;
            write(&mut status, &Value::Null, 1, NOW, &Account::default(), &outcomes);
            let is = |name| {
                (
                    condition(&status, name)["status"].as_str(),
                    condition(&status, name)["reason"].as_str(),
                )
            };
            assert_eq!(is("Ready"), (Some(ready.0), Some(ready.1)), "{class}");
            assert_eq!(is("Progressing"), (Some(progressing.0), Some(progressing.1)), "{class}");
            assert_eq!(condition(&status, "Stalled")["status"], stalled, "{class}");
        }
    }
}
