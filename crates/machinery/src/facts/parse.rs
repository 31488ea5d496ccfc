//! Reading the facts.
//!
//! ```text
//!   package SHORT OPENAPI [APIVERSION]      the messages that follow belong to it
//!   NAME [kind] [la|ls|lm:KEYS|ma|sa] [as:FORM]
//!   NUMBER JSONNAME TYPE [!|z] [la|ls|lm:KEYS|ma|sa] [p:STRATEGY[:KEY]] [t:TYPE] [d:JSON]
//! ```
//!
//! A type is `s`, `i`, `l`, `b`, `y`, `d` or the name of a message, after `*` for optional, `[]` for a list or `{}` for
//! a map. The JSON name of an inlined field is a dot.

use std::collections::HashMap;

use super::{
    Cardinality, Element, Emission, Facts, Field, Form, Message, MessageId, Package, PackageId, PatchStrategy,
    Structure,
};

/// A text that does not hold facts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read line {line} of the facts: {why}")]
pub struct ParseFactsError {
    line: usize,
    why: &'static str,
}

pub(super) fn parse(text: &'static str) -> Result<Facts, ParseFactsError> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader
            .line(line, index + 1)
            .map_err(|why| ParseFactsError { line: index + 1, why })?;
    }
    reader.finish()
}

#[derive(Default)]
struct Reader {
    packages: Vec<Package>,
    messages: Vec<Message>,
    fields: Vec<Field>,
    /// The fields that refer to a message: field, package it stands in, name of the message, line.
    references: Vec<(usize, PackageId, &'static str, usize)>,
}

impl Reader {
    fn line(&mut self, line: &'static str, number: usize) -> Result<(), &'static str> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let mut words = line.split(' ');
        let first = words.next().unwrap_or_default();
        if first == "package" {
            self.package(words)
        } else if first.starts_with(|character: char| character.is_ascii_digit()) {
            self.field(first, words, number)
        } else {
            self.message(first, words)
        }
    }

    fn package(&mut self, mut words: impl Iterator<Item = &'static str>) -> Result<(), &'static str> {
        let short = words.next().ok_or("a package needs a name")?;
        let open_api = words.next().ok_or("a package needs an OpenAPI name")?;
        self.packages.push(Package {
            short,
            open_api,
            api_version: words.next(),
        });
        Ok(())
    }

    fn current_package(&self) -> Result<PackageId, &'static str> {
        let position = self.packages.len().checked_sub(1).ok_or("there is no package yet")?;
        u16::try_from(position)
            .map(PackageId)
            .map_err(|_| "there are too many packages")
    }

    fn message(&mut self, name: &'static str, words: impl Iterator<Item = &'static str>) -> Result<(), &'static str> {
        let start = u32::try_from(self.fields.len()).map_err(|_| "there are too many fields")?;
        let mut message = Message {
            name,
            package: self.current_package()?,
            is_kind: false,
            form: Form::Object,
            structure: Structure::Implied,
            fields: start..start,
        };
        for word in words {
            if word == "kind" {
                message.is_kind = true;
            } else if let Some(name) = word.strip_prefix("as:") {
                message.form = form(name)?;
            } else {
                message.structure = structure(word).ok_or("unknown word about a message")?;
            }
        }
        self.messages.push(message);
        Ok(())
    }

