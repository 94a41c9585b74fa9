//! Who a copy of a machine is: nothing in it is ever the same twice.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};
use stockade_core::{Result, SandboxId};

use super::system_error;
use crate::peer::guest::Identity;

const SEED_BYTES: usize = 64;

/// A new one for this sandbox.
pub(super) fn generate_identity(id: &SandboxId) -> Result<Identity> {
    let random = |bytes: usize| {
        random_hex(bytes)
            .map_err(|error| system_error("create", "there is no randomness").source(error))
    };
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Identity {
        hostname: id.to_string(),
        machine_id: random(16)?,
        boot_id: random(16)?,
        seed: random(SEED_BYTES)?,
        clock: u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX),
    })
}

fn random_hex(length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
