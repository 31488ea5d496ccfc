//! Kubernetes' protobuf bodies, read into the JSON that the same client would have sent as JSON.
//!
//! A body is the magic `k8s\0` and a `runtime.Unknown`, which tells `apiVersion` and `kind` and holds the object. What
//! its fields mean is told by [`Facts`]. Fields that the facts do not know are skipped, as a Go server skips them.
//!
//! Bounded: nesting by [`DEPTH_MAX`], values made by [`VALUES_MAX`], since two bytes can stand for a whole object of
//! empty fields. No bytes make it panic.

mod message;
mod special;
mod wire;

use std::borrow::Cow;

use serde_json::{Map, Value};
use wire::{Reader, WireError};

use crate::{
    decode::{self, Limits},
    facts::{Facts, MessageId},
    field::quote,
};

/// The first four bytes of every body.
pub const MAGIC: &[u8; 4] = b"k8s\0";
/// How deep messages may nest.
pub const DEPTH_MAX: usize = 64;
/// How many values a body may become.
pub const VALUES_MAX: usize = 500_000;

/// A body that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// It does not begin as a body does.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    /// The envelope holds something else.
    #[error("unable to decode a body of content type {content_type} and encoding {encoding}", content_type = quote(.content_type), encoding = quote(.encoding))]
    Enveloped {
        /// What the envelope says it holds.
        content_type: String,
        /// How that is encoded.
        encoding: String,
    },
    /// No such kind is known.
    #[error("no kind {} is registered for version {}", quote(.kind), quote(.api_version))]
    UnknownKind {
        /// The version.
        api_version: String,
        /// The kind.
        kind: String,
    },
    /// The bytes are no protobuf.
    #[error("proto: {0}")]
    Wire(#[from] WireError),
    /// A field holds what its type does not allow.
    #[error("proto: field {field} of {message}: {why}")]
    Field {
        /// The message.
        message: &'static str,
        /// The field, by its JSON name, or the message again for values that are no object.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Too deep, or too much of it.
    #[error("proto: the message nests too deep or holds too many values")]
    TooLarge,
}

/// Reads a body with its envelope. The object tells `apiVersion` and `kind` as the envelope does.
pub fn decode(facts: &Facts, body: &[u8]) -> Result<Value, ProtobufError> {
    let envelope = Envelope::read(body)?;
    let unknown = || ProtobufError::UnknownKind {
        api_version: envelope.api_version.clone(),
        kind: envelope.kind.clone(),
    };
    let message = facts.kind(&envelope.api_version, &envelope.kind).ok_or_else(unknown)?;
    let Value::Object(mut object) = decode_message(facts, message, &envelope.raw)? else {
        return Err(unknown());
    };
    object.insert("apiVersion".to_owned(), envelope.api_version.into());
    object.insert("kind".to_owned(), envelope.kind.into());
    Ok(Value::Object(object))
}

/// Reads a message without an envelope.
pub fn decode_message(facts: &Facts, message: MessageId, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut decoder = Decoder {
        facts,
        values: VALUES_MAX,
    };
    decoder.value(message, bytes, DEPTH_MAX)
}

/// `apiVersion` and `kind` of a body, without reading the object.
pub fn type_meta(body: &[u8]) -> Result<(String, String), ProtobufError> {
    Envelope::read(body).map(|envelope| (envelope.api_version, envelope.kind))
}

#[derive(Default)]
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: Cow<'a, [u8]>,
}

impl<'a> Envelope<'a> {
    fn read(body: &'a [u8]) -> Result<Self, ProtobufError> {
        let rest = body.strip_prefix(MAGIC).ok_or(ProtobufError::NoMagic)?;
        let mut envelope = Envelope::default();
        let (mut encoding, mut content_type) = (String::new(), String::new());
        let mut reader = Reader::new(rest);
        while let Some((number, payload)) = reader.field()? {
            match number {
                1 => envelope.read_type_meta(payload.bytes()?)?,
                2 => envelope.raw = payload.bytes()?.into(),
                3 => encoding = text(payload.bytes()?),
                4 => content_type = text(payload.bytes()?),
                _ => {}
            }
        }
        if !encoding.is_empty() || !matches!(content_type.as_str(), "" | "application/vnd.kubernetes.protobuf") {
            return Err(ProtobufError::Enveloped { content_type, encoding });
        }
        Ok(envelope)
    }

    fn read_type_meta(&mut self, bytes: &[u8]) -> Result<(), ProtobufError> {
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.field()? {
            match number {
                1 => self.api_version = text(payload.bytes()?),
                2 => self.kind = text(payload.bytes()?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads messages and keeps count of what they become.
struct Decoder<'a> {
    facts: &'a Facts,
    /// How many more values may be made.
    values: usize,
}

impl Decoder<'_> {
    fn spend(&mut self, values: usize) -> Result<(), ProtobufError> {
        self.values = self.values.checked_sub(values).ok_or(ProtobufError::TooLarge)?;
        Ok(())
    }
}

/// JSON within protobuf.
fn json(message: &'static str, bytes: &[u8]) -> Result<Value, ProtobufError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let limits = Limits {
        bytes: bytes.len(),
        ..Limits::default()
    };
    match decode::json(bytes, &limits) {
        Ok(decoded) => Ok(decoded.value),
        Err(why) => Err(ProtobufError::Field {
            message,
            field: message,
            why: why.to_string(),
        }),
    }
}

/// Text as Go takes it: bytes that are no UTF-8 become the replacement character once they are written as JSON.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn object(entries: Map<String, Value>) -> Value {
    Value::Object(entries)
}
