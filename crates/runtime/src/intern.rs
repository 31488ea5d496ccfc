//! One copy of the texts that thousands of objects repeat: namespaces, label keys and values, the kinds of owners.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock, Mutex},
};

static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);

struct Pool {
    texts: HashSet<Arc<str>>,
    /// When the pool grows to this size, texts that nobody else holds are let go.
    sweep_at: usize,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            texts: HashSet::new(),
            sweep_at: 1024,
        }
    }
}

/// The shared copy of a text.
pub(crate) fn intern(text: &str) -> Arc<str> {
    let mut pool = POOL.lock().expect("nothing panics while it holds the pool");
    if let Some(shared) = pool.texts.get(text) {
        return Arc::clone(shared);
    }
    if pool.texts.len() >= pool.sweep_at {
        pool.texts.retain(|text| Arc::strong_count(text) > 1);
        pool.sweep_at = (pool.texts.len() * 2).max(1024);
    }
    let shared: Arc<str> = Arc::from(text);
    pool.texts.insert(Arc::clone(&shared));
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one() {
        assert!(Arc::ptr_eq(&intern("kubernetes.io/os"), &intern("kubernetes.io/os")));
    }

    #[test]
    fn texts_that_nobody_holds_are_let_go() {
        for number in 0..20_000 {
            intern(&format!("passing-{number}"));
        }
        let pool = POOL.lock().unwrap();
        assert!(pool.texts.len() < 10_000, "{} texts are kept", pool.texts.len());
    }
}
