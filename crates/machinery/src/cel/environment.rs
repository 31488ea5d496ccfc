//! The names that expressions may use: CEL's, Kubernetes' and the few that expanded macros call.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use kube_cel::KubeCelExt as _;
use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr};
use kube_cel::cel::objects::{Key, Map, OptionalValue};
use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value};

static BASE: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default().with_all();
    context.add_function("dyn", |value: Value| -> ResolveResult { Ok(value) });
    context.add_function("type", |value: Value| -> ResolveResult {
        Ok(Value::String(Arc::new(type_name(&value).to_owned())))
    });
    context.add_function(OPTIONAL_SELECT, select);
    context.add_function(TO_LIST, to_list);
    context.add_function(KEYS, keys);
    context.add_function(PUT, put);
    context.add_function(SORT_BY, sort_by);
    for name in TYPES {
        context.add_variable_from_value(name, Value::String(Arc::new(name.to_owned())));
    }
    context
});

/// `@select(value, key)`: what is there, as an optional.
pub(super) const OPTIONAL_SELECT: &str = "@select";
/// `@list(optional)`: one item or none.
pub(super) const TO_LIST: &str = "@list";
/// `@keys(value)`: indexes of a list, keys of a map.
pub(super) const KEYS: &str = "@keys";
/// `@put(map, key, value)`: the map with one entry more.
pub(super) const PUT: &str = "@put";
/// `@sortBy(list, keys)`: the list in the order of as many keys.
pub(super) const SORT_BY: &str = "@sortBy";

/// Names of types, which are values in CEL.
pub(super) const TYPES: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

/// A fresh scope over the shared functions.
pub(super) fn scope() -> Context<'static> {
    BASE.new_inner_scope()
}

/// Whether a function, or a method, of this name is known.
pub(super) fn knows(function: &str) -> bool {
    let call = CallExpr {
        func_name: function.to_owned(),
        target: None,
        args: Vec::new(),
    };
    let probe = IdedExpr {
        id: 0,
        expr: Expr::Call(call),
    };
    !matches!(Value::resolve(&probe, &BASE), Err(ExecutionError::UndeclaredReference(name)) if *name == function)
}

pub(super) fn optional(value: Option<Value>) -> Value {
    Value::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Int(_) => "int",
        Value::UInt(_) => "uint",
        Value::Float(_) => "double",
        Value::String(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "bool",
        Value::Null => "null_type",
        Value::Duration(_) => "google.protobuf.Duration",
        Value::Timestamp(_) => "google.protobuf.Timestamp",
        Value::Function(..) | Value::Opaque(_) => "type",
    }
}

fn select(operand: Value, key: Value) -> Result<Value, ExecutionError> {
    if let Ok(inner) = <&OptionalValue>::try_from(&operand) {
        return inner
            .value()
            .map_or_else(|| Ok(optional(None)), |value| select(value.clone(), key));
    }
    match (operand, key) {
        (Value::Map(map), Value::String(key)) => Ok(optional(map.map.get(&Key::String(key)).cloned())),
        (Value::Map(map), Value::Int(key)) => Ok(optional(map.map.get(&Key::Int(key)).cloned())),
        (Value::List(items), Value::Int(index)) => Ok(optional(
            usize::try_from(index).ok().and_then(|index| items.get(index)).cloned(),
        )),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "functions of the evaluator take values")]
fn to_list(value: Value) -> Result<Value, ExecutionError> {
    let optional = <&OptionalValue>::try_from(&value)?;
    Ok(Value::List(Arc::new(optional.value().cloned().into_iter().collect())))
}

fn keys(value: Value) -> Result<Value, ExecutionError> {
    match value {
        Value::List(items) => {
            let last = i64::try_from(items.len()).expect("a list fits into memory");
            Ok(Value::List(Arc::new((0..last).map(Value::Int).collect())))
        }
        Value::Map(map) => {
            let mut keys: Vec<_> = map.map.keys().cloned().collect();
            keys.sort();
            Ok(Value::List(Arc::new(keys.into_iter().map(Value::from).collect())))
        }
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn put(map: Value, key: Value, value: Value) -> Result<Value, ExecutionError> {
    let Value::Map(map) = map else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let key = match key {
        Value::String(key) => Key::String(key),
        Value::Int(key) => Key::Int(key),
        Value::UInt(key) => Key::Uint(key),
        Value::Bool(key) => Key::Bool(key),
        other => return Err(ExecutionError::UnsupportedKeyType(other)),
    };
    let mut entries: HashMap<_, _> = (*map.map).clone();
    entries.insert(key, value);
    Ok(Value::Map(Map { map: Arc::new(entries) }))
}

fn sort_by(list: Value, keys: Value) -> Result<Value, ExecutionError> {
    let (Value::List(items), Value::List(keys)) = (list, keys) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let mut incomparable = None;
    let mut order: Vec<usize> = (0..items.len().min(keys.len())).collect();
    order.sort_by(|a, b| {
        keys[*a].partial_cmp(&keys[*b]).unwrap_or_else(|| {
            incomparable = Some((keys[*a].clone(), keys[*b].clone()));
            Ordering::Equal
        })
    });
    match incomparable {
        Some((a, b)) => Err(ExecutionError::ValuesNotComparable(a, b)),
        None => Ok(Value::List(Arc::new(
            order.into_iter().map(|index| items[index].clone()).collect(),
        ))),
    }
}
