//! The query-string syntax of label selectors.
//!
//! ```text
//!   selector    = [ requirement { "," requirement } ]
//!   requirement = [ "!" ] key | key ( "=" | "==" | "!=" | ">" | "<" ) [ value ] | key ( "in" | "notin" ) values
//!   values      = "(" [ value ] { "," [ value ] } ")"
//! ```
//!
//! `in` and `notin` are words of the language only where an operator can stand; elsewhere they are names like others.

use super::{
    SelectorError,
    labels::{Requirement, Test, check_key},
};
use crate::field::{FieldError, Path};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    End,
    Word(&'a str),
    /// One of `= == != > < ! ( ) ,`.
    Symbol(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::End => "",
            Token::Word(text) | Token::Symbol(text) => text,
        }
    }

    fn starts_requirement(self) -> bool {
        matches!(self, Token::Word(_) | Token::Symbol("!"))
    }

    fn ends_requirement(self) -> bool {
        matches!(self, Token::End | Token::Symbol(","))
    }
}

pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut tokens = Tokens { rest: text };
    let mut requirements = Vec::new();
    loop {
        let token = tokens.peek();
        if token == Token::End {
            return Ok(requirements);
        }
        if !token.starts_requirement() {
            return Err(found(token, ", expected: !, identifier, or 'end of string'"));
        }
        let requirement = requirement(&mut tokens)
            .map_err(|SelectorError(why)| SelectorError(format!("unable to parse requirement: {why}")))?;
        requirements.push(requirement);
        match tokens.next() {
            Token::End => return Ok(requirements),
            Token::Symbol(",") if tokens.peek().starts_requirement() => {}
            Token::Symbol(",") => return Err(found(tokens.peek(), ", expected: identifier after ','")),
            other => return Err(found(other, ", expected: ',' or 'end of string'")),
        }
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, SelectorError> {
    let mut token = tokens.next();
    let negated = token == Token::Symbol("!");
    if negated {
        token = tokens.next();
    }
    let Token::Word(key) = token else {
        return Err(found(token, ", expected: identifier"));
    };
    let mut errors = Vec::new();
    check_key(key, &Path::OBJECT, &mut errors);
    if let Some(error) = errors.first() {
        return Err(SelectorError(error.to_string()));
    }
    if negated {
        return Requirement::new(key, Test::DoesNotExist);
    }
    if tokens.peek().ends_requirement() {
        return Requirement::new(key, Test::Exists);
    }
    let test = match tokens.next() {
        Token::Word("in") => Test::In(values(tokens)?),
        Token::Word("notin") => Test::NotIn(values(tokens)?),
        Token::Symbol("=") => Test::Equals(exact_value(tokens)?),
        Token::Symbol("==") => Test::DoubleEquals(exact_value(tokens)?),
        Token::Symbol("!=") => Test::NotEquals(exact_value(tokens)?),
        Token::Symbol(">") => Test::GreaterThan(bound(&exact_value(tokens)?)?),
        Token::Symbol("<") => Test::LessThan(bound(&exact_value(tokens)?)?),
        other => return Err(found(other, ", expected: in, notin, =, ==, !=, gt, lt")),
    };
    Requirement::new(key, test)
}

fn exact_value(tokens: &mut Tokens<'_>) -> Result<String, SelectorError> {
    if tokens.peek().ends_requirement() {
        return Ok(String::new());
    }
    match tokens.next() {
        Token::Word(value) => Ok(value.to_owned()),
        other => Err(found(other, ", expected: identifier")),
    }
}

fn bound(value: &str) -> Result<i64, SelectorError> {
    value.parse().map_err(|_| {
        let values = Path::OBJECT.child("values");
        let why = "for 'Gt', 'Lt' operators, the value must be an integer";
        SelectorError(FieldError::invalid(&values.index(0), value, why).to_string())
    })
}

fn values(tokens: &mut Tokens<'_>) -> Result<Vec<String>, SelectorError> {
    let open = tokens.next();
    if open != Token::Symbol("(") {
        return Err(found(open, " expected: '('"));
    }
    let mut values = Vec::new();
    // Set after a comma, or at the start: what stands here, if only the empty text, is a value.
    let mut due = true;
    loop {
        match tokens.next() {
            Token::Word(value) if due => {
                values.push(value.to_owned());
                due = false;
            }
            Token::Symbol(",") => {
                if due {
                    values.push(String::new());
                }
                due = true;
            }
            Token::Symbol(")") => {
                if due {
                    values.push(String::new());
                }
                return Ok(values);
            }
            other if due && values.is_empty() => return Err(found(other, ", expected: ',', ')' or identifier")),
            other if due => return Err(found(other, ", expected: ',', or identifier")),
            other => return Err(found(other, ", expected: ',' or ')'")),
        }
    }
}

fn found(token: Token<'_>, expected: &str) -> SelectorError {
    SelectorError(format!("found '{}'{expected}", token.text()))
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn peek(&self) -> Token<'a> {
        self.split().0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.split();
        self.rest = rest;
        token
    }

    fn split(&self) -> (Token<'a>, &'a str) {
        let rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let is_symbol = |character| matches!(character, '=' | '!' | '(' | ')' | ',' | '>' | '<');
        match rest.chars().next() {
            // Go reads a zero byte as the end.
            None | Some('\0') => (Token::End, ""),
            Some(first) if is_symbol(first) => {
                let length = if rest.starts_with("==") || rest.starts_with("!=") {
                    2
                } else {
                    1
                };
                let (symbol, rest) = rest.split_at(length);
                (Token::Symbol(symbol), rest)
            }
            Some(_) => {
                let ends = |character| is_symbol(character) || matches!(character, ' ' | '\t' | '\r' | '\n' | '\0');
                let (word, rest) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
                (Token::Word(word), rest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_and_empty_values_are_fine() {
        for (text, count) in [
            (" a = b , c ", 2),
            ("a=", 1),
            ("a=,b", 2),
            ("a in ()", 1),
            ("a in (,)", 1),
            ("", 0),
        ] {
            assert_eq!(requirements(text).unwrap().len(), count, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_in_kubernetes_words() {
        for (text, error) in [
            ("=a", "found '=', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            (
                "a in (b c)",
                "unable to parse requirement: found 'c', expected: ',' or ')'",
            ),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            (
                "a in (=",
                "unable to parse requirement: found '=', expected: ',', ')' or identifier",
            ),
            ("!!a", "unable to parse requirement: found '!', expected: identifier"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a==!", "unable to parse requirement: found '!', expected: identifier"),
            (
                "a>b",
                "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must \
                 be an integer",
            ),
        ] {
            assert_eq!(requirements(text).unwrap_err().to_string(), error, "{text}");
        }
        let error = requirements("-a").unwrap_err().to_string();
        assert!(
            error.starts_with("unable to parse requirement: <nil>: Invalid value: \"-a\": name part"),
            "{error}"
        );
    }
}
