//! Names and randomness, so that transformers need neither a generator nor a clock.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::Snapshot;

/// The characters of generated names: Kubernetes' own, without vowels, so that no words come about.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
/// No name is longer, so that what is generated fits wherever Kubernetes generates.
const LONGEST_PREFIX: usize = 63 - SUFFIX;

/// Randomness that nobody can foresee, drawn once for each controller; a reconcile's id makes its own of it.
#[derive(Clone, Default)]
pub struct Entropy([u8; 32]);

impl Entropy {
    /// Fresh, from the operating system.
    pub fn fresh() -> Self {
        let mut bytes = [0; 32];
        // Two version 4 UUIDs hold 244 random bits of the operating system; the digest spreads them.
        let mut hasher = Sha256::new();
        hasher.update(uuid::Uuid::new_v4().as_bytes());
        hasher.update(uuid::Uuid::new_v4().as_bytes());
        bytes.copy_from_slice(&hasher.finalize());
        Self(bytes)
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy(..)")
    }
}

impl<K> Snapshot<K> {
    /// The `nth` fresh name with a prefix, as Kubernetes makes them of `generateName`.
    ///
    /// It is made from what the object owns: while nothing that it owns has come or gone, the same name comes out. So a
    /// create whose answer was lost is tried again under the same name, and makes no second object.
    pub fn fresh_name(&self, prefix: &str, nth: usize) -> String {
        let mut hasher = Sha256::new();
        for part in [self.raw().uid().as_bytes(), prefix.as_bytes()] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(self.given().epoch.to_le_bytes());
        hasher.update((nth as u64).to_le_bytes());
        let mut end = prefix.len().min(LONGEST_PREFIX);
        while !prefix.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}{}", &prefix[..end], text(&hasher.finalize(), SUFFIX))
    }

    /// A text that nobody can guess, for passwords: another one for each purpose and each reconcile.
    ///
    /// An actor puts it into an object that it creates once, and reads it from there ever after.
    pub fn secret_text(&self, purpose: &str, length: usize) -> String {
        let mut secret = String::with_capacity(length);
        let mut block = 0_u64;
        while secret.len() < length {
            let mut hasher = Sha256::new();
            hasher.update(self.given().entropy.0);
            hasher.update(self.given().id.as_bytes());
            hasher.update(block.to_le_bytes());
            hasher.update(purpose.as_bytes());
            let wanted = (length - secret.len()).min(32);
            secret.push_str(&text(&hasher.finalize(), wanted));
            block += 1;
        }
        secret
    }
}

fn text(bytes: &[u8], length: usize) -> String {
    // 256 is no multiple of 27; pairs of bytes make the bias too small to matter.
    let pairs = bytes.iter().cycle().zip(bytes.iter().cycle().skip(bytes.len() / 2));
    let characters = pairs.take(length).map(|(high, low)| {
        let number = usize::from(*high) << 8 | usize::from(*low);
        char::from(ALPHABET[number % ALPHABET.len()])
    });
    characters.collect()
}
