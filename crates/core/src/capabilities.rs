//! What a backend was measured to have on this host. Absent means no: a feature that was not measured
//! is missing.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::{BackendName, Boundary, Feature, LimitKind, RootMode, SandboxSpec, clean_foreign};

/// The most gaps that a peer may tell of.
const MAX_GAPS: usize = 64;
/// The most processors that a peer may tell of.
const MAX_CORES: u32 = 4096;

/// How far a backend has one feature on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "support", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Support {
    /// It holds.
    Full {
        /// The mechanism.
        by: String,
    },
    /// It holds as far as the mechanism goes. A limit is watched then: applied, and told of where it was
    /// asked for (C-02). Any other feature that was asked for is refused.
    Partial {
        /// The mechanism.
        by: String,
        /// What gets past it.
        gap: String,
        /// What the operator can do to have it in full.
        remedy: String,
    },
    /// It is not there.
    Missing {
        /// Why not.
        reason: String,
        /// What the operator can do to have it.
        remedy: String,
    },
}

/// The features one backend was measured to have on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Capabilities {
    /// Whose they are.
    pub backend: BackendName,
    /// What stands between the guest and the host's kernel.
    pub boundary: Boundary,
    /// Why nothing can be created at all, with the remedy; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<(String, String)>,
    /// Why it is taken only by who names it, although it can be had; absent if it may be taken
    /// automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_by_name: Option<String>,
    /// What makes the disk limit exact where a sandbox writes to nothing of the host; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_disk: Option<String>,
    /// How many processors its sandboxes may use at once.
    #[serde(default = "one")]
    pub cores: u32,
    /// The hosts among which a caller may choose one; none where all sandboxes are on this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// What it does not keep of the contract on this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    features: BTreeMap<Feature, Support>,
}

/// Something that a clause of the contract promises where it can be had, and that cannot be had here (C-18, C-25).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gap {
    /// The clause, such as `C-25`.
    pub clause: String,
    /// What a guest can do because of it.
    pub what: String,
    /// What the operator can do about it.
    pub remedy: String,
}

impl Support {
    /// In full, by this mechanism.
    pub fn full(by: impl Into<String>) -> Self {
        Self::Full { by: by.into() }
    }

    /// As far as this mechanism goes.
    pub fn partial(
        by: impl Into<String>,
        gap: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Partial { by: by.into(), gap: gap.into(), remedy: remedy.into() }
    }

    /// Not there.
    pub fn missing(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Missing { reason: reason.into(), remedy: remedy.into() }
    }
}

fn one() -> u32 {
    1
}

/// The processors that this process may use. Asked once: it takes some fifteen system calls, and each backend's
/// capabilities begin with it.
fn available_cores() -> u32 {
    static CORE_COUNT: OnceLock<u32> = OnceLock::new();
    *CORE_COUNT.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u32::try_from(cores).unwrap_or(MAX_CORES)
    })
}

impl Capabilities {
    /// A backend that has nothing yet.
    pub fn none(backend: BackendName, boundary: Boundary) -> Self {
        let (unavailable, only_by_name) = (None, None);
        let (private_disk, cores) = (None, available_cores());
        let (hosts, gaps, features) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self {
            backend,
            boundary,
            unavailable,
            only_by_name,
            private_disk,
            cores,
            hosts,
            gaps,
            features,
        }
    }

    /// A backend that cannot build anything on this host.
    pub fn unavailable(
        backend: BackendName,
        boundary: Boundary,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let unavailable = Some((reason.into(), remedy.into()));
        Self { unavailable, ..Self::none(backend, boundary) }
    }

    /// Capabilities that a peer says it measured, with every text [cleaned](crate::clean_foreign).
    #[must_use]
    pub fn from_a_peer(mut self) -> Self {
        let clean = |text: &mut String| *text = clean_foreign(text);
        if let Some((reason, remedy)) = &mut self.unavailable {
            [reason, remedy].into_iter().for_each(clean);
        }
        self.only_by_name.iter_mut().for_each(clean);
        self.cores = self.cores.clamp(1, MAX_CORES);
        // A peer is one of the hosts that this side names, and has none of its own to offer.
        self.hosts.clear();
        self.gaps.truncate(MAX_GAPS);
        for Gap { clause, what, remedy } in &mut self.gaps {
            [clause, what, remedy].into_iter().for_each(clean);
        }
        for support in self.features.values_mut() {
            match support {
                Support::Full { by } => clean(by),
                Support::Partial { by, gap, remedy } => {
                    [by, gap, remedy].into_iter().for_each(clean);
                }
                Support::Missing { reason, remedy } => {
                    [reason, remedy].into_iter().for_each(clean);
                }
            }
        }
        self
    }

    /// Adds or replaces what was measured for one feature.
    #[must_use]
    pub fn with(mut self, feature: Feature, support: Support) -> Self {
        self.features.insert(feature, support);
        self
    }

    /// How far a limit holds for this spec: that of disk depends on where can be written.
    pub fn limit_support(&self, limit: LimitKind, spec: &SandboxSpec) -> Support {
        let support = self.support(limit.feature());
        match (&support, &self.private_disk) {
            (Support::Partial { .. }, Some(by))
                if limit == LimitKind::Disk
                    && !spec.writes_to_host()
                    && spec.root == RootMode::ReadOnly =>
            {
                Support::full(by)
            }
            _ => support,
        }
    }

    /// Says what is not kept of a clause.
    #[must_use]
    pub fn with_gap(
        mut self,
        clause: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        self.gaps.push(Gap { clause: clause.into(), what: what.into(), remedy: remedy.into() });
        self
    }

    /// Whether it says that a clause is not kept in full.
    pub fn has_gap(&self, clause: &str) -> bool {
        self.gaps.iter().any(|gap| gap.clause == clause)
    }

    /// How far the feature is there.
    pub fn support(&self, feature: Feature) -> Support {
        let unmeasured = || {
            let remedy = format!("choose another backend, or give it up with --without {feature}");
            Support::missing(format!("{} does not offer it", self.backend), remedy)
        };
        self.features.get(&feature).cloned().unwrap_or_else(unmeasured)
    }

    /// Whether the feature is there in full.
    pub fn has(&self, feature: Feature) -> bool {
        matches!(self.features.get(&feature), Some(Support::Full { .. }))
    }

    /// Every feature with how far it is there.
    pub fn iter(&self) -> impl Iterator<Item = (Feature, Support)> {
        Feature::ALL.iter().map(|feature| (*feature, self.support(*feature)))
    }
}
