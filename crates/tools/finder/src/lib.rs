//! What the finder is asked and what it answers. One request as its only argument, answers as JSON
//! lines: both sides read them strictly.

use serde::{Deserialize, Serialize};

/// What is to be found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FinderRequest {
    /// The workspace: relative paths resolve beneath it, and never outside (C-21).
    pub workspace: String,
    /// The file or directory to search.
    pub path: String,
    /// Also what ignore files leave out.
    pub no_ignore: bool,
    /// Also what begins with a dot.
    pub hidden: bool,
    /// The most results.
    pub limit: u32,
    /// What to look for.
    pub what: What,
}

/// What to look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum What {
    /// Files whose path fits this glob.
    #[serde(rename_all = "camelCase")]
    Names {
        /// From the directory that is searched on.
        glob: String,
    },
    /// Lines that fit this expression.
    #[serde(rename_all = "camelCase")]
    Lines {
        /// The expression.
        pattern: String,
        /// Only files that fit this glob.
        glob: Option<String>,
        /// Capital and small letters are the same.
        ignore_case: bool,
        /// The expression is plain text.
        fixed: bool,
        /// Lines around each match.
        context: u32,
        /// Only the files' names.
        files_only: bool,
    },
}

/// One line of the answer. The last is always the end or a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    /// A file that fits, from the directory that was searched on.
    File(String),
    /// A line that fits, or one beside it.
    #[serde(rename_all = "camelCase")]
    Line {
        /// The file.
        path: String,
        /// Its number, from 1.
        number: u64,
        /// What it says, cut where it is long.
        text: String,
        /// Whether it fits itself.
        hit: bool,
    },
    /// All that was found has been said.
    #[serde(rename_all = "camelCase")]
    End {
        /// Whether there is more than was asked for.
        more: bool,
        /// What could not be looked into, a few of them.
        problems: Vec<String>,
    },
    /// Nothing was looked for.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// Whose fault it is.
        kind: FinderFailure,
        /// Why.
        why: String,
    },
}

/// Why nothing was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FinderFailure {
    /// The pattern cannot be understood.
    Pattern,
    /// The glob cannot be understood.
    Glob,
    /// There is nothing at the path.
    NotFound,
    /// The path leaves the workspace.
    Escapes,
    /// It cannot be opened or is something else.
    Unusable,
}

/// How a path with anything in it is written in an answer.
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
