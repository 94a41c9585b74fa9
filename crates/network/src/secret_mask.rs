//! What is looked for in answers: every spelling of every value that a host was given or may be given. Values change
//! while answers are under way, so that it is made anew whenever there is another one.

use std::sync::{Arc, Mutex, PoisonError};

use stockade_core::SecretValue;

use crate::patterns::Patterns;
use crate::secrets::HeldSecret;
use crate::supply::overlaps;

/// Looks for the values of one sandbox's secrets.
pub struct SecretMask {
    secrets: Arc<[HeldSecret]>,
    built: Mutex<BuiltMask>,
}

/// The patterns of the values that were known when they were made.
#[derive(Clone)]
pub struct BuiltMask {
    generations: Vec<u64>,
    /// In bodies, and in values of headers.
    pub texts: Arc<Patterns>,
    /// In names of headers, which are written in small letters here.
    pub names: Arc<Patterns>,
    /// Why they do not find every value reliably.
    pub conflict: Option<String>,
}

impl SecretMask {
    /// For these secrets.
    pub fn new(secrets: Arc<[HeldSecret]>) -> Self {
        let built = Mutex::new(BuiltMask::new(&secrets));
        Self { secrets, built }
    }

    /// Those of the values that are known now.
    pub fn current(&self) -> BuiltMask {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if built.generations != list_generations(&self.secrets) {
            *built = BuiltMask::new(&self.secrets);
        }
        built.clone()
    }
}

impl BuiltMask {
    fn new(secrets: &[HeldSecret]) -> Self {
        // Before the values: one that comes meanwhile is found to be newer.
        let generations = list_generations(secrets);
        Self {
            generations,
            texts: Arc::new(Patterns::of_secrets(secrets.iter().flat_map(HeldSecret::mask))),
            names: Arc::new(Patterns::new(secrets.iter().flat_map(HeldSecret::mask_names))),
            conflict: find_conflict(secrets),
        }
    }
}

fn list_generations(secrets: &[HeldSecret]) -> Vec<u64> {
    secrets.iter().map(|secret| secret.supply.generation()).collect()
}

/// A value within another could not be masked reliably.
fn find_conflict(secrets: &[HeldSecret]) -> Option<String> {
    secrets.iter().enumerate().find_map(|(at, one)| {
        let other = secrets[..at].iter().find(|other| has_overlap(one, other))?;
        let (one, other) = (one.binding.name(), other.binding.name());
        Some(format!("the values of the secrets `{other}` and `{one}` are parts of each other"))
    })
}

fn has_overlap(one: &HeldSecret, other: &HeldSecret) -> bool {
    let others = other.supply.known_values();
    let overlaps_any =
        |value: SecretValue| others.iter().any(|other| *other != value && overlaps(&value, other));
    one.supply.known_values().into_iter().any(overlaps_any)
}
