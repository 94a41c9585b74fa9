//! What is configured, for the command line: the library's settings, and the keys that only a front end has.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stockade::images::PullPolicy;
use stockade_backends::{remote, ssh};
use stockade_core::{Bytes, Result, Workspace};
use stockade_tools::ApprovalConfig;

use crate::args::host::is_daemon_url;
use crate::profiles::{self, Profile};
use crate::project_cache::CacheChoice;
use crate::terminal::printer::Printer;
use crate::toolchains::ToolchainChoice;

pub use stockade::config::{ConfigSource, load_sources};

/// What is configured. Absent: not set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    library: stockade::Settings,
    /// Which toolchains of the host are shown.
    pub toolchain: Option<ToolchainChoice>,
    /// Which package cache is kept for later runs.
    pub cache: Option<CacheChoice>,
    /// The bytes above which one is cleared when it is next used.
    pub cache_limit: Option<Bytes>,
    /// What an agent's tools may do without asking.
    pub approval: ApprovalConfig,
    /// How the daemon is reached by TCP.
    pub serve: ServeSettings,
    profile: BTreeMap<String, Profile>,
}

/// How the daemon is reached by TCP, where it listens there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServeSettings {
    /// The certificate that it shows.
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate.
    pub tls_key: Option<PathBuf>,
    /// Names of this server beside those of its certificate or, without one, the loopback ones.
    pub allow_hosts: Option<Vec<String>>,
}

/// The keys of a front end in one file or variable.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FrontEndKeys {
    /// Which toolchains of the host are shown.
    toolchain: Option<ToolchainChoice>,
    /// Which package cache is kept for later runs.
    cache: Option<CacheChoice>,
    /// The bytes above which one is cleared when it is next used.
    cache_limit: Option<Bytes>,
    /// What an agent's tools may do without asking.
    approval: ApprovalConfig,
    /// How the daemon is reached by TCP.
    serve: ServeSettings,
    /// Flags under a name. A later file's take the place of an earlier one's of the same name.
    profile: BTreeMap<String, Profile>,
}

impl Deref for Settings {
    type Target = stockade::Settings;

    fn deref(&self) -> &stockade::Settings {
        &self.library
    }
}

impl DerefMut for Settings {
    fn deref_mut(&mut self) -> &mut stockade::Settings {
        &mut self.library
    }
}

impl Settings {
    /// Reads everything there is, except what lies in the workspace.
    pub fn load(workspace: Option<&Workspace>, printer: &Printer) -> Result<Self> {
        let mut own = FrontEndKeys::default();
        let note = |line: &str| printer.note(line);
        let library = stockade::Settings::load_with(workspace, &note, &mut |keys| {
            own = FrontEndKeys::deserialize(keys)?.merge_over(std::mem::take(&mut own));
            Ok(())
        })?;
        let FrontEndKeys { toolchain, cache, cache_limit, approval, serve, profile } = own;
        let key = serve.tls_key.clone();
        let mut settings =
            Self { library, toolchain, cache, cache_limit, approval, serve, profile };
        if let Some(key) = key {
            settings.hide_tls_key(&key);
        }
        Ok(settings)
    }

    /// Lets no guest see the socket on which the daemon listens.
    pub fn hide_socket(&mut self, path: PathBuf) {
        self.library =
            std::mem::take(&mut self.library).with_private_file(path, "the socket of the daemon");
    }

    /// Lets no guest see the private key of the daemon's certificate.
    pub fn hide_tls_key(&mut self, file: &Path) {
        // A path that cannot be made absolute names nothing that could be shown.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        self.library =
            std::mem::take(&mut self.library).with_private_file(file, "the TLS key of the daemon");
    }

    /// The hosts that sandboxes may be built on.
    pub fn hosts(&self) -> Vec<ssh::Host> {
        self.ssh().hosts
    }

    /// The `stockade` to use on other hosts.
    pub fn program_elsewhere(&self) -> Option<PathBuf> {
        self.ssh().program
    }

    fn ssh(&self) -> ssh::factory::SshSettings {
        // It was checked when it was read.
        stockade::backend::read_table(self.backend_table(&ssh::NAME)).unwrap_or_default()
    }

