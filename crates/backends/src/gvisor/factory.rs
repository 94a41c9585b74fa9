//! How the gvisor backend is built: it takes no settings.

use std::sync::Arc;

use super::{Gvisor, NAME};
use crate::factory::BackendFactory;

/// The gvisor backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        shows_host: true,
        ..BackendFactory::new(NAME, |_, _| Ok(Arc::new(Gvisor::new())))
    }
}
