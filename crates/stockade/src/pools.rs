//! `[[pool]]` of the configuration: sandboxes that a server keeps ready. A command that makes one
//! sandbox and ends has none: preparing costs what it would save.

use serde::Deserialize;
use stockade_core::{Result, SandboxSpec, Span, Workspace};
use stockade_engine::{Engine, PoolSpec};

/// One pool. What is left out is the engine's own choice.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolSetting {
    /// How many are ready.
    minimum: Option<u32>,
    /// How many there are at most.
    maximum: Option<u32>,
    /// Idle timeout: how long one beyond the minimum may be ready without being used.
    idle: Option<Span>,
    /// How long a caller may wait for one.
    patience: Option<Span>,
    /// What they are prepared for. Absent: what the server makes unless told otherwise.
    spec: Option<SandboxSpec>,
}

impl PoolSetting {
    /// Its spec, if it has one of its own.
    pub fn own_spec(&mut self) -> Option<&mut SandboxSpec> {
        self.spec.as_mut()
    }

    fn build_pool_spec(&self, usual: &SandboxSpec) -> PoolSpec {
        let standard = PoolSpec::of(self.spec.clone().unwrap_or_else(|| usual.clone()));
        let maximum = self.maximum.unwrap_or(standard.maximum.max(self.minimum.unwrap_or(0)));
        PoolSpec {
            minimum: self.minimum.unwrap_or(standard.minimum.min(maximum)),
            maximum,
            idle: self.idle.map_or(standard.idle, Into::into),
            patience: self.patience.map_or(standard.patience, Into::into),
            spec: standard.spec,
        }
    }
}

/// Opens what is configured, and tells `note` of what is left out. One that cannot be opened is an error, not a
/// slower server.
pub async fn open_pools(
    settings: &[PoolSetting],
    usual: &SandboxSpec,
    engine: &Engine,
    note: &dyn Fn(&str),
) -> Result<()> {
    for setting in settings {
        // The flags of one call may ask for it, where the configuration is for all of them.
        if setting.spec.is_none() && matches!(usual.workspace, Workspace::Overlay(_)) {
            note("note: no sandbox is kept ready: each has a copy-on-write workspace of its own");
            continue;
        }
        if let Err(error) = engine.open_pool(setting.build_pool_spec(usual)).await {
            // What earlier ones have ready goes first; if that fails it is reaped, and this is told.
            let _ = engine.close().await;
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pool(text: &str) -> PoolSpec {
        let setting: PoolSetting = toml::from_str(text).unwrap();
        let tenant = "usual".parse().unwrap();
        setting.build_pool_spec(&SandboxSpec { tenant, ..SandboxSpec::default() })
    }

    #[test]
    fn what_is_left_out_fits_what_is_given() {
        let numbers = |text| (pool(text).minimum, pool(text).maximum);
        assert_eq!(numbers(""), (2, 8));
        assert_eq!(numbers("minimum = 20"), (20, 20));
        assert_eq!(numbers("maximum = 1"), (1, 1));
        assert_eq!(numbers("minimum = 0\nmaximum = 3"), (0, 3));
        assert_eq!(pool("idle = \"1m\"").idle, Duration::from_secs(60));
        assert_eq!(pool("patience = \"2s\"").patience, Duration::from_secs(2));
    }

    #[test]
    fn it_is_for_the_servers_own_spec_unless_it_has_one() {
        assert_eq!(pool("").spec.tenant.as_str(), "usual");
        let own = pool("[spec]\nimage = { named = \"debian\" }\n[spec.limits]\nmemory = \"1g\"");
        assert_eq!(own.spec.tenant.as_str(), "default");
        assert_eq!(own.spec.limits.memory.unwrap().0, 1 << 30);
    }
}
