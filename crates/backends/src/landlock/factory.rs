//! How the landlock backend is built: it takes no settings.

use std::sync::Arc;

use super::{Landlock, NAME};
use crate::factory::BackendFactory;

/// The landlock backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        namespaces: false,
        shows_host: true,
        ..BackendFactory::new(NAME, |_, _| Ok(Arc::new(Landlock::new())))
    }
}
