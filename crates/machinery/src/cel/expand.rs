//! Macros that the evaluator lacks, written in terms of those that it has.

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue, MapEntryExpr,
    MapExpr, StructExpr, operators,
};

use super::environment::{KEYS, OPTIONAL_SELECT, PUT, SORT_BY, TO_LIST};

/// Rewrites an expression; the reason why not, if it uses something that cannot be evaluated.
pub(super) fn expand(expression: IdedExpr, literals: Literals) -> Result<IdedExpr, String> {
    Expander { names: 0, literals }.walk(expression)
}

/// Whether objects can be written out, as in `Object{spec: Object.spec{replicas: 1}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Literals {
    /// Expressions judge and make nothing.
    Refused,
    /// Expressions make objects, or patches.
    Objects,
}

/// Whether a type is one of those that mutations are made of.
fn makes_object(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

struct Expander {
    names: usize,
    literals: Literals,
}

impl Expander {
    fn walk(&mut self, IdedExpr { id, expr }: IdedExpr) -> Result<IdedExpr, String> {
        let expr = match expr {
            Expr::Call(call) => return self.call(call),
            Expr::Comprehension(mut fold) => {
                for part in [
                    &mut fold.iter_range,
                    &mut fold.accu_init,
                    &mut fold.loop_cond,
                    &mut fold.loop_step,
                    &mut fold.result,
                ] {
                    *part = self.walk(std::mem::take(part))?;
                }
                Expr::Comprehension(fold)
            }
            Expr::List(mut list) => {
                list.elements = list
                    .elements
                    .into_iter()
                    .map(|e| self.walk(e))
                    .collect::<Result<_, _>>()?;
                Expr::List(list)
            }
            Expr::Map(mut map) => {
                for entry in &mut map.entries {
                    match &mut entry.expr {
                        EntryExpr::MapEntry(entry) => {
                            entry.key = self.walk(std::mem::take(&mut entry.key))?;
                            entry.value = self.walk(std::mem::take(&mut entry.value))?;
                        }
                        EntryExpr::StructField(_) => return Err("field in a map literal".to_owned()),
                    }
                }
                Expr::Map(map)
            }
            Expr::Select(mut select) => {
                *select.operand = self.walk(std::mem::take(&mut *select.operand))?;
                Expr::Select(select)
            }
            Expr::Struct(literal) if self.literals == Literals::Objects && makes_object(&literal.type_name) => {
                Expr::Map(self.object(literal)?)
            }
            Expr::Struct(literal) => return Err(format!("undeclared reference to '{}'", literal.type_name)),
            Expr::Unspecified => return Err("empty expression".to_owned()),
            other => other,
        };
        Ok(IdedExpr { id, expr })
    }

    /// An object that is written out, as the map that it is.
    fn object(&mut self, literal: StructExpr) -> Result<MapExpr, String> {
        let mut entries = Vec::with_capacity(literal.entries.len());
        for IdedEntryExpr { id, expr } in literal.entries {
            let EntryExpr::StructField(field) = expr else {
                return Err("entry of a map in an object".to_owned());
            };
            let key = IdedExpr {
                id,
                expr: Expr::Literal(LiteralValue::String(field.field.into())),
            };
            let value = self.walk(field.value)?;
            let expr = EntryExpr::MapEntry(MapEntryExpr {
                key,
                value,
                optional: field.optional,
            });
            entries.push(IdedEntryExpr { id, expr });
        }
        Ok(MapExpr { entries })
    }

    fn call(
        &mut self,
        CallExpr {
            func_name,
            target,
            args,
        }: CallExpr,
    ) -> Result<IdedExpr, String> {
        let name = |index: usize| match args.get(index).map(|arg| &arg.expr) {
            Some(Expr::Ident(name)) => Some(name.clone()),
            _ => None,
        };
        let is_cel = matches!(target.as_deref(), Some(IdedExpr { expr: Expr::Ident(ns), .. }) if ns == "cel");
        let (first, second) = (name(0), name(1));
        let mut args = args
            .into_iter()
            .map(|arg| self.walk(arg))
            .collect::<Result<Vec<_>, _>>()?;
        match (func_name.as_str(), target, first, second, args.len()) {
            (operators::OPT_SELECT | operators::OPT_INDEX, None, _, _, 2) => Ok(function(OPTIONAL_SELECT, args)),
            ("bind", Some(_), Some(variable), _, 3) if is_cel => {
                let body = args.remove(2);
                Ok(bind(&variable, args.remove(1), body))
            }
            (
                macro_name @ ("all" | "exists" | "existsOne" | "exists_one" | "transformList" | "transformMap"),
                Some(range),
                Some(key),
                Some(value),
                3 | 4,
            ) => {
                let range = self.walk(*range)?;
                let body = args.pop().expect("there are at least three arguments");
                let filter = if args.len() == 3 { args.pop() } else { None };
                if filter.is_some() && !macro_name.starts_with("transform") {
                    return Err(format!("'{macro_name}' takes two variables and a condition"));
                }
                Ok(self.two_variables(macro_name, range, &key, &value, filter.as_ref(), body))
            }
            ("sortBy", Some(list), Some(variable), _, 2) => {
                let list = self.walk(*list)?;
                let held = self.fresh();
                let keys = collect(ident(&held), &variable, args.remove(1));
                Ok(bind(&held, list, function(SORT_BY, vec![ident(&held), keys])))
            }
            (map @ ("optMap" | "optFlatMap"), Some(optional), Some(variable), _, 2) => {
                let optional = self.walk(*optional)?;
                let held = self.fresh();
                let first = function(operators::INDEX, vec![ident(&held), int(0)]);
                let mapped = bind(&variable, first, args.remove(1));
                let of = |value| method(ident("optional"), "of", vec![value]);
                let some = if map == "optMap" { of(mapped) } else { mapped };
                let none = method(ident("optional"), "none", vec![]);
                let has = function(operators::GREATER, vec![function("size", vec![ident(&held)]), int(0)]);
                let chosen = function(operators::CONDITIONAL, vec![has, some, none]);
                // The evaluator unwraps an optional that is bound to a name, so a list stands in for it.
                Ok(bind(&held, function(TO_LIST, vec![optional]), chosen))
            }
            (_, target, ..) => {
                let target = target.map(|target| self.walk(*target)).transpose()?.map(Box::new);
                Ok(ided(Expr::Call(CallExpr {
                    func_name,
                    target,
                    args,
                })))
            }
        }
    }

    /// A fold over the keys of a list or map, with the value under each key bound too.
    fn two_variables(
        &mut self,
        macro_name: &str,
        range: IdedExpr,
        key: &str,
        value: &str,
        filter: Option<&IdedExpr>,
        body: IdedExpr,
    ) -> IdedExpr {
        let held = self.fresh();
        let with_value = |body| bind(value, function(operators::INDEX, vec![ident(&held), ident(key)]), body);
        let so_far = || ident(RESULT);
        let always = || bool(true);
        let fold = |init, condition, step, result| {
            ided(Expr::Comprehension(Box::new(ComprehensionExpr {
                iter_range: function(KEYS, vec![ident(&held)]),
                iter_var: key.to_owned(),
                iter_var2: None,
                accu_var: RESULT.to_owned(),
                accu_init: init,
                loop_cond: condition,
                loop_step: step,
                result,
            })))
        };
        let chosen = |step: IdedExpr| match filter {
            Some(filter) => function(operators::CONDITIONAL, vec![filter.clone(), step, so_far()]),
            None => step,
        };
        let folded = match macro_name {
            "all" => {
                let step = function(operators::LOGICAL_AND, vec![so_far(), with_value(body)]);
                fold(bool(true), so_far(), step, so_far())
            }
            "exists" => {
                let step = function(operators::LOGICAL_OR, vec![so_far(), with_value(body)]);
                fold(
                    bool(false),
                    function(operators::LOGICAL_NOT, vec![so_far()]),
                    step,
                    so_far(),
                )
            }
            "transformList" => {
                let item = ided(Expr::List(ListExpr::new(vec![body])));
                let step = with_value(chosen(function(operators::ADD, vec![so_far(), item])));
                fold(ided(Expr::List(ListExpr::new(vec![]))), always(), step, so_far())
            }
            "transformMap" => {
                let step = with_value(chosen(function(PUT, vec![so_far(), ident(key), body])));
                fold(ided(Expr::Map(MapExpr::default())), always(), step, so_far())
            }
            _ => {
                let more = function(operators::ADD, vec![so_far(), int(1)]);
                let step = function(operators::CONDITIONAL, vec![with_value(body), more, so_far()]);
                fold(
                    int(0),
                    always(),
                    step,
                    function(operators::EQUALS, vec![so_far(), int(1)]),
                )
            }
        };
        bind(&held, range, folded)
    }

    /// A variable that no expression can name.
    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("@{}", self.names)
    }
}

