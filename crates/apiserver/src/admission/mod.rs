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

mod matching;
mod namespaces;
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

use crate::{custom::webhook_client::WebhookClient, rest::Call};
use webhooks::Webhooks;

/// What a write does, as webhooks are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    /// A pod is put on a node, which only a binding may do.
    Bind,
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

/// Everything that has a say in writes.
#[derive(Default)]
pub(crate) struct Admission {
    /// Absent while the server prepares itself: a webhook that cannot answer before the server does must not keep it
    /// from starting.
    webhooks: OnceLock<Webhooks>,
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
        match self.webhooks.get() {
            Some(webhooks) => webhooks.mutate(attributes, object, warnings).await,
            None => Ok(()),
        }
    }

    /// Lets everything that may object to writes object to this one. The object is null for a delete.
    pub(crate) async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        match self.webhooks.get() {
            Some(webhooks) => webhooks.validate(attributes, object, warnings).await,
            None => Ok(()),
        }
    }
}
