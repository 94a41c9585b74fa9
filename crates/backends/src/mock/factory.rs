//! The mock, chosen by its name alone: three programs, no walls.

use std::sync::Arc;
use std::time::Duration;

use super::{Mock, NAME, Script, ScriptStep};
use crate::factory::BackendFactory;

/// The mock's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        only_by_name: true,
        ..BackendFactory::new(NAME, |_, _| Ok(Arc::new(build_mock())))
    }
}

fn build_mock() -> Mock {
    Mock::new()
        .with_program("true", Script::default())
        .with_program("cat", Script(vec![ScriptStep::Echo]))
        .with_program("sleep", Script(vec![ScriptStep::Sleep(Duration::MAX / 4)]))
}
