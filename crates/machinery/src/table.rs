//! Objects as `kubectl get` shows them: `metav1.Table`, and metadata without the rest.
//!
//! A [`Printer`] knows the columns of a kind: built-in kinds have kubectl's own, custom kinds those of their definition,
//! and the rest a name and a date. Ages are told from a time that is handed in.
//!
//! ```
//! use moorline_machinery::table::{IncludeObject, Printer};
//! let pod = serde_json::json!({"metadata": {"name": "db-0", "creationTimestamp": "2026-01-01T00:00:00Z"}});
//! let now = "2026-01-01T00:05:00Z".parse().unwrap();
//! let row = Printer::builtin("v1", "Pod").row(&pod, now, IncludeObject::None);
//! assert_eq!(row["cells"][4], "5m");
//! ```

mod cells;
mod columns;
mod jsonpath;
mod pod;
mod rare;
mod subject;
mod workload;

use jiff::Timestamp;
pub use jsonpath::{JsonPath, ParseJsonPathError};
use serde_json::{Map, Value, json};
use subject::Subject;

use crate::{field::number_text, meta, time};

/// How much of an object a row carries beside its cells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata. What a server does unless told otherwise.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

impl IncludeObject {
    /// From the query parameter `includeObject`, empty where absent. `None` for other words.
    pub fn parse(parameter: &str) -> Option<Self> {
        match parameter {
            "" | "Metadata" => Some(IncludeObject::Metadata),
            "None" => Some(IncludeObject::None),
            "Object" => Some(IncludeObject::Object),
            _ => None,
        }
    }
}

/// The columns of a kind.
#[derive(Debug, Clone)]
pub struct Printer(Columns);

#[derive(Debug, Clone)]
enum Columns {
    /// Name and date of creation.
    Default,
    Builtin {
        kind: &'static str,
        columns: &'static [Column],
    },
    Custom(Vec<CustomColumn>),
}

/// A column of a built-in kind.
#[derive(Debug)]
struct Column {
    name: &'static str,
    holds: Holds,
    width: Width,
    cell: Cell,
}

#[derive(Debug, Clone, Copy)]
enum Holds {
    Text,
    /// Text that is the name of something.
    Name,
    Integer,
    Boolean,
}

/// Whether a column is shown always or in wide output only.
#[derive(Debug, Clone, Copy)]
enum Width {
    Always,
    Wide,
}

