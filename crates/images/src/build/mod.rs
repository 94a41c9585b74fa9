//! Builds: a Dockerfile's everyday subset, the files of its context, and the layers that its steps make.
//!
//! A Dockerfile and its context may be a stranger's: what is not known is an error that names file, line and
//! instruction, and nothing outside of the context's directory is read.

mod copy;
mod dockerfile;
mod ignore;
mod lines;
mod words;

pub use copy::{CopyRequest, CopySource, PackedCopy, in_tree, pack_copy};
pub use dockerfile::{
    BuildStage, BuildStep, CommandForm, CopyStep, Dockerfile, DockerfileError, Instruction,
};
pub use ignore::IgnoreRules;
pub use words::expand_word;
