//! Doubly linked lists threaded through the elements of a slab.
//!
//! An element carries one [`Link`] for each list it can be in; a [`List`] is only the two ends. Joining at the end and
//! leaving from anywhere take constant time and allocate nothing, and a walk from the head meets the elements in the
//! order in which they joined.

/// The absent element.
pub(crate) const NIL: u32 = u32::MAX;

/// The neighbours of an element in one list. Meaningless while the element is in no list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

impl Link {
    pub(crate) const LOOSE: Self = Self { prev: NIL, next: NIL };
}

/// The two ends of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL };

    /// Appends the element `at`, which must not be in the list.
    #[inline]
    pub(crate) fn push<T>(&mut self, slab: &mut [T], at: u32, link: impl Fn(&mut T) -> &mut Link) {
        *link(&mut slab[at as usize]) = Link {
            prev: self.tail,
            next: NIL,
        };
        match self.tail {
            NIL => self.head = at,
            tail => link(&mut slab[tail as usize]).next = at,
        }
        self.tail = at;
    }

    /// Takes the element `at` out, which must be in the list.
    #[inline]
    pub(crate) fn unlink<T>(&mut self, slab: &mut [T], at: u32, link: impl Fn(&mut T) -> &mut Link) {
        let Link { prev, next } = std::mem::replace(link(&mut slab[at as usize]), Link::LOOSE);
        match prev {
            NIL => self.head = next,
            prev => link(&mut slab[prev as usize]).next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => link(&mut slab[next as usize]).prev = prev,
        }
    }
}
