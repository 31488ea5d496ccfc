//! Where in an object something is. Built on the stack while walking, rendered only when there is something to say.

use std::fmt::Write as _;

/// A step from the root of a value downwards, linked to the step before it.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    /// The value itself.
    Root,
    /// A path that was rendered before, to which the rest is appended.
    Base(&'a str),
    /// A declared field.
    Field(&'a Path<'a>, &'a str),
    /// A key of a map, which is data and not a field name.
    Key(&'a Path<'a>, &'a str),
    /// An item of a list.
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    /// As field errors print it: `spec.ports[0].name`, `metadata.labels[app]`.
    pub(crate) fn brackets(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, KeyStyle::Brackets);
        out
    }

    /// As value checks and unknown-field reports print it: keys of maps look like fields.
    pub(crate) fn dotted(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, KeyStyle::Dots);
        out
    }

    fn write(&self, out: &mut String, style: KeyStyle) {
        match self {
            Path::Root => {}
            Path::Base(base) => out.push_str(base),
            Path::Key(parent, key) if matches!(style, KeyStyle::Brackets) => {
                parent.write(out, style);
                let _ = write!(out, "[{key}]");
            }
            Path::Field(parent, name) | Path::Key(parent, name) => {
                parent.write(out, style);
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(name);
            }
            Path::Index(parent, index) => {
                parent.write(out, style);
                let _ = write!(out, "[{index}]");
            }
        }
    }
}

#[derive(Clone, Copy)]
enum KeyStyle {
    Brackets,
    Dots,
}

#[cfg(test)]
mod tests {
    use super::Path;

    #[test]
    fn keys_of_maps_are_told_from_fields_only_in_brackets() {
        let spec = Path::Field(&Path::Root, "spec");
        let ports = Path::Field(&spec, "ports");
        let port = Path::Index(&ports, 3);
        let key = Path::Key(&port, "a/b");
        assert_eq!(key.brackets(), "spec.ports[3][a/b]");
        assert_eq!(key.dotted(), "spec.ports[3].a/b");
        assert_eq!(Path::Field(&Path::Base("x.y"), "z").brackets(), "x.y.z");
    }
}
