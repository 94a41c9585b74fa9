//! A real backend of this host as a subject of the kit.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use stockade_core::{Backend, ImageName};

use crate::{HostObserver, Observer, Subject};

/// A backend that builds real walls on this host, seen from outside by looking at the host.
pub struct OnHost {
    backend: Arc<dyn Backend>,
    engine: Option<(PathBuf, Vec<String>)>,
    namespaces: bool,
    directories: Vec<PathBuf>,
    image: Option<ImageName>,
}

impl OnHost {
    /// Judges this backend.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, engine: None, namespaces: true, directories: Vec::new(), image: None }
    }

    /// One whose sandboxes have no namespaces of their own.
    #[must_use]
    pub fn without_namespaces(self) -> Self {
        Self { namespaces: false, ..self }
    }

    /// One that may leave something in this directory.
    #[must_use]
    pub fn leaving_nothing_in(mut self, directory: PathBuf) -> Self {
        self.directories.push(directory);
        self
    }

    /// One that knows an image with the probe in it by this name.
    #[must_use]
    pub fn with_image(self, image: ImageName) -> Self {
        Self { image: Some(image), ..self }
    }

    /// With a program that runs [`crate::serve_engine`] on such a backend, for the kit to kill.
    #[must_use]
    pub fn with_engine_process(self, program: PathBuf, arguments: Vec<String>) -> Self {
        Self { engine: Some((program, arguments)), ..self }
    }
}

impl Subject for OnHost {
    fn name(&self) -> String {
        self.backend.name().to_string()
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(HostObserver::new(self.directories.clone()))
    }

    fn named_image(&self) -> Option<ImageName> {
        self.image.clone()
    }

    fn has_namespaces(&self) -> bool {
        self.namespaces
    }

    fn engine_process(&self) -> Option<Command> {
        let (program, arguments) = self.engine.as_ref()?;
        let mut command = Command::new(program);
        command.args(arguments);
        Some(command)
    }
}
