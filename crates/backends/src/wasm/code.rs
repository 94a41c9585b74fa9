//! Compiled code back into the machine: the one place where bytes become instructions without being
//! looked at. Only bytes that were authenticated get here.
#![allow(unsafe_code, reason = "the machine cannot check compiled code, only its origin can be")]

use wasmtime::component::Component;
use wasmtime::{Engine, Module, Result};

/// Compiled code whose origin was proved. Only [`super::cache`] and the worker, which compares a digest
/// that its owner gave it, make one.
pub(super) struct Trusted(Vec<u8>);

impl Trusted {
    /// The caller vouches: these bytes are exactly what this backend's own compiler gave out.
    pub(super) fn vouched(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes themselves, to be handed on.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A module from its compiled form.
pub(super) fn deserialize_module(engine: &Engine, code: &Trusted) -> Result<Module> {
    // SAFETY: the bytes are what `Module::serialize` gave out for this version of the machine: they
    // were authenticated as a whole when the value was made, and are private memory since.
    unsafe { Module::deserialize(engine, &code.0) }
}

/// A component from its compiled form.
pub(super) fn deserialize_component(engine: &Engine, code: &Trusted) -> Result<Component> {
    // SAFETY: as for modules: authenticated as a whole, and private memory since.
    unsafe { Component::deserialize(engine, &code.0) }
}
