//! A fuzz target for every decoder: what comes in from outside makes nothing panic, and costs bounded time and memory.
//!
//! ```text
//!   chance ─► Draft: a valid sample, with pieces struck out, doubled, swapped or overwritten ─► a decoder
//! ```
//!
//! The targets are tests (`fuzz/tests`): `make test` runs each for a fixed number of seeded inputs, `make fuzz` for as
//! long as one likes, and `cargo bolero` with a coverage-guided engine, from the same code.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use bolero::TypeGenerator;

/// How many inputs a target sees in `make test`. `BOLERO_RANDOM_TEST_TIME_MS` and `BOLERO_RANDOM_ITERATIONS` override it.
pub const INPUTS: usize = 1500;

/// The longest that any decoder may take over any input; a thousand times what it should, for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What chance does to a sample.
#[derive(Clone, Debug, TypeGenerator)]
pub struct Draft {
    sample: u8,
    edits: Vec<Edit>,
}

/// One change at a place, given as a fraction of the length.
#[derive(Clone, Debug, TypeGenerator)]
enum Edit {
    /// Writes other bytes over what is there.
    Overwrite(u16, Vec<u8>),
    /// Puts bytes in.
    Insert(u16, Vec<u8>),
    /// Strikes out.
    Strike(u16, u8),
    /// Says a piece again, elsewhere, a number of times.
    Repeat(u16, u16, u8, u8),
    /// Puts in a word that means something to some decoder.
    Word(u16, u8),
}

/// Words that mean something: what closes, opens, escapes, overflows or refers.
const WORDS: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "null",
    "true",
    "-",
    "0",
    "1e308",
    "1e-999",
    "9223372036854775808",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "$patch",
    "$retainKeys",
    "$setElementOrder/x",
    "/metadata/",
    "~1",
    "~0",
    "-1",
    "in",
    "notin",
    "(",
    ")",
    "!=",
    "&a",
    "*a",
    "<<: ",
    "!!",
    "k8s\0",
    "\0",
    "f:",
    "k:{\"",
    "v:",
    "=",
    "%",
];

impl Draft {
    /// The input: one of the samples, changed.
    pub fn of<S: AsRef<[u8]>>(&self, samples: &[S]) -> Vec<u8> {
        let mut bytes = samples[usize::from(self.sample) % samples.len()].as_ref().to_vec();
        for edit in self.edits.iter().take(12) {
            edit.change(&mut bytes);
            bytes.truncate(LONGEST);
        }
        bytes
    }

    /// The same as text, where what is no text is replaced.
    pub fn text<S: AsRef<[u8]>>(&self, samples: &[S]) -> String {
        String::from_utf8_lossy(&self.of(samples)).into_owned()
    }
}

/// Longer inputs find nothing new and take longer.
const LONGEST: usize = 64 << 10;

impl Edit {
    fn change(&self, bytes: &mut Vec<u8>) {
        let at = |place: u16| usize::from(place) % (bytes.len() + 1);
        match self {
            Self::Overwrite(place, with) => {
                let start = at(*place);
                let end = (start + with.len()).min(bytes.len());
                bytes.splice(start..end, with.iter().copied());
            }
            Self::Insert(place, what) => {
                let start = at(*place);
                bytes.splice(start..start, what.iter().copied());
            }
            Self::Strike(place, length) => {
                let start = at(*place);
                let end = (start + usize::from(*length)).min(bytes.len());
                bytes.drain(start..end);
            }
            Self::Repeat(from, to, length, times) => {
                let (start, to) = (at(*from), at(*to));
                let end = (start + usize::from(*length)).min(bytes.len());
                let piece = bytes[start..end].repeat(usize::from(*times));
                bytes.splice(to..to, piece);
            }
            Self::Word(place, word) => {
                let start = at(*place);
                bytes.splice(start..start, WORDS[usize::from(*word) % WORDS.len()].bytes());
            }
        }
    }
}

/// Runs a target over seeded drafts and holds it to its time.
#[macro_export]
macro_rules! target {
    (|$draft:ident| $body:expr) => {
        bolero::check!()
            .with_iterations($crate::INPUTS)
            .with_type::<$crate::Draft>()
            .for_each(|$draft| $crate::in_time(|| $body))
    };
}

/// Does something, and fails when it takes too long.
///
/// # Panics
/// When it does.
pub fn in_time<T>(work: impl FnOnce() -> T) {
    let started = Instant::now();
    drop(work());
    let took = started.elapsed();
    assert!(took < PATIENCE, "an input of bounded length took {took:?}");
}
