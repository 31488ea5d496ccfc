//! One compiled expression, checked for names that nobody declared.

use std::collections::HashSet;

use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::environment;
use super::expand::{Literals, expand};
use super::value::{escaped, from_cel, to_cel};
use crate::schema::node::{Additional, Place, Type};

/// A compiled condition over named JSON values, such as a match condition of a webhook over `object`, `oldObject` and
/// `request`.
#[derive(Debug)]
pub struct Program(Expression);

/// Why an expression cannot be compiled or evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CelError {
    /// The expression is malformed or speaks of things that are not there.
    #[error("compilation failed: {0}")]
    Compile(String),
    /// The expression cannot be evaluated on these values, or does not say true or false.
    #[error("evaluation failed: {0}")]
    Evaluate(String),
}

impl Program {
    /// Compiles an expression that may speak of `variables`.
    pub fn compile(source: &str, variables: &[&str]) -> Result<Self, CelError> {
        Expression::compile(source, variables)
            .map(Self)
            .map_err(CelError::Compile)
    }

    /// The same for an expression that makes an object or a list of patch operations.
    pub fn compile_mutation(source: &str, variables: &[&str]) -> Result<Self, CelError> {
        Expression::compile_with(source, variables, Literals::Objects)
            .map(Self)
            .map_err(CelError::Compile)
    }

    /// What the expression comes to, as JSON.
    pub fn evaluate(&self, bindings: &[(&str, &Value)]) -> Result<Value, CelError> {
        let mut context = environment::scope();
        for (name, value) in bindings {
            context.add_variable_from_value(*name, to_cel(value, None));
        }
        let value = Cel::resolve(&self.0.ast, &context).map_err(|error| lower_first(&error.to_string()));
        value.and_then(|value| from_cel(&value)).map_err(CelError::Evaluate)
    }

    /// Whether the condition holds. Each variable that was declared should be bound; one that is not is an error once
    /// it is needed.
    pub fn matches(&self, bindings: &[(&str, &Value)]) -> Result<bool, CelError> {
        let mut context = environment::scope();
        for (name, value) in bindings {
            context.add_variable_from_value(*name, to_cel(value, None));
        }
        self.0.evaluate_bool(&context).map_err(CelError::Evaluate)
    }
}

/// Parsing and evaluating recurse, as deep as an expression is nested or chained, and a stack has an end.
///
/// So both are bounded before they begin: brackets that are open at once, signs that make operators, and links of
/// member chains (`a.b[c](d)`), the latter two all told.
fn within_reason(source: &str) -> Result<(), String> {
    const NESTED: usize = 48;
    const SIGNS: usize = 600;
    const LINKS: usize = 1000;
    let (mut open, mut signs, mut links) = (0_usize, 0_usize, 0_usize);
    let mut quote = None;
    let mut escaped = false;
    for character in source.chars() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if character == '\\' => escaped = true,
            Some(mark) if character == mark => quote = None,
            Some(_) => {}
            None => match character {
                '"' | '\'' => quote = Some(character),
                '(' | '[' | '{' => {
                    open += 1;
                    links += 1;
                }
                '.' => links += 1,
                ')' | ']' | '}' => open = open.saturating_sub(1),
                '+' | '-' | '*' | '/' | '%' | '<' | '>' | '=' | '!' | '&' | '|' | '?' | ':' => signs += 1,
                _ => {}
            },
        }
        if open > NESTED || signs > SIGNS || links > LINKS {
            return Err("the expression is nested too deeply or too long to be evaluated".to_owned());
        }
    }
    Ok(())
}

