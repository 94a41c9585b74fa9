//! The one place that names every backend.

use std::sync::Arc;

use stockade_backends::factory::{BackendFactory, BuildContext};
use stockade_core::{Backend, BackendChoice, BackendName, Error, ErrorCode, Result};
use stockade_engine::CacheDir;

use crate::Settings;

/// What is told of a backend that cannot be chosen.
const CHOOSE_OPERATION: &str = "choose a backend";

/// One line for each backend: its name, which is that of its cargo feature and of its module.
macro_rules! registry {
    ($($feature:tt $module:ident;)*) => {
        /// Every backend that this version knows, whether it is part of this build or not.
        pub const KNOWN_BACKENDS: &[&str] = &[$($feature),*];

        /// The backends of this build, the usual one first. Nothing is built or measured.
        pub fn factories() -> Vec<BackendFactory> {
            vec![$(#[cfg(feature = $feature)] stockade_backends::$module::factory::factory(),)*]
        }
    };
}

registry! {
    "native" native;
    "docker" docker;
    "gvisor" gvisor;
    "landlock" landlock;
    "wasm" wasm;
    "ssh" ssh;
    "microvm" microvm;
    "remote" remote;
    "mock" mock;
}

/// What this build knows of the backend of that name.
pub fn find_factory(name: &BackendName) -> Option<BackendFactory> {
    factories().into_iter().find(|factory| factory.name == *name)
}

/// What the backends of this build keep to save work, and make again where it is missing.
pub fn list_caches(settings: &Settings) -> Result<Vec<CacheDir>> {
    let state = settings.state_dir()?;
    let caches =
        |factory: BackendFactory| (factory.caches)(&settings.backend_table(&factory.name), &state);
    Ok(factories().into_iter().flat_map(caches).collect())
}

/// Every backend that can be had with this choice, the usual one first. One without walls is there only if it is
/// the one that is named.
pub fn build_backends(
    settings: &Settings,
    choice: &BackendChoice,
    context: &BuildContext,
) -> Result<Vec<Arc<dyn Backend>>> {
    let named =
        |name: &BackendName| matches!(choice, BackendChoice::Named(chosen) if chosen == name);
    let factories: Vec<_> = factories()
        .into_iter()
        .filter(|factory| !factory.only_by_name || named(&factory.name))
        .collect();
    if let BackendChoice::Named(name) = choice
        && !factories.iter().any(|factory| factory.name == *name)
    {
        return Err(unknown_backend_error(name, &factories));
    }
    let pull = settings.images().pull.unwrap_or_default();
    let build = |factory: &BackendFactory| {
        let context = BuildContext { named: named(&factory.name), pull, ..context.clone() };
        build_from(factory, settings.backend_table(&factory.name), &context)
    };
    factories.iter().map(build).collect()
}

/// One backend by its name and a table of settings.
pub fn build_backend(
    name: &BackendName,
    table: toml::Table,
    context: &BuildContext,
) -> Result<Arc<dyn Backend>> {
    let factory = find_factory(name).ok_or_else(|| unknown_backend_error(name, &factories()))?;
    build_from(&factory, table, context)
}

fn build_from(
    factory: &BackendFactory,
    table: toml::Table,
    context: &BuildContext,
) -> Result<Arc<dyn Backend>> {
    (factory.build)(table, context).map_err(|error| {
        let message = format!("`{}`: {}", factory.name, error.message());
        Error::new(ErrorCode::Invalid, "read the settings of a backend", message)
            .backend(factory.name.clone())
            .remedy("correct its table in the configuration")
    })
}

fn unknown_backend_error(name: &BackendName, known: &[BackendFactory]) -> Error {
    if KNOWN_BACKENDS.contains(&name.as_str()) && find_factory(name).is_none() {
        let message = format!("this build has no backend `{name}`");
        return Error::new(ErrorCode::Unavailable, CHOOSE_OPERATION, message)
            .remedy(format!("build it with the cargo feature `{name}`"));
    }
    let known: Vec<_> = known.iter().map(|factory| factory.name.to_string()).collect();
    Error::new(ErrorCode::NotFound, CHOOSE_OPERATION, format!("there is no backend `{name}`"))
        .remedy(format!("choose one of: auto, {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_of_this_build_is_known_by_its_factorys_name() {
        for factory in factories() {
            assert!(KNOWN_BACKENDS.contains(&factory.name.as_str()), "{}", factory.name);
        }
    }

    #[test]
    fn one_without_walls_is_there_only_by_its_name() {
        let names = |choice: &str| -> Vec<String> {
            let choice = choice.parse().unwrap();
            let built = build_backends(&Settings::default(), &choice, &BuildContext::default());
            built.unwrap().iter().map(|backend| backend.name().to_string()).collect()
        };
        assert!(!names("auto").contains(&"mock".to_owned()));
        #[cfg(feature = "mock")]
        assert!(names("mock").contains(&"mock".to_owned()));
    }

    #[test]
    fn a_name_that_is_no_backend_is_refused_with_those_that_are() {
        let choice = "podman".parse().unwrap();
        let refused = build_backends(&Settings::default(), &choice, &BuildContext::default());
        let error = refused.err().unwrap();
        assert_eq!(error.code(), ErrorCode::NotFound);
        assert!(error.hint().is_some_and(|hint| hint.contains("auto")), "{error}");
    }
}
