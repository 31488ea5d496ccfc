//! Reads an object of a built-in kind as Go would read it into its struct, and leaves it as Go would write it again.
//!
//! A real server never stores what a client sent but what its struct held, so fields come and go: what is empty and
//! `omitempty` is not written, what is a struct always is, amounts and times take their canonical text. Doing the same
//! here makes stored objects equal to a real server's, byte for byte. Unknown fields are left for the schema to prune.
//!
//! Guarantees: conforming twice is conforming once.

use base64::{
    DecodeError, Engine as _, alphabet,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use moorline_machinery::{
    decode::json_type,
    duration::GoDuration,
    facts::{Cardinality, Element, Emission, Facts, Field, Form, Message, MessageId},
    gvk::GroupVersionKind,
    quantity::Quantity,
    time,
};
use serde_json::{Map, Number, Value, json};

use self::go_time::Layout;

/// What an object is brought into form for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be worked on: what was just read.
    Read,
    /// To be kept. Empty lists do not survive that in most kinds.
    Store,
}

/// Brings an object into the form that a real server holds, or says why a real server cannot read it: the message of
/// its answer 400. Kinds without facts are left as they are.
pub(crate) fn conform(
    facts: &Facts,
    kind: &GroupVersionKind,
    object: &mut Value,
    purpose: Purpose,
) -> Result<(), String> {
    let Some(id) = facts.kind(&kind.api_version(), &kind.kind) else {
        return Ok(());
    };
    let list_form = match (purpose, &*kind.group) {
        (Purpose::Read, _) | (_, "apiextensions.k8s.io" | "apiregistration.k8s.io") => EmptyList::IsKept,
        (Purpose::Store, _) => EmptyList::IsNull,
    };
    let mut reading = Reading {
        facts,
        list_form,
        holder: "",
        path: Vec::new(),
        place: Vec::new(),
        fault: None,
    };
    reading.message(id, object);
    match reading.fault {
        None => Ok(()),
        Some((_, fault)) => {
            let GroupVersionKind { version, kind, .. } = kind;
            Err(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {fault}"
            ))
        }
    }
}

/// What becomes of an empty list or map that must be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EmptyList {
    /// The object is not stored yet, or the kind is stored as JSON.
    IsKept,
    /// The kind is stored as protobuf, which cannot tell it from none at all.
    IsNull,
}

/// A walk over one object.
struct Reading<'f> {
    facts: &'f Facts,
    list_form: EmptyList,
    /// The struct that holds the field being read; Go names it in its errors.
    holder: &'f str,
    /// The fields down to the one being read. Lists and maps leave no trace in it, as in Go.
    path: Vec<&'f str>,
    /// Where in the object the value stands that is being read.
    place: Vec<Step<'f>>,
    /// The first fault and where it is. Go, too, reads on after it, but in the order of the text, in which the fields
    /// of an object stand here by their names.
    fault: Option<(Vec<Step<'f>>, String)>,
}

/// One step down to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step<'f> {
    Field(&'f str),
    Item(usize),
}

impl<'f> Reading<'f> {
    fn message(&mut self, id: MessageId, value: &mut Value) {
        let message = self.facts.message(id);
        match message.form {
            Form::Object => match value {
                Value::Object(fields) => self.object(id, fields),
                Value::Null => *value = self.zero_message(id),
                other => self.mismatch(other, &go_name(self.facts, id)),
            },
            Form::Items => self.texts(value, message),
            Form::Raw => {}
            Form::Time => self.time(value, &go_time::SECONDS, time::format),
            Form::MicroTime => self.time(value, &go_time::MICROSECONDS, time::format_micro),
            Form::Duration => self.duration(value),
            Form::Quantity => self.quantity(value),
            Form::IntOrString => self.int_or_string(value),
            Form::SchemaOrBool | Form::SchemaOrArray | Form::SchemaOrStrings => self.schema(id, value),
        }
    }

    fn object(&mut self, id: MessageId, fields: &mut Map<String, Value>) {
        let holder = std::mem::replace(&mut self.holder, self.facts.message(id).name);
        self.fields(id, fields);
        self.holder = holder;
    }

    fn fields(&mut self, id: MessageId, fields: &mut Map<String, Value>) {
        for field in self.facts.fields(id) {
            if let ("", Element::Message(inlined)) = (field.name, field.element) {
                self.path.push(self.facts.message(inlined).name);
                self.fields(inlined, fields);
                self.path.pop();
                continue;
            }
            let given = fields.get_mut(field.name).filter(|value| !value.is_null());
            let is_written = given.is_some_and(|value| {
                self.path.push(field.name);
                self.place.push(Step::Field(field.name));
                self.field(field, value);
                self.place.pop();
                self.path.pop();
                is_written(field, value, self.list_form)
            });
            if !is_written {
                match self.zero(field) {
                    Some(zero) => drop(fields.insert(field.name.to_owned(), zero)),
                    None => drop(fields.remove(field.name)),
                }
            }
        }
    }

