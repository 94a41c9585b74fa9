//! `[profile.NAME]` of the configuration: flags under a name. What the command line says wins, and what a
//! profile leaves out is as configured for every command.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use stockade_core::{
    BackendChoice, Boundary, EnvName, Error, ErrorCode, Feature, Limits, Result, TenantName,
};

use crate::args::{ImageArg, MountArg, NetArg, SpecArgs};
use crate::config::Settings;
use crate::project_cache::CacheChoice;
use crate::toolchains::ToolchainChoice;

const PROFILE_FLAG: &str = "--profile";

/// One profile. Texts are what the flags of those names take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Profile {
    backend: Option<BackendChoice>,
    host: Option<String>,
    boundaries: Vec<Boundary>,
    image: Option<String>,
    net: Option<String>,
    mounts: Vec<String>,
    env: Vec<String>,
    read_only: bool,
    writable_root: bool,
    toolchain: Option<ToolchainChoice>,
    cache: Option<CacheChoice>,
    without: Vec<Feature>,
    strict: Option<bool>,
    tenant: Option<TenantName>,
    limits: Limits,
}

impl Profile {
    /// Whether all of it can be read.
    pub fn check(&self, name: &str) -> Result<()> {
        parse_profile_value::<ImageArg>(name, "image", self.image.as_deref())?;
        self.parse_net(name)?;
        self.check_env(name)?;
        check_limits(&format!("profile.{name}.limits"), &self.limits)?;
        self.mounts.iter().try_for_each(|mount| mount_of(name, mount).map(drop))
    }

    /// The backend that it names.
    pub const fn backend(&self) -> Option<&BackendChoice> {
        self.backend.as_ref()
    }

    /// Names alone: a variable without a value is looked for when a command is run.
    fn check_env(&self, profile: &str) -> Result<()> {
        self.env.iter().try_for_each(|given| {
            let name = given.split_once('=').map_or(given.as_str(), |(name, _)| name);
            parse_profile_value::<EnvName>(profile, "env", Some(name)).map(drop)
        })
    }

    /// The flags with what this profile says of those that were not given, and the settings with its limits.
    pub fn under(
        &self,
        name: &str,
        flags: &SpecArgs,
        settings: &Settings,
    ) -> Result<(SpecArgs, Settings)> {
        let (mut flags, mut settings) = (flags.clone(), settings.clone());
        flags.backend = flags.backend.or_else(|| self.backend.clone());
        flags.host = flags.host.or_else(|| self.host.clone());
        if flags.boundaries.is_empty() {
            flags.boundaries.clone_from(&self.boundaries);
        }
        if flags.image.is_none() {
            flags.image = parse_profile_value(name, "image", self.image.as_deref())?;
        }
        if flags.surroundings.net.is_none() {
            flags.surroundings.net = self.parse_net(name)?;
        }
        flags.writable_root |= self.writable_root;
        flags.place.read_only |= self.read_only;
        let mounts = self.mounts.iter().map(|mount| mount_of(name, mount));
        flags.place.mounts =
            mounts.chain(flags.place.mounts.into_iter().map(Ok)).collect::<Result<_>>()?;
        let around = &mut flags.surroundings;
        around.env = [self.env.clone(), std::mem::take(&mut around.env)].concat();
        around.without.extend(&self.without);
        around.toolchain = around.toolchain.take().or_else(|| self.toolchain.clone());
        around.cache = around.cache.take().or_else(|| self.cache.clone());
        around.tenant = around.tenant.take().or_else(|| self.tenant.clone());
        settings.limits = self.limits.or(settings.limits);
        settings.strict = self.strict.or(settings.strict);
        Ok((flags, settings))
    }

    /// What may be reached. Never everything: that is unsafe, and asked for by hand each time.
    fn parse_net(&self, name: &str) -> Result<Option<NetArg>> {
        let given = self.net.as_deref();
        let net: Option<NetArg> = parse_profile_value(name, "net", given)?;
        if net.as_ref().is_some_and(NetArg::observes) {
            let why = "it is unsafe, and taken from the command line only";
            return Err(invalid_value_error(name, "net", given.unwrap_or_default(), why));
        }
        Ok(net)
    }
}

/// A value as its flag reads it.
fn parse_profile_value<T: FromStr>(
    profile: &str,
    key: &str,
    given: Option<&str>,
) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    let wrong =
        |given: &str, why: &T::Err| invalid_value_error(profile, key, given, &why.to_string());
    given.map(|given| given.parse().map_err(|why| wrong(given, &why))).transpose()
}

/// A mount by a path that means the same wherever the command stands: what lies there may be a guest's.
fn mount_of(profile: &str, given: &str) -> Result<MountArg> {
    let parsed: MountArg =
        given.parse().map_err(|why: String| invalid_value_error(profile, "mounts", given, &why))?;
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    parsed
        .with_source(|source| match source.strip_prefix("~") {
            Ok(rest) => home().map(|home| home.join(rest)),
            Err(_) => source.is_absolute().then(|| Path::to_owned(source)),
        })
        .ok_or_else(|| {
            invalid_value_error(
                profile,
                "mounts",
                given,
                "its source is neither absolute nor below `~/`",
            )
        })
}

fn invalid_value_error(profile: &str, key: &str, given: &str, why: &str) -> Error {
    let message = format!("profile.{profile}.{key}: `{}`: {why}", given.escape_debug());
    Error::new(ErrorCode::Invalid, "read the configuration", message)
        .remedy("`stockade config show` says where it is set")
}

/// Refuses limits with which no sandbox can be built on any host; `key` is where they are set.
pub fn check_limits(key: &str, limits: &Limits) -> Result<()> {
    let zeroes = limits.zeroes().map(|kind| (kind, "is zero", "leave it out".to_owned()));
    match zeroes.chain(limits.unusable()).next() {
        None => Ok(()),
        Some((kind, reason, remedy)) => {
            let message = format!("{key}: {} {reason}", kind.name());
            Err(Error::new(ErrorCode::Invalid, "read the configuration", message).remedy(remedy))
        }
    }
}

/// There is none of that name.
pub fn unknown_profile_error(name: &str, known: &[&str]) -> Error {
    let remedy = match known {
        [] => "add `[profile.NAME]` to the configuration (docs/configuration.md)".to_owned(),
        known => format!("there are: {}", known.join(", ")),
    };
    let message = format!("no profile `{}` is configured", name.escape_debug());
    Error::new(ErrorCode::NotFound, PROFILE_FLAG, message).remedy(remedy)
}
