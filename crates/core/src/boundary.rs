//! What stands between the guest and the host's kernel.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of wall a backend builds, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boundary {
    /// Nothing at all: for tests.
    None,
    /// A virtual machine in software. It may well hold, but no claim is made that it does.
    Emulated,
    /// A virtual instruction set without any kernel interface.
    Bytecode,
    /// The host's kernel, restricted.
    SharedKernel,
    /// A second kernel in user space in front of the host's.
    UserspaceKernel,
    /// A kernel of its own behind the processor's virtualisation.
    Hardware,
}

impl Boundary {
    /// Every boundary, weakest first.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Emulated,
        Self::Bytecode,
        Self::SharedKernel,
        Self::UserspaceKernel,
        Self::Hardware,
    ];

    /// Whether automatic selection may take a backend with this boundary.
    pub const fn makes_a_security_claim(self) -> bool {
        match self {
            Self::None | Self::Emulated => false,
            Self::Bytecode | Self::SharedKernel | Self::UserspaceKernel | Self::Hardware => true,
        }
    }

    /// The name used in flags, JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Emulated => "emulated",
            Self::Bytecode => "bytecode",
            Self::SharedKernel => "shared-kernel",
            Self::UserspaceKernel => "userspace-kernel",
            Self::Hardware => "hardware",
        }
    }
}

impl fmt::Display for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Boundary {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|boundary| boundary.name() == given);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{given}` is not a boundary; there are: {names}")
        })
    }
}
