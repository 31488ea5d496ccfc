//! A compiled schema: a tree of nodes, and a cursor that follows references while walking it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::definitions::Definitions;
use super::pattern::Pattern;
use crate::cel::Rule;

/// One schema object.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one keyword of a schema")]
pub(crate) struct Node {
    /// The definition that says the rest; what stands beside a reference (default, nullable) is kept here.
    pub(crate) reference: Option<Box<str>>,
    pub(crate) kind: Option<Type>,
    pub(crate) nullable: bool,
    pub(crate) preserve_unknown: bool,
    pub(crate) embedded_resource: bool,
    pub(crate) int_or_string: bool,
    pub(crate) properties: BTreeMap<Box<str>, Node>,
    pub(crate) additional: Additional,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) required: Vec<Box<str>>,
    pub(crate) default: Option<Value>,
    pub(crate) list: Option<Box<ListFacts>>,
    pub(crate) map_type: Option<MapType>,
    pub(crate) patch: Option<Box<PatchFacts>>,
    pub(crate) checks: Option<Box<Checks>>,
    pub(crate) rules: Vec<Rule>,
    /// Whether a CEL rule stands here or below; walks that look for rules skip the rest.
    pub(crate) has_rules: bool,
}

/// The JSON type that a schema asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub(crate) const ALL: [Type; 6] = [
        Self::Array,
        Self::Boolean,
        Self::Integer,
        Self::Number,
        Self::Object,
        Self::String,
    ];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// What a schema says about keys that are not properties.
#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    Unspecified,
    /// `additionalProperties: true`
    Any,
    /// `additionalProperties: false`
    Nothing,
    /// Every such key has this schema: a map.
    Schema(Box<Node>),
}

/// How the items of a list are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListType {
    Atomic,
    Set,
    Map,
}

#[derive(Debug)]
pub(crate) struct ListFacts {
    pub(crate) list_type: ListType,
    /// The fields that identify an item of a list of type map, in the order of the schema.
    pub(crate) keys: Vec<Box<str>>,
}

/// Whether a map is owned as a whole or key by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapType {
    Granular,
    Atomic,
}

/// How a strategic merge patch treats a field.
#[derive(Debug, Default)]
pub(crate) struct PatchFacts {
    pub(crate) merge: bool,
    pub(crate) retain_keys: bool,
    pub(crate) merge_key: Option<Box<str>>,
}

/// Checks on values, kept apart because most nodes have none.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) allowed: Vec<Value>,
    pub(crate) format: Option<Box<str>>,
    pub(crate) pattern: Option<Arc<Pattern>>,
    pub(crate) minimum: Option<Bound>,
    pub(crate) maximum: Option<Bound>,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) unique_items: bool,
    pub(crate) min_properties: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub(crate) one_of: Vec<Node>,
    pub(crate) not: Option<Box<Node>>,
}

/// A limit of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) limit: f64,
    pub(crate) exclusive: bool,
}

/// A place in a schema: a node with its references followed.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The node that says what the value looks like.
    pub(crate) node: &'a Node,
    /// The node that stands at this place; differs from `node` where it is a reference.
    outer: &'a Node,
    definitions: &'a Definitions,
}

impl<'a> Place<'a> {
    /// References to references are followed this far; a longer chain is a circle.
    const CHAIN: usize = 16;

    pub(crate) fn new(outer: &'a Node, definitions: &'a Definitions) -> Self {
        let mut node = outer;
        for _ in 0..Self::CHAIN {
            let Some(next) = node.reference.as_deref().and_then(|name| definitions.node(name)) else {
                break;
            };
            node = next;
        }
        Self {
            node,
            outer,
            definitions,
        }
    }

    /// Another node of the same schema.
    pub(crate) fn at(self, node: &'a Node) -> Self {
        Self::new(node, self.definitions)
    }

    pub(crate) fn property(self, name: &str) -> Option<Self> {
        self.node.properties.get(name).map(|node| self.at(node))
    }

    pub(crate) fn additional(self) -> Option<Self> {
        match &self.node.additional {
            Additional::Schema(node) => Some(self.at(node)),
            _ => None,
        }
    }

    /// The schema of the value under `key`, be it a field or an entry of a map.
    pub(crate) fn child(self, key: &str) -> Option<Self> {
        self.property(key).or_else(|| self.additional())
    }

    pub(crate) fn items(self) -> Option<Self> {
        self.node.items.as_deref().map(|node| self.at(node))
    }

    pub(crate) fn nullable(self) -> bool {
        self.node.nullable || self.outer.nullable
    }

    pub(crate) fn default(self) -> Option<&'a Value> {
        self.outer.default.as_ref().or(self.node.default.as_ref())
    }

    pub(crate) fn list_type(self) -> ListType {
        self.list_facts().map_or(ListType::Atomic, |list| list.list_type)
    }

    pub(crate) fn list_keys(self) -> &'a [Box<str>] {
        self.list_facts().map_or(&[], |list| &list.keys)
    }

    fn list_facts(self) -> Option<&'a ListFacts> {
        self.outer.list.as_deref().or(self.node.list.as_deref())
    }

    pub(crate) fn is_atomic_map(self) -> bool {
        self.outer.map_type.or(self.node.map_type) == Some(MapType::Atomic)
    }

    pub(crate) fn patch(self) -> Option<&'a PatchFacts> {
        self.outer.patch.as_deref().or(self.node.patch.as_deref())
    }

    /// Whether rules may stand below: always assumed of references, which are not looked into.
    pub(crate) fn has_rules(self) -> bool {
        self.node.has_rules
    }
}
