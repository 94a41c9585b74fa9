//! `RUN`: a command in a sandbox of its own, over what the steps before have made; its changes are a layer.

use std::collections::BTreeMap;
use std::path::Path;

use async_trait::async_trait;
use stockade_core::{
    Bytes, Command, Ending, EnvName, Error, ErrorCode, Image, Limits, Outcome, Result, RootMode,
    SandboxId, SandboxPath, SandboxSpec, Span, StreamId, User,
};
use stockade_engine::{Engine, OutputEvent, Subscription};
use stockade_images::{
    CopySource, IgnoreRules, ImageReference, SandboxRoot, StoredImage, StoredLayer,
};

use super::stage::StageState;
use super::user::resolve_user;
use super::{BUILD_OPERATION, BuildReport, ImageBuild};
use crate::images::commit::{RootArchiver, gather, list_ignored, list_places};
use crate::images::lines::{clean_line, drain_lines};
use crate::images::provider::pinned_name;

/// The name under which intermediate states are found, by their digest.
const INTERMEDIATE_NAME: &str = "localhost/stockade-build";
const RUN_TENANT: &str = "images";
pub(in crate::images) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Limits of one `RUN`.
const RUN_TIMEOUT: Span = Span::secs(3600);
const RUN_MEMORY: Bytes = Bytes::mib(2048);
const RUN_DISK: Bytes = Bytes::mib(4096);
const RUN_OUTPUT: Bytes = Bytes::mib(64);
const RUN_PROCESSES: u32 = 1024;

/// A sandbox of this process.
struct EngineRoot<'a> {
    engine: &'a Engine,
    id: &'a SandboxId,
}

#[async_trait]
impl RootArchiver for EngineRoot<'_> {
    async fn archive_tree(&mut self, path: &SandboxPath, into: &Path, most: u64) -> Result<()> {
        self.engine.archive_tree(self.id, path, into, most).await
    }
}

impl ImageBuild<'_> {
    /// Runs a command over a state; answers with the layer of its changes, if it made any.
    pub(super) async fn run_command(
        &mut self,
        state: &StageState,
        words: &[String],
    ) -> Result<Option<StoredLayer>> {
        let image = self.assemble(state, None).await?;
        let spec = self.build_spec(state, &image)?;
        let id = self.engine.create(spec.clone()).await?;
        let made = self.run_in(&id, words, &spec, &image).await;
        self.engine.destroy(&id).await.and(made)
    }

    async fn run_in(
        &self,
        id: &SandboxId,
        words: &[String],
        spec: &SandboxSpec,
        image: &StoredImage,
    ) -> Result<Option<StoredLayer>> {
        let command = Command::program(words);
        // The command ends with its execution.
        let (_execution, events) = self.engine.exec_followed(id, command).await?;
        let outcome = pass_output(events, self.report).await;
        check_outcome(outcome.as_ref())?;
        let store = self.images.store()?;
        let draft = store.draft_layer()?;
        let limits = &self.images.inner.options.limits;
        let mut root = EngineRoot { engine: self.engine, id };
        let places = list_places(&image.root)?;
        let archives = gather(&mut root, &draft, places, limits.unpacked_bytes).await?;
        let root = SandboxRoot { archives, ignored: list_ignored(spec) };
        let work = (&self.images.inner.unpack as &dyn stockade_images::Unpack, self.progress);
        Ok(store.add_root_layer(image, root, limits, work).await?)
    }

    fn build_spec(&self, state: &StageState, image: &StoredImage) -> Result<SandboxSpec> {
        let failed = |message: String| Error::new(ErrorCode::Invalid, BUILD_OPERATION, message);
        let name: ImageReference =
            INTERMEDIATE_NAME.parse().map_err(|error| failed(format!("{error}")))?;
        let workdir = match state.config.working_dir.as_str() {
            "" => "/",
            workdir => workdir,
        };
        let user = match state.config.user.as_str() {
            "" => User { uid: 0, gid: 0 },
            user => resolve_user(user, &CopySource::open(&image.root, IgnoreRules::default())?)?,
        };
        Ok(SandboxSpec {
            backend: self.request.backend.clone(),
            image: Image::Named(pinned_name(&name, &image.manifest)?),
            root: RootMode::CopyOnWrite,
            env: build_env(state)?,
            user: Some(user),
            workdir: Some(workdir.parse().map_err(|error| failed(format!("{error}")))?),
            network: self.request.network.clone(),
            limits: Limits {
                wall_time: Some(RUN_TIMEOUT),
                memory: Some(RUN_MEMORY),
                disk: Some(RUN_DISK),
                output: Some(RUN_OUTPUT),
                processes: Some(RUN_PROCESSES),
                ..Limits::default()
            },
            tenant: RUN_TENANT.parse().map_err(|error| failed(format!("{error}")))?,
            ..SandboxSpec::default()
        })
    }
}

/// The image's environment over the build's arguments.
fn build_env(state: &StageState) -> Result<BTreeMap<EnvName, String>> {
    let mut env = BTreeMap::new();
    let path = ("PATH".to_owned(), DEFAULT_PATH.to_owned());
    let args = state.args.iter().map(|(name, value)| (name.clone(), value.clone()));
    let set = state.config.env.iter().filter_map(|pair| pair.split_once('='));
    let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
    for (name, value) in std::iter::once(path).chain(args).chain(set) {
        let name: EnvName = name.parse().map_err(|_| {
            let message = format!("`{}` is no name of a variable", name.escape_debug());
            Error::new(ErrorCode::Invalid, BUILD_OPERATION, message)
        })?;
        env.insert(name, value);
    }
    Ok(env)
}

/// Passes output on, line by line and cleaned, until the command ends.
async fn pass_output(mut events: Subscription, report: &dyn BuildReport) -> Option<Outcome> {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(event) = events.next().await {
        match event {
            OutputEvent::Output { stream, data, .. } => {
                let pending = match stream {
                    StreamId::Stdout => &mut out,
                    StreamId::Stderr => &mut err,
                };
                pending.extend_from_slice(&data);
                drain_lines(pending).iter().for_each(|line| report.output(line));
            }
            OutputEvent::Gap { bytes, .. } => {
                report.output(&format!("({bytes} bytes are missing)"))
            }
            OutputEvent::End(outcome) => {
                for rest in [out, err].iter().filter(|rest| !rest.is_empty()) {
                    report.output(&clean_line(rest));
                }
                return Some(outcome);
            }
        }
    }
    None
}

fn check_outcome(outcome: Option<&Outcome>) -> Result<()> {
    let why = match outcome.map(|outcome| &outcome.ending) {
        Some(Ending::Exited(0)) => return Ok(()),
        Some(Ending::Exited(code)) => format!("the command ended with exit code {code}"),
        Some(Ending::Signalled(signal)) => format!("the command was ended by {signal:?}"),
        Some(Ending::StartFailed(failure)) => failure.detail().to_owned(),
        Some(Ending::LimitExceeded(limit)) => format!("the command reached the limit of {limit}"),
        Some(Ending::TimedOut) => format!("the command took longer than {RUN_TIMEOUT}"),
        Some(Ending::Refused(why) | Ending::Lost(why)) => why.clone(),
        Some(Ending::Cancelled | Ending::Killed) | None => "the command was ended".to_owned(),
    };
    Err(Error::new(ErrorCode::Invalid, BUILD_OPERATION, why))
}