/// Parses on a stack of its own.
///
/// The parser goes through every level of precedence for every bracket and looks back over all of them when it is in
/// doubt, which depends on what it has seen before: an expression within reason can take more than the two mebibytes
/// of an ordinary thread. Of this stack, only what is used is ever there.
fn parse(source: &str) -> Result<IdedExpr, String> {
    const STACK: usize = 64 << 20;
    let parse = || {
        let parsed = Parser::new().enable_optional_syntax(true).parse(source);
        parsed.map_err(|errors| {
            let errors = errors.errors.iter().map(|error| format!("Syntax error: {}", error.msg));
            errors.collect::<Vec<_>>().join(", ")
        })
    };
    std::thread::scope(|scope| {
        let parsing = std::thread::Builder::new()
            .name("cel".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, parse)
            .map_err(|error| format!("the expression cannot be parsed for want of a thread: {error}"))?;
        // It counts its depth down past nothing on some sources that are no expression, and panics.
        parsing
            .join()
            .map_err(|_| "the expression cannot be parsed".to_owned())?
    })
}

#[derive(Debug)]
pub(super) struct Expression {
    ast: IdedExpr,
    mentioned: HashSet<String>,
}

impl Expression {
    pub(super) fn compile(source: &str, variables: &[&str]) -> Result<Self, String> {
        Self::compile_with(source, variables, Literals::Refused)
    }

    fn compile_with(source: &str, variables: &[&str], literals: Literals) -> Result<Self, String> {
        within_reason(source)?;
        let ast = expand(parse(source)?, literals)?;
        let mut names = Names {
            scope: Vec::new(),
            mentioned: HashSet::new(),
        };
        names.scope.extend(variables.iter().map(|name| (*name).to_owned()));
        names.walk(&ast)?;
        Ok(Self {
            ast,
            mentioned: names.mentioned,
        })
    }

    pub(super) fn mentions(&self, variable: &str) -> bool {
        self.mentioned.contains(variable)
    }

    pub(super) fn evaluate_bool(&self, context: &Context<'_>) -> Result<bool, String> {
        match Cel::resolve(&self.ast, context) {
            Ok(Cel::Bool(bool)) => Ok(bool),
            Ok(other) => Err(format!("expected a bool, got {}", other.type_of())),
            Err(error) => Err(lower_first(&error.to_string())),
        }
    }

    /// A message, unless it is none: empty, of several lines, or an error.
    pub(super) fn evaluate_text(&self, context: &Context<'_>) -> Option<String> {
        const LONGEST: usize = 5 * 1024;
        let Ok(Cel::String(text)) = Cel::resolve(&self.ast, context) else {
            return None;
        };
        let text = text.trim();
        let usable = !text.is_empty() && !text.contains(['\n', '\r']) && text.len() <= LONGEST;
        usable.then(|| text.to_owned())
    }

    /// What the expression gets wrong about values with these schemas, or about its result.
    pub(super) fn misfit<'a>(&self, scope: &[(&'a str, Option<Place<'a>>)], result: Type) -> Option<String> {
        let mut fields = Fields {
            scope: scope.iter().map(|(name, place)| ((*name).to_owned(), *place)).collect(),
        };
        let place = match fields.walk(&self.ast) {
            Ok(place) => place,
            Err(reason) => return Some(reason),
        };
        let literal = matches!(&self.ast.expr, Expr::Literal(literal) if match literal {
            LiteralValue::Boolean(_) => result != Type::Boolean,
            LiteralValue::String(_) => result != Type::String,
            _ => true,
        });
        let field = matches!(self.ast.expr, Expr::Select(ref select) if !select.test)
            && place
                .and_then(|place| place.node.kind)
                .is_some_and(|kind| kind != result);
        let expected = if result == Type::Boolean { "bool" } else { "string" };
        (literal || field).then(|| format!("must evaluate to {expected}"))
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// Finds variables and functions that are not there.
struct Names {
    scope: Vec<String>,
    mentioned: HashSet<String>,
}

impl Names {
    fn walk(&mut self, expression: &IdedExpr) -> Result<(), String> {
        match &expression.expr {
            Expr::Ident(name) => {
                self.mentioned.insert(name.clone());
                if self.scope.contains(name) || environment::TYPES.contains(&name.as_str()) {
                    return Ok(());
                }
                Err(format!("undeclared reference to '{name}' (in container '')"))
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(fold) => {
                self.walk(&fold.iter_range)?;
                self.walk(&fold.accu_init)?;
                let depth = self.scope.len();
                self.scope.extend([fold.iter_var.clone(), fold.accu_var.clone()]);
                let inside = [&fold.loop_cond, &fold.loop_step, &fold.result]
                    .into_iter()
                    .try_for_each(|part| self.walk(part));
                self.scope.truncate(depth);
                inside
            }
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.walk(element)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => self.walk(&entry.key).and_then(|()| self.walk(&entry.value)),
                EntryExpr::StructField(_) => Ok(()),
            }),
            Expr::Select(select) => {
                let qualified = is_namespace(&select.operand, &select.field);
                if qualified { Ok(()) } else { self.walk(&select.operand) }
            }
            Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => Ok(()),
        }
    }