    fn field(
        &mut self,
        number: &str,
        mut words: impl Iterator<Item = &'static str>,
        line: usize,
    ) -> Result<(), &'static str> {
        let package = self.current_package()?;
        let name = words.next().ok_or("a field needs a name")?;
        let written = words.next().ok_or("a field needs a type")?;
        let (cardinality, element) = cardinality(written);
        let element = match element {
            "s" => Element::String,
            "i" => Element::Int32,
            "l" => Element::Int64,
            "b" => Element::Bool,
            "y" => Element::Bytes,
            "d" => Element::Double,
            message => {
                self.references.push((self.fields.len(), package, message, line));
                Element::Message(MessageId(u32::MAX))
            }
        };
        let mut field = Field {
            number: number.parse().map_err(|_| "a field needs a number")?,
            name: if name == "." { "" } else { name },
            cardinality,
            element,
            emission: Emission::NotEmpty,
            structure: Structure::Implied,
            patch: None,
            type_name: None,
            default: None,
        };
        for word in words {
            match word {
                "!" => field.emission = Emission::Always,
                "z" => field.emission = Emission::NotZero,
                _ => {
                    if let Some(strategy) = word.strip_prefix("p:") {
                        field.patch = Some(patch_strategy(strategy));
                    } else if let Some(name) = word.strip_prefix("t:") {
                        field.type_name = Some(name);
                    } else if let Some(default) = word.strip_prefix("d:") {
                        field.default = Some(default);
                    } else {
                        field.structure = structure(word).ok_or("unknown word about a field")?;
                    }
                }
            }
        }
        self.fields.push(field);
        let message = self.messages.last_mut().ok_or("there is no message yet")?;
        message.fields.end += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<Facts, ParseFactsError> {
        let by_short: HashMap<&str, PackageId> = index(self.packages.iter().map(|package| package.short));
        let mut by_name = HashMap::with_capacity(self.messages.len());
        for (position, message) in self.messages.iter().enumerate() {
            let id = MessageId(u32::try_from(position).expect("messages are fewer than fields, which were counted"));
            by_name.insert((message.package, message.name), id);
        }
        for (field, package, reference, line) in self.references {
            let (package, name) = match reference.rsplit_once('.') {
                Some((package, name)) => (by_short.get(package).copied(), name),
                None => (Some(package), reference),
            };
            let found = package.and_then(|package| by_name.get(&(package, name)));
            let id = found.ok_or(ParseFactsError {
                line,
                why: "there is no message of this name",
            })?;
            self.fields[field].element = Element::Message(*id);
        }
        let versions = self.packages.iter().enumerate();
        let by_api_version = versions
            .filter_map(|(position, package)| Some((package.api_version?, package_id(position))))
            .collect();
        let by_open_api_package = index(self.packages.iter().map(|package| package.open_api));
        let Reader {
            packages,
            messages,
            fields,
            ..
        } = Reader {
            references: Vec::new(),
            ..self
        };
        Ok(Facts {
            packages,
            messages,
            fields,
            by_name,
            by_open_api_package,
            by_api_version,
        })
    }
}

fn package_id(position: usize) -> PackageId {
    PackageId(u16::try_from(position).expect("packages were counted when they were read"))
}

fn index<'a>(names: impl Iterator<Item = &'a str>) -> HashMap<&'a str, PackageId> {
    names
        .enumerate()
        .map(|(position, name)| (name, package_id(position)))
        .collect()
}

fn cardinality(written: &'static str) -> (Cardinality, &'static str) {
    if let Some(element) = written.strip_prefix('*') {
        (Cardinality::Optional, element)
    } else if let Some(element) = written.strip_prefix("[]") {
        (Cardinality::List, element)
    } else if let Some(element) = written.strip_prefix("{}") {
        (Cardinality::Map, element)
    } else {
        (Cardinality::One, written)
    }
}

fn form(name: &str) -> Result<Form, &'static str> {
    Ok(match name {
        "items" => Form::Items,
        "time" => Form::Time,
        "micro-time" => Form::MicroTime,
        "duration" => Form::Duration,
        "quantity" => Form::Quantity,
        "int-or-string" => Form::IntOrString,
        "raw" => Form::Raw,
        "schema-or-bool" => Form::SchemaOrBool,
        "schema-or-array" => Form::SchemaOrArray,
        "schema-or-strings" => Form::SchemaOrStrings,
        _ => return Err("unknown form of a message"),
    })
}

fn structure(word: &'static str) -> Option<Structure> {
    match word {
        "la" | "ma" | "sa" => Some(Structure::Atomic),
        "ls" => Some(Structure::Set),
        _ => word.strip_prefix("lm:").map(Structure::Map),
    }
}

fn patch_strategy(text: &'static str) -> PatchStrategy {
    let (strategies, merge_key) = match text.split_once(':') {
        Some((strategies, key)) => (strategies, Some(key)),
        None => (text, None),
    };
    let has = |name| strategies.split(',').any(|strategy| strategy == name);
    PatchStrategy {
        merge: has("merge"),
        retain_keys: has("retainKeys"),
        merge_key,
    }
}
