//! One stage: what its steps have made so far, and each step.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use serde_json::json;
use stockade_core::{Error, ErrorCode, ImageForm, Result};
use stockade_images::{
    AssembledConfig, BuildStep, CommandForm, CopyRequest, CopySource, CopyStep, Digest, EntryState,
    IgnoreRules, ImageConfig, ImageError, ImageReference, Instruction, LayerDraft, LayerWriter,
    PullPolicy, StoredImage, StoredLayer, expand_word, in_tree, pack_copy,
};

use super::{BUILD_OPERATION, ImageBuild, SCRATCH, invalid};

const DEFAULT_SHELL: [&str; 2] = ["/bin/sh", "-c"];
/// Endings of archives, which `ADD` of other builders extracts.
const ARCHIVE_SUFFIXES: [&str; 9] =
    [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst"];

/// What the steps of a stage have made so far.
#[derive(Debug, Clone)]
pub(super) struct StageState {
    pub base: Option<StoredImage>,
    pub layers: Vec<StoredLayer>,
    pub config: ImageConfig,
    pub args: BTreeMap<String, String>,
    shell: Vec<String>,
    created: Option<String>,
    has_command: bool,
    /// Digest of everything that the layers depend on.
    chain: Digest,
}

impl StageState {
    fn new(base: Option<StoredImage>) -> Self {
        let chain = base.as_ref().map_or_else(|| Digest::of(b""), |base| base.manifest.clone());
        Self {
            layers: Vec::new(),
            config: base.as_ref().map(|base| base.config.clone()).unwrap_or_default(),
            created: base.as_ref().and_then(|base| base.created.clone()),
            base,
            args: BTreeMap::new(),
            shell: DEFAULT_SHELL.map(str::to_owned).to_vec(),
            has_command: false,
            chain,
        }
    }

    /// The value of a variable: of the environment, or else of an argument.
    fn lookup(&self, name: &str) -> Option<String> {
        let pairs = self.config.env.iter().filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value);
        values.next().map(str::to_owned).or_else(|| self.args.get(name).cloned())
    }

    fn set_env(&mut self, name: &str, value: &str) {
        let start = format!("{name}=");
        let pair = format!("{start}{value}");
        match self.config.env.iter_mut().find(|known| known.starts_with(&start)) {
            Some(known) => *known = pair,
            None => self.config.env.push(pair),
        }
    }

    fn words_of(&self, command: &CommandForm) -> Vec<String> {
        match command {
            CommandForm::Exec(words) => words.clone(),
            CommandForm::Shell(line) => self.shell.iter().chain([line]).cloned().collect(),
        }
    }

    fn workdir(&self) -> &str {
        match self.config.working_dir.as_str() {
            "" => "/",
            workdir => workdir,
        }
    }
}

/// A step that was done, or is to be.
enum StepResult {
    Cached,
    Done,
}

