//! The named schemas that others refer to, compiled when first met. Built-in kinds share some seven hundred, of which
//! a server touches a few dozen; some of them refer to themselves.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::compile::{self, SchemaError};
use super::node::{Additional, Node, Type};

/// A shared table of named schemas. Cloning shares it.
#[derive(Clone, Default)]
pub struct Definitions(Arc<Table>);

#[derive(Default)]
struct Table {
    compiled: HashMap<Box<str>, OnceLock<Node>>,
    source: Option<Source>,
}

type Source = Box<dyn Fn(&str) -> Option<Value> + Send + Sync>;

impl Definitions {
    /// A table of the schemas `names`, each of which `source` hands out as JSON when it is first needed.
    pub fn new<N: Into<String>>(
        names: impl IntoIterator<Item = N>,
        source: impl Fn(&str) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let compiled = names
            .into_iter()
            .map(|name| (name.into().into_boxed_str(), OnceLock::new()))
            .collect::<HashMap<_, _>>();
        Self(Arc::new(Table {
            compiled,
            source: Some(Box::new(source)),
        }))
    }

    /// A table of schemas that are at hand: the `definitions` or `components.schemas` of an `OpenAPI` document.
    pub fn from_map(schemas: Map<String, Value>) -> Self {
        let names: Vec<_> = schemas.keys().cloned().collect();
        Self::new(names, move |name| schemas.get(name).cloned())
    }

    /// Compiles every definition, so that a fault shows now and not when an object first meets it.
    pub fn check(&self) -> Result<(), SchemaError> {
        for name in self.0.compiled.keys() {
            compile::node(&self.json(name).unwrap_or_default(), compile::Role::Part)?;
        }
        Ok(())
    }

    /// A definition; one that cannot be read keeps whatever stands in its place.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        let slot = self.0.compiled.get(name)?;
        Some(slot.get_or_init(|| {
            let node = self
                .json(name)
                .and_then(|json| compile::node(&json, compile::Role::Part).ok());
            let mut node = node.unwrap_or_default();
            node.preserve_unknown |= is_free_form(&node);
            node
        }))
    }

    fn json(&self, name: &str) -> Option<Value> {
        self.0.source.as_ref().and_then(|source| source(name))
    }
}

/// A named object without fields stands for any object: raw extensions, field sets, arbitrary JSON.
fn is_free_form(node: &Node) -> bool {
    matches!(node.kind, None | Some(Type::Object))
        && node.reference.is_none()
        && node.properties.is_empty()
        && matches!(node.additional, Additional::Unspecified)
        && !node.int_or_string
        && node.checks.is_none()
}

impl fmt::Debug for Definitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Definitions({} names)", self.0.compiled.len())
    }
}
