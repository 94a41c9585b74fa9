//! A real backend of this host as a subject of the kit.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use stockade_core::{Backend, BackendChoice, HostPath, Image, ImageName, SandboxSpec};
use tempfile::TempDir;

use crate::{
    ENGINE_STATE, HostObserver, Observer, ProbeForm, Subject, Verdict, probe_bytes,
    wasm_probe_bytes,
};

/// A backend that builds real walls on this host, seen from outside by looking at the host.
pub struct OnHost {
    backend: Arc<dyn Backend>,
    engine: Option<(PathBuf, Vec<String>)>,
    namespaces: bool,
    directories: Vec<PathBuf>,
    probe: ProbeForm,
    image: Option<(HostPath, Arc<TempDir>)>,
    named_image: Option<ImageName>,
}

impl OnHost {
    /// Judges this backend.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let probe = ProbeForm::Native(probe_bytes());
        let (directories, image, named_image) = (Vec::new(), None, None);
        Self { backend, engine: None, namespaces: true, directories, probe, image, named_image }
    }

    /// One whose programs are WebAssembly: the probe is, and is its image too.
    pub fn of_wasm(backend: Arc<dyn Backend>) -> Verdict<Self> {
        let place = place_for_an_image()?;
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755))?;
        let file = place.path().join("image.wasm");
        std::fs::write(&file, wasm_probe_bytes())?;
        let image = Some((HostPath::try_from(file)?, Arc::new(place)));
        let probe = ProbeForm::Wasm(wasm_probe_bytes());
        Ok(Self { probe, image, ..Self::new(backend) })
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
        Self { named_image: Some(image), ..self }
    }

    /// With a program that runs [`crate::serve_engine`] on such a backend, for the kit to kill.
    #[must_use]
    pub fn with_engine_process(self, program: PathBuf, arguments: Vec<String>) -> Self {
        Self { engine: Some((program, arguments)), ..self }
    }
}

/// A process that is there to be killed cannot take its own away: it lies with what the kit does.
fn place_for_an_image() -> std::io::Result<TempDir> {
    let mut place = tempfile::Builder::new();
    place.prefix("stockade-image-");
    let state = std::env::var_os(ENGINE_STATE).map(PathBuf::from);
    match state.as_deref().and_then(Path::parent) {
        Some(kept) => place.tempdir_in(kept),
        None => place.tempdir(),
    }
}

impl Subject for OnHost {
    fn name(&self) -> String {
        self.backend.name().to_string()
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    fn probe(&self) -> ProbeForm {
        self.probe
    }

    fn spec(&self) -> SandboxSpec {
        let backend = BackendChoice::Named(self.backend.name());
        let image = self.image.as_ref().map(|(path, _)| Image::Wasm(path.clone()));
        SandboxSpec { backend, image: image.unwrap_or_default(), ..SandboxSpec::default() }
    }

    fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(HostObserver::new(self.directories.clone()))
    }

    fn named_image(&self) -> Option<ImageName> {
        self.named_image.clone()
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