    /// The URL of the daemon that builds sandboxes, if one is named.
    pub fn daemon_url(&self) -> Option<String> {
        let table = self.backend_table(&remote::NAME);
        table.get("url").and_then(toml::Value::as_str).map(str::to_owned)
    }

    /// Has a daemon build sandboxes, where a URL is given.
    pub fn use_daemon(&mut self, host: Option<&str>) {
        if let Some(url) = host.filter(|host| is_daemon_url(host)) {
            self.library = std::mem::take(&mut self.library).with_daemon(url);
        }
    }

    /// Has no other daemon build sandboxes.
    pub fn forget_daemon(&mut self) {
        self.library = std::mem::take(&mut self.library).without_daemon();
    }

    /// Has registries asked by this policy, where one is given.
    pub fn ask_registries(&mut self, policy: Option<PullPolicy>) {
        if let Some(policy) = policy {
            self.library = std::mem::take(&mut self.library).with_pull(policy);
        }
    }

    /// Lets guests of this process see one of its package caches.
    pub fn show_cache(&mut self, dir: &Path) {
        self.library = std::mem::take(&mut self.library).with_guest_cache(dir);
    }

    /// The profile of that name.
    pub fn profile(&self, name: &str) -> Result<&Profile> {
        let known: Vec<_> = self.profile.keys().map(String::as_str).collect();
        self.profile.get(name).ok_or_else(|| profiles::unknown_profile_error(name, &known))
    }

    /// Every profile.
    pub fn profiles(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.profile.iter().map(|(name, profile)| (name.as_str(), profile))
    }
}

impl FrontEndKeys {
    /// These keys, with the ones left out taken from `earlier`.
    fn merge_over(self, earlier: Self) -> Self {
        let mut profile = earlier.profile;
        profile.extend(self.profile);
        // The first rule that matches decides: a later file's come first.
        let mut rules = self.approval.rules;
        rules.extend(earlier.approval.rules);
        let ask_timeout = self.approval.ask_timeout.or(earlier.approval.ask_timeout);
        Self {
            toolchain: self.toolchain.or(earlier.toolchain),
            cache: self.cache.or(earlier.cache),
            cache_limit: self.cache_limit.or(earlier.cache_limit),
            approval: ApprovalConfig { ask_timeout, rules },
            serve: self.serve.merge_over(earlier.serve),
            profile,
        }
    }
}

impl ServeSettings {
    fn merge_over(self, earlier: Self) -> Self {
        Self {
            tls_cert: self.tls_cert.or(earlier.tls_cert),
            tls_key: self.tls_key.or(earlier.tls_key),
            allow_hosts: self.allow_hosts.or(earlier.allow_hosts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of a table, as the parser lists them for one that it does not know.
    fn keys(table: &str) -> Vec<String> {
        let text = format!("{table}\nno-such-key = 1");
        let error = toml::from_str::<FrontEndKeys>(&text).unwrap_err();
        let message = error.message().to_owned();
        let listed =
            message.split_once("expected").unwrap_or_else(|| panic!("{table}: {message}")).1;
        // Every other piece between backticks is a name.
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_page_on_configuration_names_every_key() {
        const CONFIG_DOCS: &str = include_str!("../../../docs/configuration.md");
        const CONFIG_TABLES: [(&str, &str); 6] = [
            ("", ""),
            ("[approval]", "approval."),
            ("[[approval.rules]]", "approval.rules."),
            ("[approval.rules.match]", "approval.rules.match."),
            ("[profile.a]", "profile.NAME."),
            ("[serve]", "serve."),
        ];
        for (table, prefix) in CONFIG_TABLES {
            let table = table.replace(
                "[approval.rules.match]",
                "[[approval.rules]]\nverdict = \"ask\"\n[approval.rules.match]",
            );
            for key in keys(&table) {
                let named = format!("`{prefix}{key}");
                assert!(
                    CONFIG_DOCS.contains(&named),
                    "docs/configuration.md does not name {named}`"
                );
            }
        }
    }
}
