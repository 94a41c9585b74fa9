//! Files by name.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use globset::{GlobBuilder, GlobMatcher};
use ignore::WalkState;
use stockade_finder::{Answer, FinderFailure, FinderRequest, shown};

use crate::Refused;
use crate::kept::Firsts;
use crate::root::{SearchRoot, SearchStart};
use crate::walk::{self, Problems, inner};

/// A glob as agents write it: `*` within a name, `**` over directories.
pub fn glob(pattern: &str) -> Result<GlobMatcher, Refused> {
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    built
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Refused(FinderFailure::Glob, error.to_string()))
}

pub fn find(
    request: &FinderRequest,
    root: &SearchRoot,
    pattern: &str,
) -> Result<Vec<Answer>, Refused> {
    let matcher = glob(pattern.strip_prefix("./").unwrap_or(pattern))?;
    let SearchStart::Directory(start) = &root.start else {
        let why = format!("`{}` is a file, not a directory", request.path);
        return Err(Refused(FinderFailure::Unusable, why));
    };
    let (all, problems) = (Mutex::new(Firsts::new(request.limit)), Problems::default());
    walk::over(request, root, start)?.run(|| {
        let mut found = ThreadFirsts { firsts: Firsts::new(request.limit), all: &all };
        let (matcher, problems) = (&matcher, &problems);
        Box::new(move |entry| {
            match entry {
                Ok(entry) => {
                    let directory = entry.file_type().is_none_or(|kind| kind.is_dir());
                    let path = inner(entry.path());
                    if !directory && matcher.is_match(path) {
                        found.firsts.add(path.as_os_str().as_bytes());
                    }
                }
                Err(error) => problems.add(error.to_string()),
            }
            WalkState::Continue
        })
    });
    let (paths, more) = all.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    let end = Answer::End { more, problems: problems.told() };
    Ok(paths.iter().map(|path| Answer::File(shown(path))).chain([end]).collect())
}

/// What one thread found: added to everything when the thread is done, so that none waits for another.
struct ThreadFirsts<'a> {
    firsts: Firsts,
    all: &'a Mutex<Firsts>,
}

impl Drop for ThreadFirsts<'_> {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).merge(&mut self.firsts);
    }
}
