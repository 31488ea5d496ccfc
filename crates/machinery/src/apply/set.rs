//! Sets of fields.

use std::cmp::Ordering;

use super::element::PathElement;

/// A set of paths, kept as a tree. A path in the set does not bring the paths below it: owning a list item is one
/// thing, owning its fields another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// Sorted by element, each once; none is without meaning (neither a member nor above one).
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) element: PathElement,
    /// Whether the path that ends here is in the set.
    pub(crate) member: bool,
    /// The paths that go on from here.
    pub(crate) below: FieldSet,
}

impl Entry {
    fn means_something(&self) -> bool {
        self.member || !self.below.is_empty()
    }
}

impl FieldSet {
    /// The empty set.
    pub const EMPTY: Self = Self { entries: Vec::new() };

    /// An empty set.
    pub fn new() -> Self {
        Self::EMPTY
    }

    /// The set of these paths of plain fields, each written as `spec.replicas`.
    pub fn of_fields<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut set = Self::new();
        for path in paths {
            let elements: Vec<_> = path.split('.').map(PathElement::field).collect();
            set.insert(&elements);
        }
        set
    }

    /// Whether no path is in the set.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many paths are in the set.
    pub fn len(&self) -> usize {
        self.entries
            .iter()
            .map(|entry| usize::from(entry.member) + entry.below.len())
            .sum()
    }

    /// Adds a path. The empty path, the whole object, is never a member.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let entry = match self.find(first) {
            Ok(index) => &mut self.entries[index],
            Err(index) => {
                self.entries.insert(
                    index,
                    Entry {
                        element: first.clone(),
                        member: false,
                        below: Self::new(),
                    },
                );
                &mut self.entries[index]
            }
        };
        if rest.is_empty() {
            entry.member = true;
        } else {
            entry.below.insert(rest);
        }
    }

    /// Whether a path is in the set.
    pub fn has(&self, path: &[PathElement]) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return false;
        };
        self.get(first).is_some_and(|entry| {
            if rest.is_empty() {
                entry.member
            } else {
                entry.below.has(rest)
            }
        })
    }

    /// All paths, in order.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut out = Vec::new();
        self.visit(&mut Vec::new(), &mut |path| out.push(path.to_vec()));
        out
    }

    /// The paths that no other path of the set goes on from.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let entries = self.entries.iter().map(|entry| Entry {
            element: entry.element.clone(),
            member: entry.member && entry.below.is_empty(),
            below: entry.below.leaves(),
        });
        Self {
            entries: entries.filter(Entry::means_something).collect(),
        }
    }

    /// The paths in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len().max(other.entries.len()));
        zip(&self.entries, &other.entries, |a, b| {
            entries.push(match (a, b) {
                (Some(a), Some(b)) => Entry {
                    element: a.element.clone(),
                    member: a.member || b.member,
                    below: a.below.union(&b.below),
                },
                (Some(one), None) | (None, Some(one)) => one.clone(),
                (None, None) => return,
            });
        });
        Self { entries }
    }

    /// The paths in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut entries = Vec::new();
        zip(&self.entries, &other.entries, |a, b| {
            if let (Some(a), Some(b)) = (a, b) {
                let entry = Entry {
                    element: a.element.clone(),
                    member: a.member && b.member,
                    below: a.below.intersection(&b.below),
                };
                entries.extend(Some(entry).filter(Entry::means_something));
            }
        });
        Self { entries }
    }

    /// The paths here that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut entries = Vec::new();
        zip(&self.entries, &other.entries, |a, b| {
            let Some(a) = a else { return };
            let entry = match b {
                None => a.clone(),
                Some(b) => Entry {
                    element: a.element.clone(),
                    member: a.member && !b.member,
                    below: a.below.difference(&b.below),
                },
            };
            entries.extend(Some(entry).filter(Entry::means_something));
        });
        Self { entries }
    }

    /// Takes the paths of `other` out of this set, touching only what both have.
    pub fn subtract(&mut self, other: &Self) {
        self.prune_with(other, |mine, theirs| {
            mine.member &= !theirs.member;
            mine.below.subtract(&theirs.below);
        });
    }

    /// Takes the paths of `other`, with all below them, out of this set.
    pub fn subtract_subtrees(&mut self, other: &Self) {
        self.prune_with(other, |mine, theirs| {
            if theirs.member {
                mine.member = false;
                mine.below = Self::EMPTY;
            } else {
                mine.below.subtract_subtrees(&theirs.below);
            }
        });
    }

    fn prune_with(&mut self, other: &Self, mut meet: impl FnMut(&mut Entry, &Entry)) {
        let mut lost = false;
        for theirs in &other.entries {
            if let Ok(index) = self.find(&theirs.element) {
                let mine = &mut self.entries[index];
                meet(mine, theirs);
                lost |= !mine.means_something();
            }
        }
        if lost {
            self.entries.retain(Entry::means_something);
        }
    }

    /// The paths here that are neither in `other` nor below one in it.
    #[must_use]
    pub fn without_subtrees(&self, other: &Self) -> Self {
        let mut entries = Vec::new();
        zip(&self.entries, &other.entries, |a, b| {
            let entry = match (a, b) {
                (Some(a), None) => a.clone(),
                (Some(a), Some(b)) if !b.member => Entry {
                    element: a.element.clone(),
                    member: a.member,
                    below: a.below.without_subtrees(&b.below),
                },
                _ => return,
            };
            entries.extend(Some(entry).filter(Entry::means_something));
        });
        Self { entries }
    }

    /// Whether every path here is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        let mut holds = true;
        zip(&self.entries, &other.entries, |a, b| match (a, b) {
            (Some(a), Some(b)) => holds &= (!a.member || b.member) && a.below.is_subset(&b.below),
            (Some(_), None) => holds = false,
            _ => {}
        });
        holds
    }

    pub(crate) fn get(&self, element: &PathElement) -> Option<&Entry> {
        self.find(element).ok().map(|index| &self.entries[index])
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Entry> {
        let found = self.entries.binary_search_by(|entry| match &entry.element {
            PathElement::Field(field) => (**field).cmp(name),
            _ => Ordering::Greater,
        });
        found.ok().map(|index| &self.entries[index])
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    /// Adds an entry whose element is most likely the last: walks go in order. Meaningless ones are dropped.
    pub(crate) fn push(&mut self, element: PathElement, member: bool, below: Self) {
        let entry = Entry { element, member, below };
        if !entry.means_something() {
            return;
        }
        match self.entries.last().map(|last| last.element.cmp(&entry.element)) {
            None | Some(Ordering::Less) => self.entries.push(entry),
            Some(_) => match self.find(&entry.element) {
                Ok(index) => {
                    let there = &mut self.entries[index];
                    there.member |= entry.member;
                    there.below = there.below.union(&entry.below);
                }
                Err(index) => self.entries.insert(index, entry),
            },
        }
    }

    pub(crate) fn visit(&self, path: &mut Vec<PathElement>, each: &mut impl FnMut(&[PathElement])) {
        // What stands here before what stands deeper: the order in which conflicts are told.
        for entry in self.entries.iter().filter(|entry| entry.member) {
            path.push(entry.element.clone());
            each(path);
            path.pop();
        }
        for entry in &self.entries {
            path.push(entry.element.clone());
            entry.below.visit(path, each);
            path.pop();
        }
    }

    fn find(&self, element: &PathElement) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.element.cmp(element))
    }
}

/// Walks two sorted lists at once, handing out what stands under the same element together.
fn zip<'a>(a: &'a [Entry], b: &'a [Entry], mut each: impl FnMut(Option<&'a Entry>, Option<&'a Entry>)) {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        match (a.peek(), b.peek()) {
            (None, None) => return,
            (Some(_), None) => each(a.next(), None),
            (None, Some(_)) => each(None, b.next()),
            (Some(x), Some(y)) => match x.element.cmp(&y.element) {
                Ordering::Less => each(a.next(), None),
                Ordering::Greater => each(None, b.next()),
                Ordering::Equal => each(a.next(), b.next()),
            },
        }
    }
}
