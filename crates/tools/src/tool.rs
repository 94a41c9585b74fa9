//! The tools by name, with what agents are told about them.

use serde_json::Value;

use crate::arguments::{
    self, ApplyPatch, Artifacts, Bash, EditFile, Glob, Grep, ListDir, ReadFile, SandboxCreate,
    SandboxDestroy, SandboxList, SandboxUse, WorkspaceApply, WorkspaceDiff, WriteFile,
};
use crate::browser::{Browse, Screenshot};

/// What an agent is told about a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolInfo {
    /// Its name.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What it does, for an agent that decides whether to call it.
    pub description: &'static str,
    /// The JSON schema of its arguments: an object.
    pub input_schema: Value,
    /// Whether it changes nothing.
    pub read_only: bool,
    /// Whether it may remove or replace what was there.
    pub destructive: bool,
}

macro_rules! tools {
    ($($variant:ident $name:literal $title:literal $args:ty, $effect:expr, $description:literal;)*) => {
        /// Every tool there is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Tool {
            $($variant,)*
        }

        impl Tool {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            pub(crate) fn info(self) -> ToolInfo {
                match self {
                    $(Self::$variant => ToolInfo {
                        name: $name,
                        title: $title,
                        description: $description,
                        input_schema: arguments::build_arguments_schema::<$args>(),
                        read_only: matches!($effect, Effect::Reads),
                        destructive: matches!($effect, Effect::Changes),
                    },)*
                }
            }
        }
    };
}

/// What a tool does to what is there.
enum Effect {
    Reads,
    Adds,
    Changes,
}

tools! {
    Bash "bash" "Run commands" Bash, Effect::Changes,
    "Runs a shell line in the sandbox (action `exec`, the default) and answers stdout, stderr and \
     the exit code. Long output is cut in the middle; `logs` has the whole. For servers and anything \
     that takes long use `start`, then `status`, `logs`, `write` and `stop` with the `jobId` it \
     answers; `list` names every job. Each call is a new shell: directory and variables do not carry \
     over.";
    ReadFile "read_file" "Read a file" ReadFile, Effect::Reads,
    "Reads a text file with line numbers, in whole or by lines (`offset`, `limit`). Binary files are \
     described, not dumped.";
    WriteFile "write_file" "Write a file" WriteFile, Effect::Changes,
    "Writes a whole file in one step: readers see the old or the new one, never a part. Makes the \
     directories above it and keeps the permissions of a file it replaces.";
    EditFile "edit_file" "Edit a file" EditFile, Effect::Changes,
    "Replaces one exact piece of text in a file. `old_string` must occur exactly once, white space \
     included; with `replace_all` every occurrence is replaced.";
    ApplyPatch "apply_patch" "Apply a patch" ApplyPatch, Effect::Changes,
    "Changes, adds, renames and deletes files by a unified diff or a `*** Begin Patch` patch. Either \
     all of it is applied or none.";
    Glob "glob" "Find files" Glob, Effect::Reads,
    "Finds files by name, such as `**/*.rs`, sorted by path. Leaves out what `.gitignore` leaves out \
     and hidden files unless told otherwise.";
    Grep "grep" "Search in files" Grep, Effect::Reads,
    "Searches files line by line for a regular expression (ripgrep's). Leaves out binary files, what \
     `.gitignore` leaves out and hidden files.";
    ListDir "list_dir" "List a directory" ListDir, Effect::Reads,
    "Lists a directory with kinds and sizes, down to `depth` levels. A long one comes in pages: continue \
     with `offset`.";
    Artifacts "artifacts" "Collect files" Artifacts, Effect::Reads,
    "Collects files out of the sandbox, each with its media type: text as text, everything else as \
     base64. Bounded in size.";
    Screenshot "screenshot" "Take a screenshot" Screenshot, Effect::Reads,
    "Takes a screenshot of a web page that the sandbox itself serves.";
    Browser "browser" "Use a web page" Browse, Effect::Changes,
    "A browser in the sandbox with one page, which stays open between calls: `open`, `click`, `type`, `text`, \
     `screenshot`, `close`. Answers hold the page's text and a selector for each element that can be used. For one \
     picture of a page, `screenshot` is the shorter way.";
    SandboxCreate "sandbox_create" "Create a sandbox" SandboxCreate, Effect::Adds,
    "Builds another sandbox and answers its id, for use as `sandbox_id`. It may have limits, an image, a \
     network and a workspace of its own. Asking for more network, higher limits or another image than the \
     server was started with needs a person's consent.";
    SandboxList "sandbox_list" "List sandboxes" SandboxList, Effect::Reads,
    "Lists the sandboxes of this session, and which of them calls use that name none.";
    SandboxUse "sandbox_use" "Switch sandboxes" SandboxUse, Effect::Adds,
    "Has later calls without `sandbox_id` use this sandbox; without one, the one that the server was started \
     with.";
    SandboxDestroy "sandbox_destroy" "Destroy a sandbox" SandboxDestroy, Effect::Changes,
    "Ends a sandbox with everything that runs in it.";
    WorkspaceDiff "workspace_diff" "Show changes" WorkspaceDiff, Effect::Reads,
    "Shows what was changed in a copy-on-write workspace since its start.";
    WorkspaceApply "workspace_apply" "Apply changes" WorkspaceApply, Effect::Changes,
    "Brings the changes of a copy-on-write workspace to the user's own files, as a whole or not at \
     all, and ends the sandbox: the next call begins anew. Files that would run code later are held \
     back unless named. A person is asked.";
}

impl Tool {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|tool| tool.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_is_an_object_that_refuses_unknown_fields() {
        for tool in Tool::ALL {
            let ToolInfo { name, input_schema, .. } = tool.info();
            assert_eq!(input_schema["type"], "object", "{name}");
            assert_eq!(input_schema["additionalProperties"], false, "{name}");
        }
    }

    #[test]
    fn names_lead_back_to_their_tools() {
        for tool in Tool::ALL {
            assert_eq!(Tool::from_name(tool.name()), Some(*tool));
        }
        assert_eq!(Tool::from_name("rm"), None);
    }
}
