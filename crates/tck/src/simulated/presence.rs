//! Who runs at the moment, as told by the programs themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_backends::mock::Guest;
use stockade_core::SandboxId;

use crate::MARK_VARIABLE;

/// Something that runs.
#[derive(Debug, Clone)]
pub(super) struct Present {
    pub sandbox: SandboxId,
    pub mark: String,
    argv: Vec<String>,
}

/// Everything that runs.
#[derive(Clone, Default)]
pub(super) struct Presence(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    next: u64,
    present: BTreeMap<u64, Present>,
}

/// Present until it is dropped, however that comes about.
pub(super) struct Guard {
    presence: Presence,
    number: u64,
}

impl Presence {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, guest: &Guest) -> Guard {
        let marks = guest.env.iter().find(|(name, _)| name.as_str() == MARK_VARIABLE);
        let mark = marks.map(|(_, mark)| mark.clone()).unwrap_or_default();
        let present = Present { sandbox: guest.sandbox.clone(), mark, argv: guest.argv.clone() };
        let mut book = self.book();
        let number = book.next;
        book.next += 1;
        book.present.insert(number, present);
        Guard { presence: self.clone(), number }
    }

    pub(super) fn of(&self, wanted: impl Fn(&Present) -> bool) -> Vec<String> {
        let book = self.book();
        let found = book.present.values().filter(|present| wanted(present));
        found.map(|present| format!("{:?} in {}", present.argv, present.sandbox)).collect()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.presence.book().present.remove(&self.number);
    }
}
