//! No capability in any set, and no way to one: not by execution, not by changing ids.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits as Bits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits,
    set_no_new_privs,
};

use crate::error::{At, Failure, Wall};

/// The bounding set first: emptying it takes a capability that the others still hold.
pub(crate) fn drop_all() -> Result<(), Failure> {
    let wall = Wall::Capabilities;
    empty_bounding_set().at(wall, "the bounding set")?;
    let bits = Bits::NO_ROOT
        | Bits::NO_ROOT_LOCKED
        | Bits::NO_SETUID_FIXUP
        | Bits::NO_SETUID_FIXUP_LOCKED
        | Bits::KEEP_CAPS_LOCKED
        | Bits::NO_CAP_AMBIENT_RAISE
        | Bits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits).at(wall, "the secure bits")?;
    drop_own()
}

/// What takes no capability to give up; `no_new_privs` makes the bounding set mean nothing.
pub(crate) fn drop_own() -> Result<(), Failure> {
    let wall = Wall::Capabilities;
    clear_ambient_capability_set().at(wall, "the ambient set")?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).at(wall, "the other sets")?;
    set_no_new_privs(true).at(wall, "no_new_privs")
}

fn empty_bounding_set() -> Result<(), Errno> {
    for bit in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // The kernel has no capability of this number, nor any higher one.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
