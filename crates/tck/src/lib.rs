//! The conformance kit.
/// The probe.
pub fn probe_bytes() -> &'static [u8] { include_bytes!(env!("STOCKADE_PROBE")) }