const RESULT: &str = "@result";

fn ided(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn ident(name: &str) -> IdedExpr {
    ided(Expr::Ident(name.to_owned()))
}

fn bool(value: bool) -> IdedExpr {
    ided(Expr::Literal(LiteralValue::Boolean(value.into())))
}

fn int(value: i64) -> IdedExpr {
    ided(Expr::Literal(LiteralValue::Int(value.into())))
}

fn function(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    ided(Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: None,
        args,
    }))
}

fn method(target: IdedExpr, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    ided(Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: Some(Box::new(target)),
        args,
    }))
}

/// `variable` stands for `value` in `body`: a fold over nothing.
fn bind(variable: &str, value: IdedExpr, body: IdedExpr) -> IdedExpr {
    ided(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: ided(Expr::List(ListExpr::new(vec![]))),
        iter_var: "@unused".to_owned(),
        iter_var2: None,
        accu_var: variable.to_owned(),
        accu_init: value,
        loop_cond: bool(false),
        loop_step: ident(variable),
        result: body,
    })))
}

/// The list of `body` for each item.
fn collect(range: IdedExpr, variable: &str, body: IdedExpr) -> IdedExpr {
    let item = ided(Expr::List(ListExpr::new(vec![body])));
    let step = function(operators::ADD, vec![ident(RESULT), item]);
    ided(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: range,
        iter_var: variable.to_owned(),
        iter_var2: None,
        accu_var: RESULT.to_owned(),
        accu_init: ided(Expr::List(ListExpr::new(vec![]))),
        loop_cond: bool(true),
        loop_step: step,
        result: ident(RESULT),
    })))
}
