//! The host name inside.

use crate::error::{At, Failure, Wall};

/// Sets it; the UTS namespace is new, so that no process outside sees it.
pub(crate) fn set_hostname(hostname: &str) -> Result<(), Failure> {
    rustix::system::sethostname(hostname.as_bytes()).at(Wall::Hostname, hostname)
}
