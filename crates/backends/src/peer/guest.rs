//! The handshake between a virtual machine and the engine that runs it, before the protocol of any other
//! host: one line of JSON each way. The machine says that it waits; the engine that continues a copy of it
//! tells it its new identity.

use serde::{Deserialize, Serialize};
use stockade_core::Capabilities;

/// Name of the serial port over which the machine is reached.
pub const GUEST_PORT_NAME: &str = "stockade.pipe";
/// The number of the port for monitors that have sockets in its place.
pub const VSOCK_PORT: u32 = 1024;
/// Longest line.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// The machine waits to be copied.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ready {
    /// What it can enforce inside.
    pub measured: Box<Capabilities>,
}

/// Who a copy is from now on. Two copies with the same of it could be taken for one another.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// Its host name.
    pub hostname: String,
    /// What `/etc/machine-id` says: 32 hexadecimal digits.
    pub machine_id: String,
    /// What the kernel says of this start: 32 hexadecimal digits.
    pub boot_id: String,
    /// What the kernel's random numbers grow from: 64 bytes in hexadecimal.
    pub seed: String,
    /// Nanoseconds since 1970.
    pub clock: u64,
}
