//! Regular expressions of schemas. They are written for RE2, whose syntax differs a little from ours.

use std::sync::OnceLock;

use regex::Regex;

/// An expression that is compiled when first needed: one schema holds hundreds that no object ever meets.
#[derive(Debug)]
pub(crate) struct Pattern {
    source: Box<str>,
    compiled: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    pub(crate) fn new(source: &str) -> Self {
        Self {
            source: source.into(),
            compiled: OnceLock::new(),
        }
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Whether `text` matches anywhere. An expression that does not compile matches nothing.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.compiled().as_ref().is_ok_and(|regex| regex.is_match(text))
    }

    /// Why the expression does not compile, if it does not.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.compiled().as_ref().err().map(String::as_str)
    }

    fn compiled(&self) -> &Result<Regex, String> {
        self.compiled
            .get_or_init(|| Regex::new(&from_re2(&self.source)).map_err(|error| error.to_string()))
    }
}

/// Rewrites what RE2 reads otherwise: `\d`, `\w` and `\s` are ASCII there, `[` and `&` inside a class stand for
/// themselves, and a brace that opens no repetition is a brace.
fn from_re2(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 8);
    let mut rest = source;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let mut taken = c.len_utf8();
        match c {
            '\\' => {
                let escaped = after.chars().next().unwrap_or('\\');
                taken += escaped.len_utf8().min(after.len());
                match (escaped, in_class) {
                    ('d', false) => out.push_str("[0-9]"),
                    ('D', false) => out.push_str("[^0-9]"),
                    ('w', false) => out.push_str("[0-9A-Za-z_]"),
                    ('W', false) => out.push_str("[^0-9A-Za-z_]"),
                    ('s', false) => out.push_str(r"[\t\n\f\r ]"),
                    ('S', false) => out.push_str(r"[^\t\n\f\r ]"),
                    ('d', true) => out.push_str("0-9"),
                    ('w', true) => out.push_str("0-9A-Za-z_"),
                    ('s', true) => out.push_str(r"\t\n\f\r "),
                    (other, _) => {
                        out.push('\\');
                        out.push(other);
                    }
                }
            }
            '[' if in_class && after.starts_with(':') => match after.find(":]") {
                Some(end) => {
                    taken += end + 2;
                    out.push_str(&rest[..taken]);
                }
                None => out.push_str("\\["),
            },
            '[' if in_class => out.push_str("\\["),
            '[' => {
                in_class = true;
                out.push('[');
                for mark in ['^', ']'] {
                    if rest[taken..].starts_with(mark) {
                        taken += 1;
                        if mark == ']' {
                            out.push('\\');
                        }
                        out.push(mark);
                    }
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '{' if !in_class && !opens_repetition(after) => out.push_str("\\{"),
            other => out.push(other),
        }
        rest = &rest[taken..];
    }
    out
}

fn opens_repetition(after: &str) -> bool {
    let Some((bounds, _)) = after.split_once('}') else {
        return false;
    };
    let (low, high) = bounds.split_once(',').unwrap_or((bounds, ""));
    !low.is_empty() && low.bytes().chain(high.bytes()).all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn expressions_mean_what_re2_means() {
        for (pattern, text, matches) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "\u{661}", false),
            (r"^[\w.]+$", "a_1.", true),
            (r"^[\w]+$", "é", false),
            (r"^[[]$", "[", true),
            (r"^[]a]+$", "]a", true),
            (r"^[^]]+$", "a]", false),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"^{x}$", "{x}", true),
            (r"^a{2}$", "aa", true),
            (r"^a{2,}$", "aaa", true),
            (r"\.\/", "./", true),
            (r"^a$", "a\n", false),
            (r"(", "(", false),
        ] {
            assert_eq!(Pattern::new(pattern).is_match(text), matches, "{pattern} on {text:?}");
        }
        assert!(Pattern::new("(").fault().is_some());
        assert!(Pattern::new("a").fault().is_none());
    }
}
