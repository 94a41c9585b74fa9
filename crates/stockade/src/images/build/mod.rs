//! Builds an image of a Dockerfile: stage by stage, each `RUN` in a sandbox, each step's changes as a layer.
//!
//! Steps are cached by everything that they depend on. The image and its name are published at the end: a build that is
//! killed leaves layers and intermediate states that the next build uses, and nothing that anyone would run.

mod run;
mod stage;
mod user;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use stockade_core::{BackendChoice, Error, ErrorCode, Network, Result};
use stockade_engine::Engine;
use stockade_images::{
    BuildStep, CopySource, Dockerfile, DockerfileError, IgnoreRules, ImageLease, ImageReference,
    PullProgress, StoreHold, StoredImage, expand_word,
};

pub(super) use self::run::DEFAULT_PATH;
use self::stage::StageState;
pub(super) use self::stage::create_layer;
use super::Images;

const BUILD_OPERATION: &str = "build";
const DOCKERFILE_NAME: &str = "Dockerfile";
const IGNORE_FILE: &str = ".dockerignore";
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// The base that is nothing.
const SCRATCH: &str = "scratch";

/// What is to be built.
#[derive(Debug)]
pub struct BuildRequest {
    /// The directory with the files.
    pub context: PathBuf,
    /// The Dockerfile; absent: the one in the context.
    pub dockerfile: Option<PathBuf>,
    /// Values of `ARG`.
    pub args: BTreeMap<String, String>,
    /// The stage to end with; absent: the last one.
    pub target: Option<String>,
    /// What `RUN` may reach.
    pub network: Network,
    /// Which backend `RUN` runs on.
    pub backend: BackendChoice,
    /// The name of the image.
    pub name: ImageReference,
}

/// Where a build tells what it does.
pub trait BuildReport: Send + Sync {
    /// A step begins, or was found in the cache.
    fn step(&self, line: &str);
    /// A program wrote a line, cleaned.
    fn output(&self, line: &str);
}

/// A build under way.
struct ImageBuild<'a> {
    images: &'a Images,
    engine: &'a Engine,
    request: &'a BuildRequest,
    report: &'a dyn BuildReport,
    progress: &'a dyn PullProgress,
    file: Dockerfile,
    /// The Dockerfile's name in messages.
    label: String,
    context: CopySource,
    finished: HashMap<usize, StageState>,
    leases: Vec<ImageLease>,
    steps_begun: usize,
    step_count: usize,
    _hold: StoreHold,
}

impl Images {
    /// Builds an image.
    pub async fn build(
        &self,
        request: &BuildRequest,
        engine: &Engine,
        report: &dyn BuildReport,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        request.name.check_assignable().map_err(stockade_images::ImageError::from)?;
        let context = CopySource::open(&request.context, IgnoreRules::default())?;
        let (label, text) = read_dockerfile(request, &context)?;
        let file = Dockerfile::parse(&text).map_err(|error| located(&label, &error))?;
        let rules = context.read_small(IGNORE_FILE, MAX_TEXT_BYTES)?.unwrap_or_default();
        let rules = IgnoreRules::parse(&rules).map_err(|reason| invalid(IGNORE_FILE, reason))?;
        let mut build = ImageBuild {
            images: self,
            engine,
            request,
            report,
            progress,
            file,
            label,
            context: context.with_rules(rules),
            finished: HashMap::new(),
            leases: Vec::new(),
            steps_begun: 0,
            step_count: 0,
            _hold: self.store()?.hold().await?,
        };
        build.build().await
    }
}

