//! Files by name.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkState;
use stockade_finder::{Answer, Failure, Request};

use crate::Refused;
use crate::kept::Kept;
use crate::root::{Root, Start};
use crate::walk::{self, Problems, inner};

/// A glob as agents write it: `*` within a name, `**` over directories.
pub fn glob(pattern: &str) -> Result<GlobMatcher, Refused> {
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    built
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Refused(Failure::Glob, error.to_string()))
}

pub fn find(request: &Request, root: &Root, pattern: &str) -> Result<Vec<Answer>, Refused> {
    let matcher = glob(pattern.strip_prefix("./").unwrap_or(pattern))?;
    let Start::Directory(start) = &root.start else {
        let why = format!("`{}` is a file, not a directory", request.path);
        return Err(Refused(Failure::Unusable, why));
    };
    let (kept, problems) = (Mutex::new(Kept::new(request.limit)), Problems::default());
    walk::over(request, root, start)?.run(|| {
        Box::new(|entry| {
            match entry {
                Ok(entry) => {
                    let directory = entry.file_type().is_none_or(|kind| kind.is_dir());
                    if !directory && matcher.is_match(inner(entry.path())) {
                        let path = inner(entry.path()).as_os_str().as_bytes().to_vec();
                        let name = walk::name(entry.path());
                        kept.lock().unwrap_or_else(PoisonError::into_inner).add(path, 1, name);
                    }
                }
                Err(error) => problems.add(error.to_string()),
            }
            WalkState::Continue
        })
    });
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    let end = Answer::End { more: kept.more, problems: problems.told() };
    Ok(kept.into_results().map(Answer::File).chain([end]).collect())
}
