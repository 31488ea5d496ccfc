//! `$(NAME)` in commands, arguments, values and sub-paths.

/// Replaces what is known; what is not stays as it is written. `$$` stands for one `$`.
pub(crate) fn expand(text: &str, known: impl Fn(&str) -> Option<String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some(inside) = rest.strip_prefix('(') {
            if let Some(end) = inside.find(')') {
                let name = &inside[..end];
                if let Some(value) = known(name) {
                    result.push_str(&value);
                } else {
                    result.push_str("$(");
                    result.push_str(name);
                    result.push(')');
                }
                rest = &inside[end + 1..];
            } else {
                result.push_str("$(");
                rest = inside;
            }
        } else {
            result.push('$');
        }
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn references_are_replaced_and_escapes_undone() {
        let known = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, expected) in [
            ("$(A)-$(A)", "1-1"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(A", "$(A"),
            ("cost: 5$", "cost: 5$"),
            ("$x", "$x"),
        ] {
            assert_eq!(expand(text, known), expected, "{text}");
        }
    }
}
