//! Messages to JSON objects, with the emptiness that Go's `omitempty` leaves in and out.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Number, Value};

use super::{
    Decoder, ProtobufError, object, text,
    wire::{self, Payload, Reader},
};
use crate::facts::{Cardinality, Element, Emission, Field, Form, MessageId};

/// What has been read of a field.
#[derive(Clone)]
enum Slot<'a> {
    Absent,
    Scalar(Value),
    /// Read at the end: a message that occurs twice is merged, and joining its bytes merges it.
    Message(Cow<'a, [u8]>),
    List(Vec<Value>),
    Map(Map<String, Value>),
}

impl Decoder<'_> {
    /// Any message in its JSON form.
    pub(super) fn value(&mut self, id: MessageId, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
        self.spend(1)?;
        match self.facts.message(id).form {
            Form::Object => {
                let mut entries = Map::new();
                self.object(id, bytes, depth, &mut entries)?;
                Ok(object(entries))
            }
            form => self.special(form, id, bytes, depth),
        }
    }

    /// The fields of a message into an object.
    fn object(
        &mut self,
        id: MessageId,
        bytes: &[u8],
        depth: usize,
        entries: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        let depth = depth.checked_sub(1).ok_or(ProtobufError::TooLarge)?;
        let fields = self.facts.fields(id);
        let mut slots = vec![Slot::Absent; fields.len()];
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.field()? {
            if let Some(position) = fields.iter().position(|field| field.number == number) {
                self.read(id, &fields[position], payload, depth, &mut slots[position])?;
            }
        }
        for (field, slot) in fields.iter().zip(slots) {
            if field.name.is_empty() {
                let inlined = if let Slot::Message(bytes) = slot {
                    bytes
                } else {
                    Cow::Borrowed(&[][..])
                };
                if let Element::Message(message) = field.element {
                    self.object(message, &inlined, depth, entries)?;
                }
            } else if let Some(value) = self.emitted(field, slot, depth)? {
                entries.insert(field.name.to_owned(), value);
            }
        }
        Ok(())
    }

    fn read<'a>(
        &mut self,
        id: MessageId,
        field: &Field,
        payload: Payload<'a>,
        depth: usize,
        slot: &mut Slot<'a>,
    ) -> Result<(), ProtobufError> {
        match field.cardinality {
            Cardinality::One | Cardinality::Optional => match (field.element, &mut *slot) {
                (Element::Message(_), Slot::Message(earlier)) => earlier.to_mut().extend_from_slice(payload.bytes()?),
                (Element::Message(_), _) => *slot = Slot::Message(payload.bytes()?.into()),
                (element, _) => *slot = Slot::Scalar(self.scalar(id, field, element, payload)?),
            },
            Cardinality::List => {
                let mut items = match std::mem::replace(slot, Slot::Absent) {
                    Slot::List(items) => items,
                    _ => Vec::new(),
                };
                self.read_list(id, field, payload, depth, &mut items)?;
                *slot = Slot::List(items);
            }
            Cardinality::Map => {
                let mut entries = match std::mem::replace(slot, Slot::Absent) {
                    Slot::Map(entries) => entries,
                    _ => Map::new(),
                };
                let (key, value) = self.read_entry(id, field, payload.bytes()?, depth)?;
                entries.insert(key, value);
                *slot = Slot::Map(entries);
            }
        }
        Ok(())
    }

    fn read_list(
        &mut self,
        id: MessageId,
        field: &Field,
        payload: Payload<'_>,
        depth: usize,
        items: &mut Vec<Value>,
    ) -> Result<(), ProtobufError> {
        match (field.element, payload) {
            (Element::Message(message), payload) => items.push(self.value(message, payload.bytes()?, depth)?),
            (element @ (Element::Int32 | Element::Int64 | Element::Bool), Payload::Bytes(packed)) => {
                let mut reader = Reader::new(packed);
                while let Some(number) = reader.packed_varint()? {
                    items.push(self.scalar(id, field, element, Payload::Varint(number))?);
                }
            }
            (element, payload) => items.push(self.scalar(id, field, element, payload)?),
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        id: MessageId,
        field: &Field,
        bytes: &[u8],
        depth: usize,
    ) -> Result<(String, Value), ProtobufError> {
        let (mut key, mut value) = (String::new(), None);
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.field()? {
            match (number, field.element) {
                (1, _) => key = text(payload.bytes()?),
                (2, Element::Message(message)) => value = Some(self.value(message, payload.bytes()?, depth)?),
                (2, element) => value = Some(self.scalar(id, field, element, payload)?),
                _ => {}
            }
        }
        let value = match (value, field.element) {
            (Some(value), _) => value,
            (None, Element::Message(message)) => self.value(message, &[], depth)?,
            (None, element) => zero(element),
        };
        Ok((key, value))
    }

    fn scalar(
        &mut self,
        id: MessageId,
        field: &Field,
        element: Element,
        payload: Payload<'_>,
    ) -> Result<Value, ProtobufError> {
        self.spend(1)?;
        Ok(match element {
            Element::String => text(payload.bytes()?).into(),
            Element::Bytes => STANDARD.encode(payload.bytes()?).into(),
            Element::Bool => (payload.varint()? != 0).into(),
            Element::Int32 => wire::int32(payload.varint()?).into(),
            Element::Int64 => payload.varint()?.cast_signed().into(),
            Element::Double => float(f64::from_bits(payload.fixed64()?)).ok_or_else(|| ProtobufError::Field {
                message: self.facts.message(id).name,
                field: field.name,
                why: "the number is not finite".to_owned(),
            })?,
            Element::Message(_) => Value::Null,
        })
    }

    /// What stands in JSON for a field, if anything does.
    fn emitted(&mut self, field: &Field, slot: Slot<'_>, depth: usize) -> Result<Option<Value>, ProtobufError> {
        let nothing = || (field.emission == Emission::Always).then_some(Value::Null);
        Ok(match (field.cardinality, field.element, slot) {
            (_, _, Slot::List(items)) => Some(Value::Array(items)),
            (_, _, Slot::Map(entries)) => Some(object(entries)),
            (Cardinality::One, Element::Message(message), slot) => {
                let bytes = if let Slot::Message(bytes) = slot {
                    bytes
                } else {
                    Cow::Borrowed(&[][..])
                };
                let value = self.value(message, &bytes, depth)?;
                let zero = field.emission == Emission::NotZero && value == self.value(message, &[], depth)?;
                (!zero).then_some(value)
            }
            (_, Element::Message(message), Slot::Message(bytes)) => Some(self.value(message, &bytes, depth)?),
            // In Go, bytes can be absent as well as empty.
            (Cardinality::One, Element::Bytes, Slot::Absent) => nothing(),
            (Cardinality::One, element, slot) => {
                let value = if let Slot::Scalar(value) = slot {
                    value
                } else {
                    zero(element)
                };
                (field.emission == Emission::Always || value != zero(element)).then_some(value)
            }
            (_, _, Slot::Scalar(value)) => Some(value),
            (_, _, Slot::Absent | Slot::Message(_)) => nothing(),
        })
    }
}

/// What a field holds that is not there.
fn zero(element: Element) -> Value {
    match element {
        Element::String | Element::Bytes => "".into(),
        Element::Int32 | Element::Int64 | Element::Double => 0.into(),
        Element::Bool => false.into(),
        Element::Message(_) => Value::Null,
    }
}

/// As Go writes floating-point numbers: whole ones without a point.
fn float(value: f64) -> Option<Value> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "whole and within the numbers that are exact"
        )]
        return Some((value as i64).into());
    }
    Number::from_f64(value).map(Value::Number)
}
