//! Who runs at the moment, as told by the programs themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_backends::mock::Guest;
use stockade_core::SandboxId;

use crate::MARK_VARIABLE;

/// Something that runs.
#[derive(Debug, Clone)]
pub(super) struct SimulatedProgram {
    pub sandbox: SandboxId,
    pub mark: String,
    argv: Vec<String>,
}

/// Everything that runs.
#[derive(Clone, Default)]
pub(super) struct SimulatedPrograms(Arc<Mutex<ProgramTable>>);

#[derive(Default)]
struct ProgramTable {
    next: u64,
    present: BTreeMap<u64, SimulatedProgram>,
}

/// Keeps a program in the table until it is dropped, however that comes about.
pub(super) struct SimulatedProgramGuard {
    presence: SimulatedPrograms,
    number: u64,
}

impl SimulatedPrograms {
    fn lock_table(&self) -> MutexGuard<'_, ProgramTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register_guest(&self, guest: &Guest) -> SimulatedProgramGuard {
        let marks = guest.env.iter().find(|(name, _)| name.as_str() == MARK_VARIABLE);
        let mark = marks.map(|(_, mark)| mark.clone()).unwrap_or_default();
        let present =
            SimulatedProgram { sandbox: guest.sandbox.clone(), mark, argv: guest.argv.clone() };
        let mut table = self.lock_table();
        let number = table.next;
        table.next += 1;
        table.present.insert(number, present);
        SimulatedProgramGuard { presence: self.clone(), number }
    }

    pub(super) fn list_matching(&self, wanted: impl Fn(&SimulatedProgram) -> bool) -> Vec<String> {
        let table = self.lock_table();
        let found = table.present.values().filter(|present| wanted(present));
        found.map(|present| format!("{:?} in {}", present.argv, present.sandbox)).collect()
    }
}

impl Drop for SimulatedProgramGuard {
    fn drop(&mut self) {
        self.presence.lock_table().present.remove(&self.number);
    }
}
