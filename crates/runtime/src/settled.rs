//! What a server makes of what it is given.

use std::{collections::HashMap, sync::Mutex};

use moorline_plan::{Part, StepKey};
use sha2::{Digest as _, Sha256};

use crate::object::Target;

/// What the server answered to applies that it may have rewritten: `desired` was so at this version.
///
/// A server that writes `1000m` as `1` would otherwise be asked for ever.
#[derive(Debug, Default)]
pub(crate) struct Settled(Mutex<HashMap<StepKey<Target>, (Digest, u64)>>);

type Digest = [u8; 32];

impl Settled {
    pub(crate) fn holds(&self, step: &StepKey<Target>, desired: &[u8], version: u64) -> bool {
        let settled = self.0.lock().expect("nothing panics while it holds this");
        settled
            .get(step)
            .is_some_and(|(digest, at)| *at == version && *digest == digest_of(desired))
    }

    pub(crate) fn remember(&self, step: StepKey<Target>, desired: &[u8], version: u64) {
        let mut settled = self.0.lock().expect("nothing panics while it holds this");
        settled.insert(step, (digest_of(desired), version));
    }

    /// Forgets an object that is no longer there.
    pub(crate) fn forget(&self, target: &Target) {
        let mut settled = self.0.lock().expect("nothing panics while it holds this");
        for part in [Part::Object, Part::Status] {
            settled.remove(&StepKey {
                target: target.clone(),
                part,
            });
        }
    }
}

fn digest_of(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(&Sha256::digest(bytes));
    digest
}
