//! What each tool takes. The schema that agents see is derived from the same types that parse what
//! they send, so the two cannot disagree. Unknown fields are refused by name (C-04).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stockade_core::{EnvName, ImageName, JobId, Limits, Network, SandboxId, SandboxPath};

use crate::ToolError;

/// Reads arguments, naming the field that is wrong.
pub(crate) fn parse_arguments<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    let arguments = if arguments.is_null() { Value::Object(Default::default()) } else { arguments };
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let field = error.path().to_string();
        let problem = error.into_inner();
        if field == "." {
            return ToolError::new(stockade_core::ErrorCode::Invalid, problem.to_string());
        }
        ToolError::field(&field, problem)
    })
}

/// The schema of a tool's arguments.
pub(crate) fn build_arguments_schema<T: JsonSchema>() -> Value {
    schemars::SchemaGenerator::default().into_root_schema_for::<T>().to_value()
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BashAction {
    /// Run `command` and wait for its end.
    #[default]
    Exec,
    /// Start `command` in the background and answer its `jobId`.
    Start,
    /// How the job `job_id` is doing.
    Status,
    /// What the job `job_id` wrote, from `offset` on.
    Logs,
    /// Give the job `job_id` the text `input`.
    Write,
    /// End the job `job_id`.
    Stop,
    /// Every job of the sandbox.
    List,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stream {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Bash {
    /// What to do; `exec` if left out.
    pub action: BashAction,
    /// The sandbox to use; the bound one if left out.
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// For `exec` and `start`: the shell line to run.
    pub command: Option<String>,
    /// For `exec` and `start`: where to run it, from the workspace on.
    #[schemars(with = "Option<String>")]
    pub working_directory: Option<SandboxPath>,
    /// For `exec` and `start`: variables to add to the environment.
    #[schemars(with = "BTreeMap<String, String>")]
    pub env: BTreeMap<EnvName, String>,
    /// For `exec` and `start`: end it after this long. The sandbox's own limit holds too.
    pub timeout_ms: Option<u64>,
    /// For `exec`: text it reads as standard input. For `write`: text to add to it.
    pub input: Option<String>,
    /// For `write`: end the input afterwards.
    pub close_input: bool,
    /// For `status`, `logs`, `write` and `stop`: the job.
    #[schemars(with = "Option<String>")]
    pub job_id: Option<JobId>,
    /// For `logs`: which stream.
    pub stream: Stream,
    /// For `logs`: the byte to start at.
    pub offset: u64,
    /// For `logs`: the most bytes to answer, 30000 if left out.
    pub limit: Option<u64>,
    /// For `logs` and `status`: wait up to this long for something new, or for the end.
    pub wait_ms: Option<u64>,
    /// For `stop`: a signal such as `SIGINT` to send instead of killing everything at once.
    pub signal: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// The file: relative to the workspace, or absolute in the sandbox's own tree.
    #[schemars(with = "String")]
    pub path: SandboxPath,
    /// The first line to read, from 1.
    #[serde(default)]
    pub offset: Option<u64>,
    /// How many lines to read; 2000 if left out.
    #[serde(default)]
    pub limit: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// The file. Directories above it are made. What was there is replaced in one step.
    #[schemars(with = "String")]
    pub path: SandboxPath,
    /// All of its text.
    pub content: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditFile {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// The file.
    #[schemars(with = "String")]
    pub path: SandboxPath,
    /// The text to replace, exactly as it stands in the file. It must occur once.
    pub old_string: String,
    /// What takes its place.
    pub new_string: String,
    /// Replace every occurrence.
    #[serde(default)]
    pub replace_all: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplyPatch {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// A unified diff (as `git diff` prints it), or a patch between `*** Begin Patch` and
    /// `*** End Patch`. Applied as a whole or not at all.
    pub patch: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Glob {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// Such as `**/*.rs`; matched against paths from `path` on.
    pub pattern: String,
    /// The directory to search; the workspace if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub path: Option<SandboxPath>,
    /// Also files that a `.gitignore` leaves out.
    #[serde(default)]
    pub no_ignore: bool,
    /// Also files and directories whose name begins with a dot.
    #[serde(default)]
    pub hidden: bool,
    /// The most paths to answer; 1000 if left out.
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grep {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// A regular expression as ripgrep reads it, matched line by line.
    pub pattern: String,
    /// The file or directory to search; the workspace if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub path: Option<SandboxPath>,
    /// Only files whose path fits this glob, such as `*.rs`.
    #[serde(default)]
    pub glob: Option<String>,
    /// Take capital and small letters for the same.
    #[serde(default)]
    pub ignore_case: bool,
    /// Take the pattern for plain text.
    #[serde(default)]
    pub fixed: bool,
    /// Lines to show before and after each match.
    #[serde(default)]
    pub context: u32,
    /// Only name the files that match.
    #[serde(default)]
    pub files_only: bool,
    /// Also files that a `.gitignore` leaves out.
    #[serde(default)]
    pub no_ignore: bool,
    /// Also files and directories whose name begins with a dot.
    #[serde(default)]
    pub hidden: bool,
    /// The most matches to answer; 500 if left out.
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDir {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// The directory; the workspace if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub path: Option<SandboxPath>,
    /// How many levels to go down; 1 if left out.
    #[serde(default)]
    pub depth: Option<u32>,
    /// How many entries to leave out: `nextOffset` of the answer before this one.
    #[serde(default)]
    pub offset: u64,
    /// The most entries to answer; 1000 if left out.
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Artifacts {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// The files to collect.
    #[schemars(with = "Vec<String>")]
    pub paths: Vec<SandboxPath>,
    /// The most bytes of one file; larger ones are named without their content.
    #[serde(default)]
    pub max_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxCreate {
    /// What it may reach: `none`, `loopback`, or `{"egress": ["host", "*.host:443"]}`. Its own
    /// loopback unless told otherwise.
    #[schemars(with = "Option<Value>")]
    pub network: Option<Network>,
    /// Limits such as `{"memory": "1g", "wallTime": "5m"}`.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub limits: Limits,
    /// A directory of the user's machine to work in instead of the usual one: its whole path, or from the usual one
    /// on. Only what the user has allowed.
    pub workspace: Option<String>,
    /// A git repository to work on a checkout of, instead of the usual workspace: an `https://` address, which needs a
    /// person's consent. Changes are kept apart from the repository.
    pub git: Option<String>,
    /// A branch, tag or commit of that repository; its default branch if left out.
    pub rev: Option<String>,
    /// An empty workspace of its own instead of the usual one.
    pub empty_workspace: bool,
    /// An image for its root, by name, such as `debian:12`. Another than the server's needs a person's consent.
    #[schemars(with = "Option<String>")]
    pub image: Option<ImageName>,
    /// Names to find it again by. Never a place for secrets.
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxList {}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SandboxUse {
    /// The sandbox that later calls use which name none; the bound one if left out.
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SandboxDestroy {
    /// The sandbox to end.
    #[schemars(with = "String")]
    pub sandbox_id: SandboxId,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkspaceDiff {
    /// The sandbox whose workspace it is; the bound one if left out.
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// Also the changes themselves, as a unified diff.
    pub patch: bool,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkspaceApply {
    /// The sandbox whose workspace it is; the bound one if left out.
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// Paths that are held back unless they are named here.
    pub include: Vec<String>,
}