/// What stands in a cell.
#[derive(Debug)]
enum Cell {
    Name,
    Age,
    /// The text at a path, or else this, also where the text is empty.
    Text(&'static str, &'static str),
    /// The text at a path, or else this.
    Optional(&'static str, &'static str),
    /// The number at a path, or else 0.
    Integer(&'static str),
    /// The truth at a path, or else this.
    Boolean(&'static str, bool),
    /// How many elements are at a path.
    Count(&'static str),
    Computed(fn(&Subject<'_>) -> Value),
}

/// A column of a custom kind.
#[derive(Debug, Clone)]
struct CustomColumn {
    definition: Value,
    holds: String,
    path: JsonPath,
}

impl Printer {
    /// The columns of a built-in kind.
    pub fn builtin(api_version: &str, kind: &str) -> Self {
        Printer(columns::of(api_version, kind).unwrap_or(Columns::Default))
    }

    /// The columns that a custom resource definition lists for a version, or an age where it lists none.
    pub fn custom(additional_printer_columns: &[Value]) -> Result<Self, ParseJsonPathError> {
        let age = [json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})];
        let listed = if additional_printer_columns.is_empty() {
            &age
        } else {
            additional_printer_columns
        };
        listed
            .iter()
            .map(CustomColumn::read)
            .collect::<Result<_, _>>()
            .map(|columns| Printer(Columns::Custom(columns)))
    }

    /// The `columnDefinitions` of a table.
    pub fn column_definitions(&self) -> Value {
        let name = json!({"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0});
        Value::Array(match &self.0 {
            Columns::Default => vec![
                name,
                json!({"name": "Created At", "type": "date", "format": "", "description": "", "priority": 0}),
            ],
            Columns::Builtin { columns, .. } => columns.iter().map(Column::definition).collect(),
            Columns::Custom(columns) => std::iter::once(name)
                .chain(columns.iter().map(|column| column.definition.clone()))
                .collect(),
        })
    }

    /// One row.
    pub fn row(&self, object: &Value, now: Timestamp, include: IncludeObject) -> Value {
        let subject = Subject::new(object, now);
        let cells = match &self.0 {
            Columns::Default => {
                let created = meta::of(object).creation_timestamp().unwrap_or("0001-01-01T00:00:00Z");
                vec![subject.name().into(), created.into()]
            }
            Columns::Builtin { columns, .. } => columns.iter().map(|column| column.cell.of(&subject)).collect(),
            Columns::Custom(columns) => std::iter::once(subject.name().into())
                .chain(columns.iter().map(|column| column.cell(object, now)))
                .collect(),
        };
        let mut row = json!({"cells": cells, "object": included(object, include)});
        if let Columns::Builtin { kind: "Pod", .. } = self.0
            && let Some(conditions) = pod::row_conditions(object)
        {
            row["conditions"] = conditions;
        }
        row
    }

    /// A table of one object or of a list. Watches leave the columns out after the first event.
    pub fn table(&self, object: &Value, now: Timestamp, include: IncludeObject, headers: Headers) -> Value {
        let items = object.get("items").and_then(Value::as_array);
        let metadata = meta::of(object).as_map();
        let kept = ["resourceVersion", "continue", "remainingItemCount"];
        let metadata: Map<String, Value> = metadata
            .into_iter()
            .flatten()
            .filter(|(key, _)| kept.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let rows: Vec<Value> = match items {
            Some(items) => items.iter().map(|item| self.row(item, now, include)).collect(),
            None => vec![self.row(object, now, include)],
        };
        let columns = if headers == Headers::Shown {
            self.column_definitions()
        } else {
            Value::Null
        };
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns,
            "rows": rows,
        })
    }
}

/// Whether a table tells its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Headers {
    /// It does.
    Shown,
    /// An earlier table of the same watch did.
    Omitted,
}

/// The metadata of an object, as a `PartialObjectMetadata`.
pub fn partial_object_metadata(object: &Value) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// The metadata of the objects in a list, as a `PartialObjectMetadataList`.
pub fn partial_object_metadata_list(list: &Value) -> Value {
    let items: Vec<Value> = list
        .get("items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(partial_object_metadata)
        .collect();
    let metadata = list.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items})
}

fn included(object: &Value, include: IncludeObject) -> Value {
    match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => partial_object_metadata(object),
        IncludeObject::Object => object.clone(),
    }
}

impl Column {
    fn definition(&self) -> Value {
        let holds = match self.holds {
            Holds::Text | Holds::Name => "string",
            Holds::Integer => "integer",
            Holds::Boolean => "boolean",
        };
        let is_name = matches!(self.holds, Holds::Name) || matches!(self.cell, Cell::Name) || self.name == "Name";
        let format = if is_name { "name" } else { "" };
        let priority = match self.width {
            Width::Always => 0,
            Width::Wide => 1,
        };
        json!({"name": self.name, "type": holds, "format": format, "description": "", "priority": priority})
    }
}

impl Cell {
    fn of(&self, subject: &Subject<'_>) -> Value {
        match self {
            Cell::Name => subject.name().into(),
            Cell::Age => subject.age().into(),
            Cell::Text(path, otherwise) => subject.text_or(path, otherwise).into(),
            Cell::Optional(path, otherwise) => subject.at(path).and_then(Value::as_str).unwrap_or(otherwise).into(),
            Cell::Integer(path) => subject.integer(path).into(),
            Cell::Boolean(path, otherwise) => subject.at(path).and_then(Value::as_bool).unwrap_or(*otherwise).into(),
            Cell::Count(path) => subject.count(path).into(),
            Cell::Computed(compute) => compute(subject),
        }
    }
}

impl CustomColumn {
    fn read(column: &Value) -> Result<Self, ParseJsonPathError> {
        let text = |key| column.get(key).and_then(Value::as_str).unwrap_or_default();
        let path: JsonPath = text("jsonPath").parse()?;
        let description = match text("description") {
            "" => format!(
                "Custom resource definition column (in JSONPath format): {}",
                text("jsonPath")
            ),
            given => given.to_owned(),
        };
        let priority = column.get("priority").and_then(Value::as_i64).unwrap_or_default();
        let definition = json!({
            "name": text("name"), "type": text("type"), "format": text("format"), "description": description,
            "priority": priority,
        });
        Ok(CustomColumn {
            definition,
            holds: text("type").to_owned(),
            path,
        })
    }

    /// A value of another type than the column's is shown as nothing.
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(found) = self.path.first(object) else {
            return Value::Null;
        };
        match (self.holds.as_str(), found) {
            (_, Value::Null) => Value::Null,
            ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => found.clone(),
            ("string", Value::Number(number)) => number_text(number).into(),
            ("string", other) => other.to_string().into(),
            ("integer", Value::Number(number)) => {
                #[expect(clippy::cast_possible_truncation, reason = "fractions are cut off, as in Go")]
                let truncated = || number.as_f64().map(|float| float as i64);
                number.as_i64().or_else(truncated).into()
            }
            ("number", Value::Number(number)) => number.as_f64().into(),
            ("date", Value::String(text)) => match time::parse(text) {
                Ok(then) => time::age(then, now).into(),
                Err(_) => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests;
