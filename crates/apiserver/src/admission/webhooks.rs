//! Asking webhooks: the mutating ones in turn, the validating ones at once.

use std::{collections::HashSet, sync::Arc};

use futures_util::future::join_all;
use moorline_machinery::{field::quote, patch::json_patch, status::ApiError};
use serde_json::Value;

use super::{
    Attributes,
    matching::{self, Invocation},
    review::{self, Decision, Role},
    roster::{OnFailure, Reinvocation, Roster, Webhook},
    subject::Subject,
};
use crate::custom::webhook_client::WebhookClient;

/// Everybody who has asked to be asked.
pub(super) struct Webhooks {
    client: Arc<WebhookClient>,
    mutating: Roster,
    validating: Roster,
}

/// Why a webhook's word is missing, or final.
enum Failure {
    /// It gave no answer of use: its failure policy decides.
    Call(String),
    /// The write ends here.
    Refusal(ApiError),
}

impl Webhooks {
    pub(super) fn new(client: Arc<WebhookClient>) -> Self {
        Self {
            client,
            mutating: Roster::new("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
            validating: Roster::new("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        }
    }

    /// Has the mutating webhooks change an object, each seeing what those before it made of it. One that wants to see
    /// what those after it made of it is asked once more.
    pub(super) async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let roster = self.mutating.now(&attributes.call.core.store)?;
        if roster.webhooks.is_empty() {
            return Ok(());
        }
        let Some(subject) = Subject::of(attributes) else {
            return Ok(());
        };
        let mut shown = subject.show(object).into_owned();
        let mut rounds = Rounds::default();
        for round in [Round::First, Round::Again] {
            for (index, webhook) in roster.webhooks.iter().enumerate() {
                if round == Round::Again && !rounds.wanted_again.contains(&index) {
                    continue;
                }
                let Some(invocation) = matching::invocation(webhook, &subject, &shown).await? else {
                    continue;
                };
                let changed = self.change(webhook, &subject, invocation, warnings).await;
                match changed.or_else(|failure| failed(webhook, failure).map(|()| None))? {
                    Some(new) if new != shown => {
                        shown = new;
                        rounds.changed();
                    }
                    _ => {}
                }
                if webhook.reinvocation == Reinvocation::IfNeeded {
                    rounds.asked.insert(index);
                }
            }
        }
        if object.is_null() {
            return Ok(());
        }
        subject.adopt(shown, object)
    }

    /// Has the validating webhooks judge an object. All are heard; the first in order that objects prevails.
    pub(super) async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let roster = self.validating.now(&attributes.call.core.store)?;
        if roster.webhooks.is_empty() {
            return Ok(());
        }
        let Some(subject) = Subject::of(attributes) else {
            return Ok(());
        };
        let shown = subject.show(object);
        let mut concerned = Vec::new();
        for webhook in &roster.webhooks {
            if let Some(invocation) = matching::invocation(webhook, &subject, &shown).await? {
                concerned.push((webhook, invocation));
            }
        }
        let asked = concerned.iter().map(|(webhook, invocation)| async {
            let mut said = Vec::new();
            let decision = self
                .ask(webhook, &subject, invocation, Role::Validating, &mut said)
                .await;
            let result = match decision {
                Ok(Decision::Denied(error)) => Err(error),
                Ok(Decision::Allowed | Decision::Patched(_)) => Ok(()),
                Err(failure) => failed(webhook, failure),
            };
            (result, said)
        });
        let mut results = Vec::new();
        for (result, said) in join_all(asked).await {
            warn(warnings, said);
            results.push(result);
        }
        results.into_iter().collect()
    }

    /// What a mutating webhook makes of an object, in the version of the request; nothing when it leaves it alone.
    async fn change(
        &self,
        webhook: &Webhook,
        subject: &Subject<'_>,
        invocation: Invocation<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Value>, Failure> {
        let patch = match self
            .ask(webhook, subject, &invocation, Role::Mutating, warnings)
            .await?
        {
            Decision::Allowed => return Ok(None),
            Decision::Denied(error) => return Err(Failure::Refusal(error)),
            Decision::Patched(patch) => patch,
        };
        let internal = |error: &dyn std::fmt::Display| Failure::Refusal(ApiError::internal(error));
        let patch: Value = serde_json::from_slice(&patch).map_err(|error| internal(&error))?;
        if patch.as_array().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let mut object = invocation.object.into_owned();
        if object.is_null() {
            return Err(internal(&format_args!(
                "admission webhook {} attempted to modify the object, which is not supported for this operation",
                quote(&webhook.name)
            )));
        }
        json_patch(&mut object, &patch).map_err(|error| internal(&error))?;
        let (told, requested) = (&invocation.resource, subject.resource());
        subject.conform(told, &mut object).map_err(Failure::Refusal)?;
        if told.gvr == requested.gvr {
            return Ok(Some(object));
        }
        let object = subject.convert(object, told, requested).await;
        let mut object = object.map_err(Failure::Refusal)?;
        subject.conform(requested, &mut object).map_err(Failure::Refusal)?;
        Ok(Some(object))
    }

    async fn ask(
        &self,
        webhook: &Webhook,
        subject: &Subject<'_>,
        invocation: &Invocation<'_>,
        role: Role,
        warnings: &mut Vec<String>,
    ) -> Result<Decision, Failure> {
        if subject.attributes.dry_run {
            webhook.permit_dry_run().map_err(Failure::Refusal)?;
        }
        let Some(version) = webhook.review else {
            let problem = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            return Err(Failure::Call(format!("could not create admission objects: {problem}")));
        };
        let hook = webhook.hook.as_ref();
        let hook = hook.map_err(|error| Failure::Call(format!("could not get REST client: {error}")))?;
        let review = review::review(version, invocation);
        let query = format!("timeout={}s", webhook.patience.as_secs());
        let answer = self.client.post(hook, Some(&query), &review, webhook.patience).await;
        let answer = answer.map_err(|error| Failure::Call(format!("failed to call webhook: {error}")))?;
        let verdict = review::verdict(&answer, version, &invocation.uid, role, &webhook.name)
            .map_err(|error| Failure::Call(format!("received invalid webhook response: {error}")))?;
        warn(warnings, verdict.warnings);
        Ok(verdict.decision)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    First,
    Again,
}

/// Who is asked a second time. Webhooks are known by their place in the roster.
#[derive(Default)]
struct Rounds {
    /// Asked since the object last changed, and willing to be asked again.
    asked: HashSet<usize>,
    wanted_again: HashSet<usize>,
}

impl Rounds {
    fn changed(&mut self) {
        self.wanted_again.extend(self.asked.drain());
    }
}

/// Whether a write goes on without a webhook's word.
fn failed(webhook: &Webhook, failure: Failure) -> Result<(), ApiError> {
    let reason = match failure {
        Failure::Refusal(error) => return Err(error),
        Failure::Call(reason) => reason,
    };
    match webhook.on_failure {
        OnFailure::Ignore => {
            tracing::warn!(webhook = webhook.name, reason, "a webhook failed and was passed over");
            Ok(())
        }
        OnFailure::Refuse => Err(ApiError::internal(format_args!(
            "failed calling webhook {}: {reason}",
            quote(&webhook.name)
        ))),
    }
}

/// Says everything once.
fn warn(warnings: &mut Vec<String>, said: Vec<String>) {
    for warning in said {
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
}
