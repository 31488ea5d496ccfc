//! The schemas of built-in kinds, made when first needed.
//!
//! ```text
//!   facts (a table of ours) ──────► definitions ──► Schema: prune, unknown fields, apply, strategic patches
//!            │
//!            └─────────────┐
//!   k8s-openapi ──► texts ─┴──────► OpenAPI documents, `kubectl explain`
//! ```
//!
//! A compiled schema accepts what Go's decoder accepts: it requires nothing, takes a null for a field that is left out,
//! and checks no more than the JSON type of a value. What an object must have is for the kind's strategy to say.

mod definitions;
mod published;
#[cfg(test)]
mod tests;
mod texts;

use std::sync::OnceLock;

use moorline_machinery::{
    facts::Facts,
    gvk::GroupVersionKind,
    schema::{Definitions, Schema},
};

pub(crate) use published::{Collector, Dialect, group_version_kinds};
pub(crate) use texts::definition_name;

/// The facts about built-in kinds, read once in the life of the process.
pub(crate) fn facts() -> &'static Facts {
    static FACTS: OnceLock<Facts> = OnceLock::new();
    FACTS.get_or_init(|| {
        Facts::parse(include_str!("../../../facts/builtin.txt")).expect("the facts are tested with the program")
    })
}

/// The schema of a built-in kind. One that nothing is known of keeps whatever it is given.
pub(crate) fn schema(gvk: &GroupVersionKind) -> Schema {
    static DEFINITIONS: OnceLock<Definitions> = OnceLock::new();
    let definitions = DEFINITIONS.get_or_init(|| definitions::all(facts()));
    facts()
        .kind(&gvk.api_version(), &gvk.kind)
        .and_then(|kind| Schema::definition(&facts().definition_name(kind), definitions))
        .unwrap_or_else(Schema::anything)
}