    fn field(&mut self, field: &'f Field, value: &mut Value) {
        let text = field.type_name.unwrap_or("string");
        match field.cardinality {
            Cardinality::One | Cardinality::Optional => self.element(field.element, text, value),
            Cardinality::List => match value {
                Value::Array(items) => self.items(field.element, text, items.iter_mut()),
                other => self.mismatch(other, &format!("[]{}", self.type_name(field.element, text))),
            },
            Cardinality::Map => match value {
                Value::Object(entries) => self.items(field.element, text, entries.values_mut()),
                other => {
                    let name = self.type_name(field.element, text);
                    let is_resources = name == "resource.Quantity";
                    let name = if is_resources {
                        "v1.ResourceList".to_owned()
                    } else {
                        format!("map[string]{name}")
                    };
                    self.mismatch(other, &name);
                }
            },
        }
    }

    fn items<'v>(&mut self, element: Element, text: &str, items: impl Iterator<Item = &'v mut Value>) {
        for (index, item) in items.enumerate() {
            self.place.push(Step::Item(index));
            self.element(element, text, item);
            self.place.pop();
        }
    }

    /// `text` is what Go calls a text there.
    fn element(&mut self, element: Element, text: &str, value: &mut Value) {
        match (element, &mut *value) {
            (Element::Message(id), _) => self.message(id, value),
            (Element::Int32 | Element::Int64 | Element::Double, Value::Null) => *value = json!(0),
            (Element::Bool, Value::Null) => *value = json!(false),
            // An element without bytes comes back from a real store as an empty one.
            (Element::String | Element::Bytes, Value::Null) => *value = json!(""),
            (Element::String, Value::String(_))
            | (Element::Bool, Value::Bool(_))
            | (Element::Double, Value::Number(_)) => {}
            (Element::Int32, Value::Number(number)) => {
                if number.as_i64().is_none_or(|number| i32::try_from(number).is_err()) {
                    self.wrong_number(number, "int32");
                }
            }
            (Element::Int64, Value::Number(number)) => {
                if number.as_i64().is_none() {
                    self.wrong_number(number, "int64");
                }
            }
            (Element::Bytes, Value::String(text)) => self.bytes(text),
            (_, other) => self.mismatch(other, &self.type_name(element, text)),
        }
    }

    /// Go's base64 skips line breaks and does not mind loose bits at the end; what it writes has neither.
    fn bytes(&mut self, text: &mut String) {
        const LENIENT: GeneralPurpose = GeneralPurpose::new(
            &alphabet::STANDARD,
            GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
        );
        text.retain(|character| !matches!(character, '\r' | '\n'));
        match LENIENT.decode(text.as_bytes()) {
            Ok(bytes) => *text = LENIENT.encode(bytes),
            Err(DecodeError::InvalidByte(position, _)) => self.illegal_base64(position),
            Err(_) => self.illegal_base64(text.len() / 4 * 4),
        }
    }

    fn illegal_base64(&mut self, position: usize) {
        self.fail(|| format!("illegal base64 data at input byte {position}"));
    }

    fn texts(&mut self, value: &mut Value, message: &Message) {
        match value {
            Value::Array(items) => self.items(Element::String, "string", items.iter_mut()),
            Value::Null => {}
            other => self.mismatch(other, &format!("v1.{}", message.name)),
        }
    }

    fn time(&mut self, value: &mut Value, layout: &Layout, print: impl Fn(jiff::Timestamp) -> String) {
        match value {
            Value::Null => {}
            Value::String(text) => match layout.parse(text) {
                Ok(time) => *text = print(time),
                Err(error) => self.fail(|| error),
            },
            other => self.mismatch(other, "string"),
        }
    }

    fn duration(&mut self, value: &mut Value) {
        match value {
            Value::Null => *value = json!("0s"),
            Value::String(text) => match text.parse::<GoDuration>() {
                Ok(duration) => *text = duration.to_string(),
                Err(error) => self.fail(|| error.to_string()),
            },
            other => self.mismatch(other, "string"),
        }
    }

    fn quantity(&mut self, value: &mut Value) {
        let text = match &*value {
            Value::Null => "0".to_owned(),
            Value::String(text) => text.trim().to_owned(),
            other => other.to_string(),
        };
        match text.parse::<Quantity>() {
            Ok(quantity) => *value = quantity.to_string().into(),
            Err(error) => self.fail(|| error.to_string()),
        }
    }

    fn int_or_string(&mut self, value: &mut Value) {
        match value {
            Value::Null => *value = json!(0),
            Value::String(_) => {}
            Value::Number(number) if number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) => {}
            Value::Number(number) => {
                let number = number.clone();
                self.wrong_number(&number, "int32");
            }
            other => self.mismatch(other, "int32"),
        }
    }

    /// A schema, or what may stand in its place.
    fn schema(&mut self, id: MessageId, value: &mut Value) {
        let schema = self.facts.fields(id).iter().find_map(|field| match field.element {
            Element::Message(schema) => Some(schema),
            _ => None,
        });
        let Some(schema) = schema else { return };
        match value {
            Value::Object(fields) => self.object(schema, fields),
            Value::Array(items) => {
                items
                    .iter_mut()
                    .filter_map(Value::as_object_mut)
                    .for_each(|fields| self.object(schema, fields));
            }
            _ => {}
        }
    }

    /// What Go writes for a field that is not there; none if it writes nothing.
    fn zero(&self, field: &Field) -> Option<Value> {
        match (field.emission, field.cardinality, field.element) {
            (Emission::Always, Cardinality::One, element) => Some(self.zero_element(element)),
            (Emission::Always, _, _) => Some(Value::Null),
            (Emission::NotEmpty, Cardinality::One, Element::Message(id)) => Some(self.zero_message(id)),
            (Emission::NotEmpty | Emission::NotZero, _, _) => None,
        }
    }

    fn zero_element(&self, element: Element) -> Value {
        match element {
            Element::String => json!(""),
            Element::Int32 | Element::Int64 | Element::Double => json!(0),
            Element::Bool => json!(false),
            Element::Bytes => Value::Null,
            Element::Message(id) => self.zero_message(id),
        }
    }

    fn zero_message(&self, id: MessageId) -> Value {
        match self.facts.message(id).form {
            Form::Object => {
                let mut fields = Map::new();
                self.zero_fields(id, &mut fields);
                Value::Object(fields)
            }
            Form::Quantity => json!("0"),
            Form::IntOrString => json!(0),
            Form::Duration => json!("0s"),
            Form::Items
            | Form::Time
            | Form::MicroTime
            | Form::Raw
            | Form::SchemaOrBool
            | Form::SchemaOrArray
            | Form::SchemaOrStrings => Value::Null,
        }
    }

    fn zero_fields(&self, id: MessageId, fields: &mut Map<String, Value>) {
        for field in self.facts.fields(id) {
            if let ("", Element::Message(inlined)) = (field.name, field.element) {
                self.zero_fields(inlined, fields);
            } else if let Some(zero) = self.zero(field) {
                fields.insert(field.name.to_owned(), zero);
            }
        }
    }

    /// The Go type of a value, as far as facts tell.
    fn type_name(&self, element: Element, text: &str) -> String {
        match element {
            Element::String => text.to_owned(),
            Element::Int32 => "int32".to_owned(),
            Element::Int64 => "int64".to_owned(),
            Element::Bool => "bool".to_owned(),
            Element::Bytes => "[]uint8".to_owned(),
            Element::Double => "float64".to_owned(),
            Element::Message(id) => go_name(self.facts, id),
        }
    }

    fn mismatch(&mut self, found: &Value, wanted: &str) {
        let found = json_type(found);
        self.fail_at_field(found, wanted);
    }

    fn wrong_number(&mut self, number: &Number, wanted: &str) {
        self.fail_at_field(&format!("number {number}"), wanted);
    }

    fn fail_at_field(&mut self, found: &str, wanted: &str) {
        let place = if self.path.is_empty() {
            "value".to_owned()
        } else {
            format!("struct field {}.{}", self.holder, self.path.join("."))
        };
        self.fail(|| format!("json: cannot unmarshal {found} into Go {place} of type {wanted}"));
    }

    fn fail(&mut self, fault: impl FnOnce() -> String) {
        if self.fault.as_ref().is_none_or(|(place, _)| self.place < *place) {
            self.fault = Some((self.place.clone(), fault()));
        }
    }
}

/// Whether Go writes a value that is there.
fn is_written(field: &Field, value: &Value, list_form: EmptyList) -> bool {
    let is_one = matches!(field.cardinality, Cardinality::One | Cardinality::Optional);
    if field.emission == Emission::Always && (is_one || list_form == EmptyList::IsKept) {
        return true;
    }
    // What is not a list or map by its type is never empty, whatever JSON it is made of.
    if field.cardinality == Cardinality::Optional || (is_one && matches!(field.element, Element::Message(_))) {
        return !value.is_null();
    }
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

/// Such as `v1.PodSpec`: the last part of the package, and the name.
fn go_name(facts: &Facts, id: MessageId) -> String {
    let name = facts.definition_name(id);
    let start = name.rmatch_indices('.').nth(1).map_or(0, |(position, _)| position + 1);
    name[start..].to_owned()
}

mod go_time;

#[cfg(test)]
mod tests;
