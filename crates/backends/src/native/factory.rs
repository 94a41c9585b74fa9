//! How the native backend is built: it takes no settings.

use std::sync::Arc;

use super::{NAME, Native};
use crate::factory::BackendFactory;

/// The native backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        shows_host: true,
        typical_start: Some("10 ms"),
        ..BackendFactory::new(NAME, |_, _| Ok(Arc::new(Native::new())))
    }
}