impl ImageBuild<'_> {
    pub(super) async fn build_stage(&mut self, index: usize) -> Result<StageState> {
        let stage = self.file.stages[index].clone();
        let text = format!("FROM {}", stage.from);
        let first = BuildStep { line: stage.line, text, instruction: Instruction::Arg(Vec::new()) };
        let globals = self.global_args()?;
        let lookup = |name: &str| globals.get(name).cloned();
        let from = expand_word(&stage.from, self.file.escape, &lookup)
            .map_err(|reason| self.step_error(&first, &invalid(&self.label, reason)))?;
        self.report_step(&format!("FROM {from}"), false);
        let mut state = match self.begin_stage(&from, index).await {
            Ok(state) => state,
            Err(error) => return Err(self.step_error(&first, &error)),
        };
        for step in &stage.steps {
            if let Err(error) = self.do_step(&mut state, step, index).await {
                return Err(self.step_error(step, &error));
            }
        }
        Ok(state)
    }

    async fn begin_stage(&self, from: &str, index: usize) -> Result<StageState> {
        if from == SCRATCH {
            return Ok(StageState::new(None));
        }
        if let Some(stage) = self.find_stage(from, index).and_then(|at| self.finished.get(&at)) {
            let mut state = stage.clone();
            (state.args, state.has_command) = (BTreeMap::new(), false);
            return Ok(state);
        }
        Ok(StageState::new(Some(self.pull_image(from).await?)))
    }

    async fn pull_image(&self, name: &str) -> Result<StoredImage> {
        let reference: ImageReference = name.parse().map_err(ImageError::from)?;
        let policy = match self.images.policy() {
            PullPolicy::Always if reference.digest().is_some() => PullPolicy::Missing,
            policy @ (PullPolicy::Always | PullPolicy::Missing | PullPolicy::Never) => policy,
        };
        self.images.pull_form(&reference, policy, ImageForm::Root, self.progress).await
    }

    async fn do_step(
        &mut self,
        state: &mut StageState,
        step: &BuildStep,
        index: usize,
    ) -> Result<()> {
        match &step.instruction {
            Instruction::Run(command) => self.do_run(state, step, command).await,
            Instruction::Copy(copy) => self.do_copy(state, step, copy, index).await,
            Instruction::Workdir(given) => self.do_workdir(state, step, given).await,
            other @ (Instruction::Env(_)
            | Instruction::User(_)
            | Instruction::Arg(_)
            | Instruction::Cmd(_)
            | Instruction::Entrypoint(_)
            | Instruction::Label(_)
            | Instruction::Expose(_)
            | Instruction::Shell(_)) => {
                self.report_step(&step.text, false);
                self.set_config(state, other)
            }
        }
    }

    /// Steps that make no layer.
    fn set_config(&self, state: &mut StageState, instruction: &Instruction) -> Result<()> {
        match instruction {
            Instruction::Env(pairs) => {
                let expanded = self.expand_pairs(state, pairs)?;
                expanded.iter().for_each(|(name, value)| state.set_env(name, value));
            }
            Instruction::Label(pairs) => {
                let expanded = self.expand_pairs(state, pairs)?;
                state.config.labels.extend(expanded);
            }
            Instruction::User(given) => state.config.user = self.expand(state, given)?,
            Instruction::Arg(args) => self.declare_args(state, args)?,
            Instruction::Cmd(command) => {
                state.config.cmd = state.words_of(command);
                state.has_command = true;
            }
            Instruction::Entrypoint(command) => {
                state.config.entrypoint = state.words_of(command);
                if !state.has_command {
                    // One of the image below is for its own entry point.
                    state.config.cmd.clear();
                }
            }
            Instruction::Expose(ports) => {
                for port in ports {
                    let port = self.expand(state, port)?;
                    let port = if port.contains('/') { port } else { format!("{port}/tcp") };
                    if !state.config.exposed_ports.contains(&port) {
                        state.config.exposed_ports.push(port);
                    }
                }
            }
            Instruction::Shell(words) => state.shell.clone_from(words),
            Instruction::Run(_) | Instruction::Copy(_) | Instruction::Workdir(_) => {}
        }
        Ok(())
    }

    fn declare_args(
        &self,
        state: &mut StageState,
        args: &[(String, Option<String>)],
    ) -> Result<()> {
        let globals = self.global_args()?;
        for (name, default) in args {
            let value = match (self.request.args.get(name), default) {
                (Some(given), _) => Some(given.clone()),
                (None, Some(default)) => Some(self.expand(state, default)?),
                (None, None) => globals.get(name).cloned(),
            };
            state.args.extend(value.map(|value| (name.clone(), value)));
        }
        Ok(())
    }

    fn expand(&self, state: &StageState, word: &str) -> Result<String> {
        expand_word(word, self.file.escape, &|name| state.lookup(name))
            .map_err(|reason| Error::new(ErrorCode::Invalid, BUILD_OPERATION, reason))
    }

    fn expand_pairs(
        &self,
        state: &StageState,
        pairs: &[(String, String)],
    ) -> Result<Vec<(String, String)>> {
        let expand = |(name, value): &(String, String)| {
            Ok((self.expand(state, name)?, self.expand(state, value)?))
        };
        pairs.iter().map(expand).collect()
    }

    /// The digest of everything that a step's layer depends on.
    fn step_key(&self, state: &StageState, what: &serde_json::Value) -> Digest {
        let StageState { config, args, chain, .. } = state;
        let around = json!([config.env, config.user, config.working_dir, args]);
        Digest::of(json!([chain, around, what]).to_string().as_bytes())
    }

    async fn do_run(
        &mut self,
        state: &mut StageState,
        step: &BuildStep,
        command: &CommandForm,
    ) -> Result<()> {
        let words = state.words_of(command);
        let (network, backend) = (&self.request.network, &self.request.backend);
        let what = json!(["RUN", words, network, format!("{backend:?}")]);
        let key = self.step_key(state, &what);
        if let StepResult::Cached = self.take_cached(state, step, &key)? {
            return Ok(());
        }
        self.report_step(&step.text, false);
        let layer = self.run_command(state, &words).await?;
        self.add_step(state, key, layer)
    }

    fn take_cached(
        &mut self,
        state: &mut StageState,
        step: &BuildStep,
        key: &Digest,
    ) -> Result<StepResult> {
        let Some(record) = self.images.store()?.find_build(key)? else {
            return Ok(StepResult::Done);
        };
        self.report_step(&step.text, true);
        state.layers.extend(record.layer);
        state.created = Some(record.created.to_string());
        state.chain = key.clone();
        Ok(StepResult::Cached)
    }

    fn add_step(
        &self,
        state: &mut StageState,
        key: Digest,
        layer: Option<StoredLayer>,
    ) -> Result<()> {
        let record = self.images.store()?.add_build(&key, layer)?;
        state.layers.extend(record.layer);
        state.created = Some(record.created.to_string());
        state.chain = key;
        Ok(())
    }

    async fn do_copy(
        &mut self,
        state: &mut StageState,
        step: &BuildStep,
        copy: &CopyStep,
        index: usize,
    ) -> Result<()> {
        let mut sources = Vec::new();
        for source in &copy.sources {
            sources.push(self.expand(state, source)?);
        }
        refuse_archives(copy.is_add, &sources)?;
        let request = CopyRequest {
            sources,
            destination: self.expand(state, &copy.destination)?,
            workdir: state.workdir().to_owned(),
            chmod: copy.chmod,
            max_entries: usize::try_from(self.images.inner.options.limits.entries)
                .unwrap_or(usize::MAX),
        };
        let from = match &copy.from {
            Some(from) => Some(self.open_source(from, index).await?),
            None => None,
        };
        let image = self.assemble(state, None).await?;
        let tree = open_tree(&image)?;
        let draft = self.images.store()?.draft_layer()?;
        let layer = create_layer(&draft)?;
        let source = from.as_ref().unwrap_or(&self.context);
        let packed = pack_copy(source, &request, tree.as_fd(), layer)?;
        let key = self.step_key(state, &json!(["COPY", packed.contents, request.destination]));
        if let StepResult::Cached = self.take_cached(state, step, &key)? {
            return Ok(());
        }
        self.report_step(&step.text, false);
        let layer = match packed.layer.entries {
            0 => None,
            _ => Some(self.images.store()?.add_draft_layer(&draft, &packed.layer)?),
        };
        self.add_step(state, key, layer)
    }

    /// The files of a stage or of another image.
    async fn open_source(&mut self, from: &str, index: usize) -> Result<CopySource> {
        let stage = self.find_stage(from, index).and_then(|at| self.finished.get(&at)).cloned();
        let image = match stage {
            Some(stage) => self.assemble(&stage, None).await?,
            None => self.pull_image(from).await?,
        };
        self.leases.push(self.images.store()?.lease(&image)?);
        Ok(CopySource::open(&image.root, IgnoreRules::default())?)
    }

    async fn do_workdir(
        &mut self,
        state: &mut StageState,
        step: &BuildStep,
        given: &str,
    ) -> Result<()> {
        let given = self.expand(state, given)?;
        let image = self.assemble(state, None).await?;
        let (place, is_there) = in_tree(open_tree(&image)?, state.workdir(), &given)?;
        state.config.working_dir = absolute_path(state.workdir(), &given);
        if is_there {
            self.report_step(&step.text, false);
            return Ok(());
        }
        let key = self.step_key(state, &json!(["WORKDIR", String::from_utf8_lossy(&place)]));
        if let StepResult::Cached = self.take_cached(state, step, &key)? {
            return Ok(());
        }
        self.report_step(&step.text, false);
        let draft = self.images.store()?.draft_layer()?;
        let mut writer = LayerWriter::new(create_layer(&draft)?);
        let failed = |error| {
            Error::new(ErrorCode::System, BUILD_OPERATION, "the layer cannot be written")
                .source(error)
        };
        writer.add_directory(&place, EntryState { mode: 0o755, mtime: 0 }).map_err(failed)?;
        let packed = writer.finish().map_err(failed)?;
        let layer = self.images.store()?.add_draft_layer(&draft, &packed)?;
        self.add_step(state, key, Some(layer))
    }

    /// The image of a state: with a name the result, without one an intermediate state.
    pub(super) async fn assemble(
        &mut self,
        state: &StageState,
        name: Option<&ImageReference>,
    ) -> Result<StoredImage> {
        let store = self.images.store()?;
        let usual = &self.images.inner.options;
        let config = AssembledConfig {
            config: state.config.clone(),
            platform: state.base.as_ref().map_or(&usual.platform, |base| &base.platform).clone(),
            created: state.created.clone(),
        };
        let work = (&self.images.inner.unpack as &dyn stockade_images::Unpack, self.progress);
        let (base, layers) = (state.base.as_ref(), &state.layers);
        let image = store.assemble(base, layers, &config, name, &usual.limits, work).await?;
        self.leases.push(store.lease(&image)?);
        Ok(image)
    }
}

