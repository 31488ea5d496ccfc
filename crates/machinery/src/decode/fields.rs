//! The fields of a JSON text, in its order.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::field::Path;

/// Notes the path of every field below a path.
pub(super) struct FieldsSeed<'a, 'f> {
    path: &'a Path<'a>,
    fields: &'f mut Vec<String>,
}

impl<'a, 'f> FieldsSeed<'a, 'f> {
    pub(super) fn new(path: &'a Path<'a>, fields: &'f mut Vec<String>) -> Self {
        FieldsSeed { path, fields }
    }
}

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        for index in 0.. {
            let path = self.path.index(index);
            if sequence
                .next_element_seed(FieldsSeed::new(&path, self.fields))?
                .is_none()
            {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let path = self.path.child(&name);
            self.fields.push(path.to_string());
            map.next_value_seed(FieldsSeed::new(&path, self.fields))?;
        }
        Ok(())
    }
}
