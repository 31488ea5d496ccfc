//! Custom kinds: from a `CustomResourceDefinition` to a kind that is served like any other.
//!
//! ```text
//!   CRD written ─► definition (default, validate) ─► store
//!                                                     │ watch
//!        registry ◄── kinds ◄── controller ◄──────────┘
//!           │                    └─► status: NamesAccepted, Established, Terminating; objects removed with the CRD
//!           ▼
//!   CustomKind (a strategy, one per version) ─ Family (all versions) ─ Conversion ─► webhook
//! ```
//!
//! Guarantees: a kind that its definition calls established is served; one whose definition is gone is not, and has no
//! objects left. An object is served as the schema of now wants it, whatever it looked like when it was written.
//!
//! Assumes: one server works on the store. A write that began before its definition changed and is stored after it may
//! be served unpruned until it is written again.

mod condition;
pub(crate) mod controller;
mod conversion;
pub(crate) mod definition;
mod family;
mod kind;
mod kinds;
pub(crate) mod webhook_client;

pub(crate) use kind::{CustomKind, PrinterColumn, matches_fields, served, served_now, to_stored};
pub(crate) use kinds::crd_of;

use serde_json::Value;

/// What Go calls the type of a JSON value, as messages of Kubernetes do.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