impl ImageBuild<'_> {
    async fn build(&mut self) -> Result<StoredImage> {
        self.check_args()?;
        let target = self.target_stage()?;
        let mut needed = vec![false; self.file.stages.len()];
        self.mark_needed(target, &mut needed);
        let stages = self.file.stages.iter().zip(&needed).filter(|(_, needed)| **needed);
        self.step_count = stages.map(|(stage, _)| stage.steps.len() + 1).sum();
        for index in (0..=target).filter(|index| needed[*index]) {
            let state = self.build_stage(index).await?;
            self.finished.insert(index, state);
        }
        let state = self.finished.remove(&target);
        let state = state.ok_or_else(|| invalid(&self.label, "the stage was not built"))?;
        let name = self.request.name.clone();
        self.assemble(&state, Some(&name)).await
    }

    /// Refuses values for arguments that nothing declares: they would be without effect.
    fn check_args(&self) -> Result<()> {
        let declared = |name: &String| {
            let steps = self.file.stages.iter().flat_map(|stage| &stage.steps);
            let mut all = steps.flat_map(|step| step.declared_args()).chain(&self.file.global_args);
            all.any(|(declared, _)| declared == name)
        };
        match self.request.args.keys().find(|name| !declared(name)) {
            Some(name) => {
                Err(invalid(&self.label, &format!("no ARG `{}` is there", name.escape_debug())))
            }
            None => Ok(()),
        }
    }

    fn target_stage(&self) -> Result<usize> {
        match &self.request.target {
            None => Ok(self.file.stages.len() - 1),
            Some(name) => self.find_stage(name, self.file.stages.len()).ok_or_else(|| {
                invalid(&self.label, &format!("there is no stage `{}`", name.escape_debug()))
            }),
        }
    }

    /// A stage before this one, by its name or its number from 0.
    fn find_stage(&self, name: &str, before: usize) -> Option<usize> {
        let stages = &self.file.stages[..before];
        let lower = name.to_ascii_lowercase();
        let by_name = stages.iter().rposition(|stage| stage.name.as_ref() == Some(&lower));
        by_name.or_else(|| name.parse().ok().filter(|number| *number < before))
    }

    /// Marks a stage and those that it takes from.
    fn mark_needed(&self, index: usize, needed: &mut [bool]) {
        if std::mem::replace(&mut needed[index], true) {
            return;
        }
        let stage = &self.file.stages[index];
        let copies = stage.steps.iter().filter_map(BuildStep::copied_from);
        let named = std::iter::once(stage.from.as_str()).chain(copies);
        let sources: Vec<_> = named.filter_map(|name| self.find_stage(name, index)).collect();
        for source in sources {
            self.mark_needed(source, needed);
        }
    }

    /// Values of the arguments before the first `FROM`.
    fn global_args(&self) -> Result<BTreeMap<String, String>> {
        let mut values = BTreeMap::new();
        for (name, default) in &self.file.global_args {
            let given = self.request.args.get(name).cloned();
            let value = match (given, default) {
                (Some(given), _) => given,
                (None, Some(default)) => {
                    let lookup = |name: &str| values.get(name).cloned();
                    let expanded = expand_word(default, self.file.escape, &lookup);
                    expanded.map_err(|reason| invalid(&self.label, reason))?
                }
                (None, None) => continue,
            };
            values.insert(name.clone(), value);
        }
        Ok(values)
    }

    fn report_step(&mut self, text: &str, is_cached: bool) {
        self.steps_begun += 1;
        let cached = if is_cached { "  (cached)" } else { "" };
        let text = stockade_core::clean_foreign(text);
        self.report.step(&format!("[{}/{}] {text}{cached}", self.steps_begun, self.step_count));
    }

    /// What went wrong with a step, by file, line and instruction.
    fn step_error(&self, step: &BuildStep, error: &Error) -> Error {
        let keyword = step.text.split(' ').next().unwrap_or_default().to_ascii_uppercase();
        let told = format!("{}, line {}: {keyword}: {}", self.label, step.line, error.message());
        let told = Error::new(error.code(), BUILD_OPERATION, told);
        match error.hint() {
            Some(hint) => told.remedy(hint.to_owned()),
            None => told,
        }
    }
}

/// The text of the Dockerfile, and its name in messages. One that the operator names may lie anywhere.
fn read_dockerfile(request: &BuildRequest, context: &CopySource) -> Result<(String, String)> {
    let Some(path) = &request.dockerfile else {
        let text = context.read_small(DOCKERFILE_NAME, MAX_TEXT_BYTES)?;
        let missing = || {
            let message = format!("there is no {DOCKERFILE_NAME} in the directory");
            Error::new(ErrorCode::NotFound, BUILD_OPERATION, message).remedy("name it with -f FILE")
        };
        return Ok((DOCKERFILE_NAME.to_owned(), text.ok_or_else(missing)?));
    };
    let unreadable = |error| {
        let message = format!("`{}` cannot be read", path.display());
        Error::new(ErrorCode::NotFound, BUILD_OPERATION, message).source(error)
    };
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    Ok((path.display().to_string(), text))
}

fn located(label: &str, error: &DockerfileError) -> Error {
    let message = stockade_core::clean_foreign(&format!("{label}, {error}"));
    Error::new(ErrorCode::Invalid, BUILD_OPERATION, message)
        .remedy("see docs/image-commands.md for what a Dockerfile may have")
}

fn invalid(label: &str, reason: &str) -> Error {
    Error::new(ErrorCode::Invalid, BUILD_OPERATION, format!("{label}: {reason}"))
}
