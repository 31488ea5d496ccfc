//! Messages whose JSON is not an object of their fields.

use serde_json::Value;

use super::{
    Decoder, ProtobufError, json, text,
    wire::{Payload, Reader, WireError, int32},
};
use crate::{
    duration::GoDuration,
    facts::{Element, Form, MessageId},
    quantity::Quantity,
    time,
};

impl Decoder<'_> {
    pub(super) fn special(
        &mut self,
        form: Form,
        id: MessageId,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        let depth = depth.checked_sub(1).ok_or(ProtobufError::TooLarge)?;
        let message = self.facts.message(id).name;
        let wrong = |why: String| ProtobufError::Field {
            message,
            field: message,
            why,
        };
        match form {
            Form::Object => Err(wrong("is an object".to_owned())),
            Form::Time | Form::MicroTime => {
                time_value(form, bytes)?.ok_or_else(|| wrong("the time is out of range".to_owned()))
            }
            Form::Duration => {
                let nanoseconds = varint(bytes, 1)?.unwrap_or_default().cast_signed();
                Ok(GoDuration::from_nanoseconds(nanoseconds).to_string().into())
            }
            Form::Quantity => match last(bytes, 1)? {
                None => Ok("0".into()),
                Some(payload) => {
                    let quantity: Quantity = text(payload.bytes()?)
                        .parse()
                        .map_err(|error| wrong(format!("{error}")))?;
                    Ok(quantity.to_string().into())
                }
            },
            Form::IntOrString => match varint(bytes, 1)?.unwrap_or_default() {
                0 => Ok(int32(varint(bytes, 2)?.unwrap_or_default()).into()),
                1 => Ok(last(bytes, 3)?
                    .map_or(Ok(String::new()), |payload| payload.bytes().map(text))?
                    .into()),
                _ => Err(wrong("impossible IntOrString.Type".to_owned())),
            },
            Form::Raw => {
                let raw = last(bytes, 1)?.map_or(Ok(&[][..]), Payload::bytes)?;
                json(message, raw)
            }
            Form::Items => self.texts(bytes, 1),
            Form::SchemaOrBool => match joined(bytes, 2)? {
                Some(schema) => self.nested(id, 2, &schema, depth),
                None => Ok((varint(bytes, 1)?.unwrap_or_default() != 0).into()),
            },
            Form::SchemaOrArray => {
                let mut schemas = Vec::new();
                for schema in all(bytes, 2)? {
                    schemas.push(self.nested(id, 2, schema, depth)?);
                }
                if !schemas.is_empty() {
                    return Ok(Value::Array(schemas));
                }
                match joined(bytes, 1)? {
                    Some(schema) => self.nested(id, 1, &schema, depth),
                    None => Ok(Value::Null),
                }
            }
            Form::SchemaOrStrings => match (self.texts(bytes, 2)?, joined(bytes, 1)?) {
                (Value::Array(texts), schema) if texts.is_empty() => match schema {
                    Some(schema) => self.nested(id, 1, &schema, depth),
                    None => Ok(Value::Null),
                },
                (texts, _) => Ok(texts),
            },
        }
    }

    /// The message in a field of a special message.
    fn nested(&mut self, id: MessageId, number: u32, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
        let field = self.facts.fields(id).iter().find(|field| field.number == number);
        match field.map(|field| field.element) {
            Some(Element::Message(message)) => self.value(message, bytes, depth),
            _ => Ok(Value::Null),
        }
    }

    fn texts(&mut self, bytes: &[u8], number: u32) -> Result<Value, ProtobufError> {
        let texts = all(bytes, number)?;
        self.spend(texts.len())?;
        Ok(Value::Array(
            texts.into_iter().map(|bytes| text(bytes).into()).collect(),
        ))
    }
}

/// Seconds in field 1, nanoseconds in field 2; nothing at all for Go's zero time, which is null in JSON. `None` if the
/// calendar does not reach that far.
fn time_value(form: Form, bytes: &[u8]) -> Result<Option<Value>, WireError> {
    const ZERO: i64 = -62_135_596_800;
    if bytes.is_empty() {
        return Ok(Some(Value::Null));
    }
    let seconds = varint(bytes, 1)?.unwrap_or_default().cast_signed();
    // `Time` drops the fraction even in protobuf, so that both encodings agree.
    let nanoseconds = match form {
        Form::MicroTime => int32(varint(bytes, 2)?.unwrap_or_default()),
        _ => 0,
    };
    if seconds == ZERO && nanoseconds == 0 {
        return Ok(Some(Value::Null));
    }
    Ok(time::from_parts(seconds, nanoseconds).map(|time| match form {
        Form::MicroTime => time::format_micro(time).into(),
        _ => time::format(time).into(),
    }))
}

/// The last occurrence of a field.
fn last(bytes: &[u8], number: u32) -> Result<Option<Payload<'_>>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut found = None;
    while let Some((candidate, payload)) = reader.field()? {
        if candidate == number {
            found = Some(payload);
        }
    }
    Ok(found)
}

fn varint(bytes: &[u8], number: u32) -> Result<Option<u64>, WireError> {
    last(bytes, number)?.map(Payload::varint).transpose()
}

/// All occurrences of a field.
fn all(bytes: &[u8], number: u32) -> Result<Vec<&[u8]>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    while let Some((candidate, payload)) = reader.field()? {
        if candidate == number {
            found.push(payload.bytes()?);
        }
    }
    Ok(found)
}

/// All occurrences of a message, merged.
fn joined(bytes: &[u8], number: u32) -> Result<Option<Vec<u8>>, WireError> {
    let parts = all(bytes, number)?;
    Ok((!parts.is_empty()).then(|| parts.concat()))
}
