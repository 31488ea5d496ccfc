//! The webhooks that are configured, read anew whenever their configurations have changed.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use moorline_machinery::{
    cel::{CelError, Program},
    field::quote,
    status::ApiError,
};
use moorline_store::{List, Resource, Revision, Scope, Store};
use serde_json::Value;

use super::criteria::Criteria;
use crate::{
    builtin,
    custom::webhook_client::{Hook, WebhookError},
    wire,
};

/// The variables that match conditions speak of.
pub(super) const VARIABLES: [&str; 3] = ["object", "oldObject", "request"];
/// How long a webhook may take that does not say.
const PATIENCE: u64 = 10;

/// All webhooks of one of the two sorts.
pub(super) struct Roster {
    scope: List,
    kind: &'static str,
    current: ArcSwap<Compiled>,
}

/// The webhooks of a moment, in the order in which they are asked.
#[derive(Default)]
pub(super) struct Compiled {
    /// When each configuration was written. No revision is used twice, so equal ones mean equal configurations.
    revisions: Vec<Revision>,
    pub(super) webhooks: Vec<Webhook>,
}

impl Roster {
    /// The roster of `mutatingwebhookconfigurations` or `validatingwebhookconfigurations`.
    pub(super) fn new(plural: &str, kind: &'static str) -> Self {
        let storage: Resource = builtin::storage("admissionregistration.k8s.io", plural);
        Self {
            scope: List::all(Scope::Resource(storage)),
            kind,
            current: ArcSwap::default(),
        }
    }

    /// The webhooks that are configured now. The store is asked every time, so what was acknowledged is never missed.
    pub(super) fn now(&self, store: &Store) -> Result<Arc<Compiled>, ApiError> {
        let page = store.list(&self.scope).map_err(ApiError::internal)?;
        let current = self.current.load_full();
        let written = page.records.iter().map(|record| record.mod_revision());
        if written.clone().eq(current.revisions.iter().copied()) {
            return Ok(current);
        }
        let mut compiled = Compiled {
            revisions: written.collect(),
            webhooks: Vec::new(),
        };
        for record in &page.records {
            let configuration = wire::from_stored(record.value(), "admissionregistration.k8s.io/v1", self.kind);
            let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
            compiled.webhooks.extend(webhooks.map(Webhook::read));
        }
        let compiled = Arc::new(compiled);
        self.current.store(Arc::clone(&compiled));
        Ok(compiled)
    }
}

/// A webhook, ready to be held against requests.
pub(super) struct Webhook {
    pub(super) name: String,
    pub(super) hook: Result<Hook, WebhookError>,
    /// Nothing if it understands no review that is known here.
    pub(super) review: Option<ReviewVersion>,
    pub(super) criteria: Criteria,
    pub(super) conditions: Vec<Condition>,
    pub(super) on_failure: OnFailure,
    pub(super) reinvocation: Reinvocation,
    pub(super) patience: Duration,
    side_effects: SideEffects,
}

/// Versions of reviews that are known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewVersion {
    V1,
    V1Beta1,
}

/// What becomes of a request that a webhook was not able to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    Refuse,
    Ignore,
}

/// Whether a webhook wants to see what later ones made of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reinvocation {
    Never,
    IfNeeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SideEffects {
    NoneInDryRun,
    Possible,
}

/// A condition under which a webhook is asked.
pub(super) struct Condition {
    pub(super) expression: String,
    pub(super) program: Result<Program, CelError>,
}

impl Webhook {
    /// Reads a valid webhook of a configuration.
    pub(super) fn read(webhook: &Value) -> Self {
        let text = |name: &str| webhook[name].as_str().unwrap_or_default();
        let list = |name: &str| webhook[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let review = |version: &Value| match version.as_str() {
            Some("v1") => Some(ReviewVersion::V1),
            Some("v1beta1") => Some(ReviewVersion::V1Beta1),
            _ => None,
        };
        let patience = webhook["timeoutSeconds"].as_u64().unwrap_or(PATIENCE);
        Self {
            name: text("name").to_owned(),
            hook: Hook::read(&webhook["clientConfig"]),
            review: list("admissionReviewVersions").iter().find_map(review),
            criteria: Criteria::read(webhook, "rules"),
            conditions: list("matchConditions")
                .iter()
                .map(|condition| Condition::read(condition, &VARIABLES))
                .collect(),
            on_failure: match text("failurePolicy") {
                "Ignore" => OnFailure::Ignore,
                _ => OnFailure::Refuse,
            },
            reinvocation: match text("reinvocationPolicy") {
                "IfNeeded" => Reinvocation::IfNeeded,
                _ => Reinvocation::Never,
            },
            patience: Duration::from_secs(patience),
            side_effects: match text("sideEffects") {
                "None" | "NoneOnDryRun" => SideEffects::NoneInDryRun,
                _ => SideEffects::Possible,
            },
        }
    }

    /// A request that shall leave no trace goes to no webhook that may leave one.
    pub(super) fn permit_dry_run(&self) -> Result<(), ApiError> {
        match self.side_effects {
            SideEffects::NoneInDryRun => Ok(()),
            SideEffects::Possible => Err(ApiError::bad_request(format!(
                "admission webhook {} does not support dry run",
                quote(&self.name)
            ))),
        }
    }
}

impl Condition {
    /// Reads a condition that may speak of `variables`.
    pub(super) fn read(condition: &Value, variables: &[&str]) -> Self {
        let expression = condition["expression"].as_str().unwrap_or_default().to_owned();
        Self {
            program: Program::compile(&expression, variables),
            expression,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::criteria::MatchPolicy, *};

    #[test]
    fn a_webhook_that_says_little_is_read_as_kubernetes_defaults_it() {
        let webhook = Webhook::read(&json!({ "name": "a.b.c", "admissionReviewVersions": ["v2", "v1beta1", "v1"] }));
        assert_eq!(webhook.on_failure, OnFailure::Refuse);
        assert_eq!(webhook.criteria.policy, MatchPolicy::Equivalent);
        assert_eq!(webhook.reinvocation, Reinvocation::Never);
        assert_eq!(webhook.patience, Duration::from_secs(10));
        assert_eq!(webhook.review, Some(ReviewVersion::V1Beta1));
        assert!(webhook.criteria.namespaces.unwrap().is_everything());
    }

    #[test]
    fn a_dry_run_is_kept_from_webhooks_that_may_leave_traces() {
        for (effects, permitted) in [
            ("None", true),
            ("NoneOnDryRun", true),
            ("Some", false),
            ("Unknown", false),
        ] {
            let webhook = Webhook::read(&json!({ "name": "a.b.c", "sideEffects": effects }));
            assert_eq!(webhook.permit_dry_run().is_ok(), permitted, "{effects}");
        }
        let refusal = Webhook::read(&json!({ "name": "a.b.c" })).permit_dry_run().unwrap_err();
        assert_eq!(refusal.code(), 400);
        assert_eq!(
            refusal.to_string(),
            "admission webhook \"a.b.c\" does not support dry run"
        );
    }
}
