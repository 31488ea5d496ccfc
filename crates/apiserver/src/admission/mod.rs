//! Admission: what is added to a write, and who may object to it, after it was understood and permitted.
//!
//! ```text
//!   decoded ──► mutate: built in, then webhooks ──► validated by schema and kind ──► validate: webhooks
//!                                   │                                                      │
//!                     roster ─► matching ─► review ─► webhook            (the same, all webhooks at once)
//! ```
//!
//! Guarantees: a webhook configuration is in force for every write that begins after it was acknowledged. Mutating
//! webhooks are asked one after the other, in the order of their configurations' names and of their place there;
//! validating ones all at once. What a webhook made of an object is read again as the object's type wants it.
//!
//! Assumes: the caller fills in defaults and validates after `mutate`.

mod criteria;
mod matching;
mod namespaces;
pub(crate) mod plugins;
mod policies;
mod review;
mod roster;
mod rule;
mod subject;
#[cfg(test)]
mod tests;
mod webhooks;

use std::sync::{Arc, OnceLock};

use moorline_machinery::status::ApiError;
use serde_json::Value;

use crate::{
    custom::webhook_client::WebhookClient,
    quota::{self, Claim},
    rest::Call,
};
use policies::Policies;
use webhooks::Webhooks;

/// What a write does, as webhooks are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    /// A pod is put on a node, which only a binding may do.
    Bind,
    /// Nothing is written: somebody connects to what runs.
    Connect,
}

/// A write on its way.
pub(crate) struct Attributes<'a> {
    pub(crate) call: &'a Call<'a>,
    pub(crate) operation: Operation,
    pub(crate) name: String,
    /// The object as it is stored now.
    pub(crate) old: Option<&'a Value>,
    pub(crate) dry_run: bool,
    /// The options of the write, as an object of the API.
    pub(crate) options: Value,
}

impl Attributes<'_> {
    /// Refuses the write.
    pub(crate) fn refuse(&self, why: impl std::fmt::Display) -> ApiError {
        ApiError::forbidden(&self.call.resource.group_resource(), &self.name, why)
    }
}

/// Everything that has a say in writes.
#[derive(Default)]
pub(crate) struct Admission {
    /// Absent while the server prepares itself: a webhook that cannot answer before the server does must not keep it
    /// from starting.
    webhooks: OnceLock<Webhooks>,
    policies: Policies,
}

impl Admission {
    /// Has webhooks asked about every write from now on.
    pub(crate) fn ask_webhooks(&self, client: Arc<WebhookClient>) {
        self.webhooks.get_or_init(|| Webhooks::new(client));
    }

    /// Lets everything that adds to writes add to this one. The object is null for a delete.
    pub(crate) async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        namespaces::check(attributes)?;
        plugins::mutate(attributes, object).await?;
        let Some(webhooks) = self.webhooks.get() else {
            return Ok(());
        };
        self.policies.mutate(attributes, object).await?;
        webhooks.mutate(attributes, object, warnings).await
    }

    /// Lets policies and webhooks that may object to connections object to this one.
    pub(crate) async fn permit_connection(&self, attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
        let Some(webhooks) = self.webhooks.get() else {
            return Ok(());
        };
        let mut warnings = Vec::new();
        self.policies.validate(attributes, object, &mut warnings).await?;
        webhooks.validate(attributes, object, &mut warnings).await
    }

    /// Lets everything that may object to writes object to this one. The object is null for a delete. What the write
    /// holds of quotas is kept for it until what is returned is dropped, which is to be after it was stored.
    pub(crate) async fn validate<'c>(
        &self,
        attributes: &Attributes<'c>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Claim<'c>>, ApiError> {
        plugins::validate(attributes, object, warnings)?;
        if let Some(webhooks) = self.webhooks.get() {
            self.policies.validate(attributes, object, warnings).await?;
            webhooks.validate(attributes, object, warnings).await?;
        }
        quota::admit(attributes, object)
    }
}