    fn call(&mut self, call: &CallExpr) -> Result<(), String> {
        let is_operator = !call.func_name.starts_with(|c: char| c.is_ascii_alphabetic());
        let qualified = call
            .target
            .as_deref()
            .is_some_and(|target| is_namespace(target, &call.func_name));
        if !is_operator && !qualified && !environment::knows(&call.func_name) {
            return Err(format!(
                "undeclared reference to '{}' (in container '')",
                call.func_name
            ));
        }
        if let Some(target) = call.target.as_deref().filter(|_| !qualified) {
            self.walk(target)?;
        }
        call.args.iter().try_for_each(|arg| self.walk(arg))
    }
}

/// Whether `target.name` is one function, as in `sets.contains`.
fn is_namespace(target: &IdedExpr, name: &str) -> bool {
    matches!(&target.expr, Expr::Ident(namespace) if environment::knows(&format!("{namespace}.{name}")))
}

/// Follows what an expression selects through the schema and finds fields that are not there.
struct Fields<'a> {
    scope: Vec<(String, Option<Place<'a>>)>,
}

impl<'a> Fields<'a> {
    fn walk(&mut self, expression: &IdedExpr) -> Result<Option<Place<'a>>, String> {
        match &expression.expr {
            Expr::Ident(name) => Ok(self
                .scope
                .iter()
                .rev()
                .find(|(n, _)| n == name)
                .and_then(|(_, place)| *place)),
            Expr::Select(select) => match self.walk(&select.operand)? {
                Some(place) => field(place, &select.field),
                None => Ok(None),
            },
            Expr::Call(call) => {
                if let Some(target) = &call.target {
                    self.walk(target)?;
                }
                let mut places = Vec::with_capacity(call.args.len());
                for arg in &call.args {
                    places.push(self.walk(arg)?);
                }
                let container = places
                    .first()
                    .copied()
                    .flatten()
                    .filter(|_| call.func_name == operators::INDEX);
                Ok(container.and_then(|place| place.items().or_else(|| place.additional())))
            }
            Expr::Comprehension(fold) => {
                let range = self.walk(&fold.iter_range)?;
                let start = self.walk(&fold.accu_init)?;
                let depth = self.scope.len();
                self.scope.push((fold.iter_var.clone(), range.and_then(Place::items)));
                self.scope.push((fold.accu_var.clone(), start));
                let mut inside = Ok(None);
                for part in [&fold.loop_cond, &fold.loop_step, &fold.result] {
                    inside = self.walk(part);
                    if inside.is_err() {
                        break;
                    }
                }
                self.scope.truncate(depth);
                inside
            }
            Expr::List(list) => list
                .elements
                .iter()
                .try_for_each(|e| self.walk(e).map(drop))
                .map(|()| None),
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.walk(&entry.value)?;
                    }
                }
                Ok(None)
            }
            Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => Ok(None),
        }
    }
}

fn field<'a>(place: Place<'a>, name: &str) -> Result<Option<Place<'a>>, String> {
    if !matches!(place.node.additional, Additional::Unspecified) {
        return Ok(place.additional());
    }
    let known = place
        .node
        .properties
        .iter()
        .find(|(property, _)| escaped(property) == name);
    match known {
        Some((_, node)) => Ok(Some(place.at(node))),
        None if place.node.kind == Some(Type::Object) => Err(format!("undefined field '{name}'")),
        None => Ok(None),
    }
}
