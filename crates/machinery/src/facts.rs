//! What is known about the built-in kinds beside their schemas: protobuf numbers, how JSON is written, how lists merge.
//!
//! The facts come as one compact text, made by `tools/facts`, whose README tells the format. Reading it takes about
//! a millisecond and keeps slices of the text, so a process pays for it once and little.

mod parse;
pub mod resources;

use std::collections::HashMap;

pub use parse::ParseFactsError;

/// The facts of one text.
#[derive(Debug)]
pub struct Facts {
    packages: Vec<Package>,
    messages: Vec<Message>,
    fields: Vec<Field>,
    /// By package and name, as in `core.v1.Pod`.
    by_name: HashMap<(PackageId, &'static str), MessageId>,
    by_open_api_package: HashMap<&'static str, PackageId>,
    /// By `apiVersion`; several packages never share one.
    by_api_version: HashMap<&'static str, PackageId>,
}

/// Which message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PackageId(u16);

#[derive(Debug)]
struct Package {
    short: &'static str,
    open_api: &'static str,
    /// As in `apiVersion`; `None` for packages without kinds.
    api_version: Option<&'static str>,
}

/// A type that is a message in protobuf and, mostly, an object in JSON.
#[derive(Debug)]
pub struct Message {
    /// Such as `PodSpec`.
    pub name: &'static str,
    package: PackageId,
    /// Whether it is a kind of its own.
    pub is_kind: bool,
    /// How it is written in JSON.
    pub form: Form,
    /// How server-side apply merges it, where the type itself says so.
    pub structure: Structure,
    fields: std::ops::Range<u32>,
}

/// How a message is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// An object of its fields.
    Object,
    /// The list of its field 1, texts.
    Items,
    /// A time in whole seconds.
    Time,
    /// A time in microseconds.
    MicroTime,
    /// Go's text for a duration.
    Duration,
    /// The text of a quantity.
    Quantity,
    /// A number or a text.
    IntOrString,
    /// JSON as it is.
    Raw,
    /// A schema, or true or false.
    SchemaOrBool,
    /// A schema, or a list of schemas.
    SchemaOrArray,
    /// A schema, or a list of texts.
    SchemaOrStrings,
}

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    /// The protobuf number.
    pub number: u32,
    /// The JSON name. Empty if the fields of this field stand in the object around it.
    pub name: &'static str,
    /// How often it occurs.
    pub cardinality: Cardinality,
    /// What it holds.
    pub element: Element,
    /// When it is written in JSON.
    pub emission: Emission,
    /// How server-side apply merges it.
    pub structure: Structure,
    /// How a strategic merge patch merges it.
    pub patch: Option<PatchStrategy>,
    /// What Go calls the text that it holds, where that is more than `string`; its errors name it.
    pub type_name: Option<&'static str>,
    /// The default that the schema publishes, as JSON.
    pub default: Option<&'static str>,
}

/// How often a field occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cardinality {
    /// Always once, if only with its zero value.
    One,
    /// Once or not at all.
    Optional,
    /// In a list.
    List,
    /// In a map by text.
    Map,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// Text.
    String,
    /// A number of 32 bits.
    Int32,
    /// A number of 64 bits.
    Int64,
    /// True or false.
    Bool,
    /// Bytes, in JSON as base64.
    Bytes,
    /// A floating-point number.
    Double,
    /// Another message.
    Message(MessageId),
}

/// When a field is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Emission {
    /// When it is not empty (`omitempty`): messages always, the rest unless zero.
    NotEmpty,
    /// When it is not zero (`omitzero`): messages, too, are left out.
    NotZero,
    /// Always, as null if there is nothing.
    Always,
}

/// How server-side apply merges a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Structure {
    /// As its type implies: objects and maps by key, lists as a whole.
    #[default]
    Implied,
    /// As a whole.
    Atomic,
    /// A list whose elements are told apart by themselves.
    Set,
    /// A list whose elements are told apart by these fields, separated by commas.
    Map(&'static str),
}

impl Structure {
    /// The fields that tell list elements apart.
    pub fn map_keys(self) -> impl Iterator<Item = &'static str> {
        let keys = if let Structure::Map(keys) = self { keys } else { "" };
        keys.split(',').filter(|key| !key.is_empty())
    }
}

/// How a strategic merge patch merges a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PatchStrategy {
    /// Elements or fields are merged rather than replaced.
    pub merge: bool,
    /// Fields that the patch does not name are dropped, if the patch asks for it.
    pub retain_keys: bool,
    /// The field that tells list elements apart.
    pub merge_key: Option<&'static str>,
}

impl Facts {
    /// Reads the facts.
    pub fn parse(text: &'static str) -> Result<Self, ParseFactsError> {
        parse::parse(text)
    }

    /// The message of a kind. The option kinds of `meta.k8s.io` belong to every version.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<MessageId> {
        let in_version = |api_version: &str| {
            let package = *self.by_api_version.get(api_version)?;
            let id = *self.by_name.get(&(package, kind))?;
            self.message(id).is_kind.then_some(id)
        };
        in_version(api_version).or_else(|| in_version("meta.k8s.io/v1"))
    }

    /// The message of an `OpenAPI` definition, such as `io.k8s.api.core.v1.PodSpec`.
    pub fn definition(&self, name: &str) -> Option<MessageId> {
        let (package, name) = name.rsplit_once('.')?;
        let package = *self.by_open_api_package.get(package)?;
        self.by_name.get(&(package, name)).copied()
    }

    /// The `OpenAPI` definition of a message.
    pub fn definition_name(&self, id: MessageId) -> String {
        let message = self.message(id);
        format!(
            "{}.{}",
            self.packages[usize::from(message.package.0)].open_api,
            message.name
        )
    }

    /// A message.
    pub fn message(&self, id: MessageId) -> &Message {
        &self.messages[id.0 as usize]
    }

    /// The fields of a message.
    pub fn fields(&self, id: MessageId) -> &[Field] {
        let range = &self.message(id).fields;
        &self.fields[range.start as usize..range.end as usize]
    }

    /// A field by its JSON name, also one that an inlined field brings.
    pub fn field(&self, id: MessageId, name: &str) -> Option<&Field> {
        let fields = self.fields(id);
        fields.iter().find(|field| field.name == name).or_else(|| {
            fields
                .iter()
                .filter(|field| field.name.is_empty())
                .find_map(|field| match field.element {
                    Element::Message(inlined) => self.field(inlined, name),
                    _ => None,
                })
        })
    }

    /// All kinds as `apiVersion`, kind and message, in the order of the text.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &'static str, MessageId)> {
        self.messages
            .iter()
            .enumerate()
            .filter(|(_, message)| message.is_kind)
            .filter_map(|(position, message)| {
                let api_version = self.packages[usize::from(message.package.0)].api_version?;
                Some((api_version, message.name, MessageId(u32::try_from(position).ok()?)))
            })
    }
}

#[cfg(test)]
mod tests;