fn refuse_archives(is_add: bool, sources: &[String]) -> Result<()> {
    let is_archive = |source: &&String| ARCHIVE_SUFFIXES.iter().any(|end| source.ends_with(end));
    match sources.iter().find(is_archive).filter(|_| is_add) {
        Some(archive) => {
            let message =
                format!("`{}` is an archive, which is not extracted", archive.escape_debug());
            Err(Error::new(ErrorCode::Unsupported, BUILD_OPERATION, message)
                .remedy("use COPY, and extract it in a RUN"))
        }
        None => Ok(()),
    }
}

fn open_tree(image: &StoredImage) -> Result<File> {
    File::open(&image.root).map_err(|error| {
        Error::new(ErrorCode::System, BUILD_OPERATION, "the image's tree cannot be opened")
            .source(error)
    })
}

pub(in crate::images) fn create_layer(draft: &LayerDraft) -> Result<File> {
    let opened =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft.layer_path());
    opened.map_err(|error| {
        Error::new(ErrorCode::System, BUILD_OPERATION, "the layer cannot be written").source(error)
    })
}

/// A path from the root on, without `.` and `..`.
fn absolute_path(workdir: &str, given: &str) -> String {
    let whole =
        if given.starts_with('/') { given.to_owned() } else { format!("{workdir}/{given}") };
    let mut parts = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_directory_is_absolute() {
        for (workdir, given, path) in
            [("/", "a", "/a"), ("/a", "b/./c", "/a/b/c"), ("/a", "/b", "/b"), ("/a", "../..", "/")]
        {
            assert_eq!(absolute_path(workdir, given), path);
        }
    }

    #[test]
    fn the_environment_wins_over_arguments() {
        let mut state = StageState::new(None);
        state.args.insert("A".to_owned(), "argument".to_owned());
        assert_eq!(state.lookup("A").as_deref(), Some("argument"));
        state.set_env("A", "1");
        state.set_env("A", "2");
        assert_eq!((state.lookup("A").as_deref(), state.config.env.len()), (Some("2"), 1));
    }
}
