//! A table of nftables as a value, and the script that turns one into another.
//!
//! The script is one transaction: packets meet the old rules or the new ones, never a mixture.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Everything in our table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ruleset {
    pub(crate) sets: BTreeMap<String, Set>,
    pub(crate) chains: BTreeMap<String, Chain>,
}

/// A set, or a map when its elements have values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) kind: SetKind,
    /// What stands between the braces of its declaration.
    pub(crate) declaration: String,
    pub(crate) elements: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetKind {
    /// Elements have no values.
    Set,
    /// Elements lead to verdicts.
    Map,
}

/// A list of rules, called by the kernel when it has a hook and by other chains when not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) hook: Option<&'static str>,
    pub(crate) rules: Vec<String>,
}

/// How many elements one command carries: lines that an editor still opens.
const ELEMENTS_A_COMMAND: usize = 500;

impl Ruleset {
    /// The script that makes the table from nothing, whatever is there before.
    pub(crate) fn script(&self, table: &str) -> String {
        let mut script = format!("add table inet {table}\ndelete table inet {table}\nadd table inet {table}\n");
        script.push_str(&self.script_from(&Self::default(), table));
        script
    }

    /// The script that turns `old`, which is what the kernel has, into this. Empty when they are the same.
    pub(crate) fn script_from(&self, old: &Self, table: &str) -> String {
        let mut script = String::new();
        let mut command = |text: std::fmt::Arguments<'_>| {
            script.write_fmt(text).expect("writing to a string does not fail");
            script.push('\n');
        };
        let fresh_set = |name: &String| old.sets.get(name).is_none_or(|was| !was.alike(&self.sets[name]));

        for (name, chain) in self.chains.iter().filter(|(name, _)| !old.chains.contains_key(*name)) {
            match chain.hook {
                Some(hook) => command(format_args!("add chain inet {table} {name} {{ {hook} }}")),
                None => command(format_args!("add chain inet {table} {name}")),
            }
        }
        // What referred to something comes down before what was referred to.
        for (name, was) in &old.sets {
            let now = self.sets.get(name).filter(|now| now.alike(was));
            let stale = was
                .elements
                .iter()
                .filter(|(key, value)| now.and_then(|set| set.elements.get(*key)) != Some(value));
            for part in chunks(stale.map(|(key, _)| key.clone())) {
                command(format_args!("delete element inet {table} {name} {{ {part} }}"));
            }
        }
        for (name, was) in &old.chains {
            if self.chains.get(name).is_none_or(|now| now.rules != was.rules) && !was.rules.is_empty() {
                command(format_args!("flush chain inet {table} {name}"));
            }
        }
        for (name, was) in &old.sets {
            if self.sets.get(name).is_none_or(|now| !now.alike(was)) {
                command(format_args!("delete {} inet {table} {name}", was.word()));
            }
        }
        for name in old.chains.keys().filter(|name| !self.chains.contains_key(*name)) {
            command(format_args!("delete chain inet {table} {name}"));
        }
        for (name, set) in self.sets.iter().filter(|(name, _)| fresh_set(name)) {
            command(format_args!(
                "add {} inet {table} {name} {{ {} }}",
                set.word(),
                set.declaration
            ));
        }
        for (name, chain) in &self.chains {
            if old.chains.get(name).is_none_or(|was| was.rules != chain.rules) {
                for rule in &chain.rules {
                    command(format_args!("add rule inet {table} {name} {rule}"));
                }
            }
        }
        for (name, set) in &self.sets {
            let was = old.sets.get(name).filter(|was| was.alike(set));
            let new = set
                .elements
                .iter()
                .filter(|(key, value)| was.and_then(|set| set.elements.get(*key)) != Some(value));
            for part in chunks(new.map(|(key, value)| match set.kind {
                SetKind::Set => key.clone(),
                SetKind::Map => format!("{key} : {value}"),
            })) {
                command(format_args!("add element inet {table} {name} {{ {part} }}"));
            }
        }
        script
    }

    /// Adds a chain; the name must be free.
    pub(crate) fn chain(&mut self, name: impl Into<String>, rules: Vec<String>) {
        self.chains.insert(name.into(), Chain { hook: None, rules });
    }

    /// Adds a chain that the kernel calls.
    pub(crate) fn base_chain(&mut self, name: &str, hook: &'static str, rules: Vec<String>) {
        self.chains.insert(
            name.into(),
            Chain {
                hook: Some(hook),
                rules,
            },
        );
    }

    /// Adds a set or a map.
    pub(crate) fn set(&mut self, name: impl Into<String>, set: Set) {
        self.sets.insert(name.into(), set);
    }
}

impl Set {
    /// A set with these elements.
    pub(crate) fn of(declaration: impl Into<String>, elements: impl IntoIterator<Item = String>) -> Self {
        let elements = elements.into_iter().map(|key| (key, String::new())).collect();
        Self {
            kind: SetKind::Set,
            declaration: declaration.into(),
            elements,
        }
    }

    /// A map with these elements.
    pub(crate) fn map(declaration: impl Into<String>, elements: BTreeMap<String, String>) -> Self {
        Self {
            kind: SetKind::Map,
            declaration: declaration.into(),
            elements,
        }
    }

    fn alike(&self, other: &Self) -> bool {
        self.kind == other.kind && self.declaration == other.declaration
    }

    fn word(&self) -> &'static str {
        match self.kind {
            SetKind::Set => "set",
            SetKind::Map => "map",
        }
    }
}

fn chunks(elements: impl Iterator<Item = String>) -> Vec<String> {
    let elements: Vec<String> = elements.collect();
    elements
        .chunks(ELEMENTS_A_COMMAND)
        .map(|part| part.join(", "))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_service(rule: &str) -> Ruleset {
        let mut rules = Ruleset::default();
        rules.chain("web", vec![rule.into()]);
        let elements = [("10.0.0.1 . tcp . 80".to_owned(), "goto web".to_owned())];
        rules.set(
            "services",
            Set::map("type ipv4_addr . inet_proto . inet_service : verdict;", elements.into()),
        );
        rules
    }

    #[test]
    fn the_same_rules_need_no_command() {
        assert_eq!(one_service("drop").script_from(&one_service("drop"), "t"), "");
    }

    #[test]
    fn a_changed_chain_leaves_the_maps_alone() {
        let script = one_service("accept").script_from(&one_service("drop"), "t");
        assert_eq!(script, "flush chain inet t web\nadd rule inet t web accept\n");
    }

    #[test]
    fn what_refers_goes_before_what_is_referred_to() {
        let mut nothing = Ruleset::default();
        nothing.set(
            "services",
            Set {
                elements: BTreeMap::new(),
                ..one_service("drop").sets["services"].clone()
            },
        );
        let script = nothing.script_from(&one_service("drop"), "t");
        assert_eq!(
            script,
            "delete element inet t services { 10.0.0.1 . tcp . 80 }\nflush chain inet t web\ndelete chain inet t web\n"
        );
    }

    #[test]
    fn a_set_that_is_declared_differently_is_made_anew() {
        let mut old = Ruleset::default();
        old.set("seen", Set::of("type ipv4_addr; timeout 10s;", []));
        let mut new = Ruleset::default();
        new.set("seen", Set::of("type ipv4_addr; timeout 20s;", []));
        let script = new.script_from(&old, "t");
        assert_eq!(
            script,
            "delete set inet t seen\nadd set inet t seen { type ipv4_addr; timeout 20s; }\n"
        );
    }
}
