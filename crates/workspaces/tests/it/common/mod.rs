//! What the tests share: a place with a source tree and a state directory, hands that write layers as
//! the kernel's overlay does, and a way to be an ordinary user.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod furniture;
pub mod ordinary;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use stockade_core::WorkspaceId;
use stockade_engine::{Journal, JournalOptions};
use stockade_workspaces::{
    Application, Applied, ApplyOptions, Change, Conflict, Diff, Hint, ManagedWorkspace, Mechanism,
    Request, Workspaces,
};
use tempfile::TempDir;

/// A source tree, a state directory and the workspaces in it.
pub struct Place {
    pub dir: TempDir,
    pub workspaces: Workspaces,
}

impl Place {
    pub fn new() -> Self {
        Self::on(&std::env::temp_dir())
    }

    /// A place on another file system.
    pub fn on(base: &Path) -> Self {
        let dir = tempfile::tempdir_in(base).unwrap();
        fs::create_dir(dir.path().join("source")).unwrap();
        let workspaces = open(&dir.path().join("state"));
        Self { dir, workspaces }
    }

    pub fn source(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("source")
    }

    pub fn acquire(&self, hint: Hint, mechanism: Mechanism) -> ManagedWorkspace {
        let request = Request { mechanism, ..Request::new(hint) };
        wait(self.workspaces.acquire(request)).unwrap()
    }

    pub fn overlay(&self) -> ManagedWorkspace {
        self.acquire(Hint::Overlay(self.source()), Mechanism::Kernel)
    }

    pub fn copied(&self) -> ManagedWorkspace {
        self.acquire(Hint::Overlay(self.source()), Mechanism::Copy)
    }

    pub fn release(&self, id: &WorkspaceId) {
        wait(self.workspaces.release(id)).unwrap();
    }

    /// The upper directory of a kernel view.
    pub fn upper(&self, id: &WorkspaceId) -> PathBuf {
        self.home(id).join("upper")
    }

    pub fn home(&self, id: &WorkspaceId) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("state/workspaces").join(id.as_str())
    }

    pub fn diff(&self, id: &WorkspaceId) -> Diff {
        self.workspaces.diff(id).unwrap()
    }

    /// The changes as lines without what is in brackets.
    pub fn lines(&self, id: &WorkspaceId) -> Vec<String> {
        self.diff(id).changes.iter().map(brief).collect()
    }

    pub fn apply(&self, id: &WorkspaceId) -> Application {
        self.workspaces.apply(id, &ApplyOptions::default()).unwrap()
    }

    pub fn applied(&self, id: &WorkspaceId) -> Applied {
        done(self.apply(id))
    }
}

pub fn done(application: Application) -> Applied {
    match application {
        Application::Applied(applied) => applied,
        Application::Conflict { conflicts } => panic!("{conflicts:?}"),
    }
}

pub fn conflicts(application: Application) -> Vec<Conflict> {
    match application {
        Application::Applied(applied) => panic!("{applied:?}"),
        Application::Conflict { conflicts } => conflicts,
    }
}

pub fn brief(change: &Change) -> String {
    let held = if change.held.is_some() { " held" } else { "" };
    format!("{} {}{held}", change.kind.letter(), change.path)
}

pub fn open(state: &Path) -> Workspaces {
    Workspaces::open(state, Journal::open_in(state, JournalOptions::default()).unwrap()).unwrap()
}

pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Writes a file and the directories above it.
pub fn write(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Writes to a file that is there, so that its change time is another one: the clock of files ticks slowly.
pub fn write_later(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    let changed = || {
        let now = fs::metadata(&path).unwrap();
        (now.ctime(), now.ctime_nsec())
    };
    let before = changed();
    while changed() == before {
        write(&path, &text);
    }
}

pub fn mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Marks a name as gone, as the overlay does.
pub fn whiteout(path: impl AsRef<Path>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    let nothing = Mode::empty();
    rustix::fs::mknodat(CWD, path.as_ref(), FileType::CharacterDevice, nothing, 0).unwrap();
}

/// Marks a directory as hiding what is beneath, as the overlay does.
pub fn opaque(path: impl AsRef<Path>) {
    fs::create_dir_all(path.as_ref()).unwrap();
    rustix::fs::setxattr(path.as_ref(), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
}

/// Marks a file as copied up, as the overlay does.
pub fn copied_up(path: impl AsRef<Path>) {
    rustix::fs::setxattr(path.as_ref(), "user.overlay.origin", b"", XattrFlags::empty()).unwrap();
}

pub fn fifo(path: impl AsRef<Path>) {
    rustix::fs::mknodat(CWD, path.as_ref(), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Where files live in memory, if there is such a place; a kill takes no notice of disks.
pub fn memory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let probe = tempfile::tempdir_in(&memory);
    let fits = probe.is_ok_and(|dir| {
        rustix::fs::setxattr(dir.path(), "user.overlay.x", b"y", XattrFlags::empty()).is_ok()
    });
    if fits { memory } else { std::env::temp_dir() }
}

/// Runs a shell line in the view that a sandbox would have.
pub fn inside(place: &Place, workspace: &ManagedWorkspace, line: &str) {
    let home = place.home(&workspace.id);
    let view = place.dir.path().join("view");
    fs::create_dir_all(&view).unwrap();
    let script = format!(
        "mount -t overlay overlay -o userxattr,lowerdir={lower},upperdir={upper},workdir={work} {view} \\
         && cd {view} && {{ {line}; }}",
        lower = workspace.root.display(),
        upper = home.join("upper").display(),
        work = home.join("work").display(),
        view = view.display(),
    );
    let run = Command::new("unshare").args(["-rm", "sh", "-ec", &script]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Everything in a tree: names, kinds, modes, contents and where links lead.
pub fn picture(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut seen = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let data = fs::symlink_metadata(&path).unwrap();
            let what = if data.is_dir() {
                pending.push(path.clone());
                "directory".to_owned()
            } else if data.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else if data.is_file() && data.len() < 1 << 24 {
                format!("{:?}", String::from_utf8_lossy(&fs::read(&path).unwrap()))
            } else {
                format!("{} bytes", data.len())
            };
            let name = path.strip_prefix(root).unwrap().to_owned();
            seen.insert(name, format!("{:o} {what}", data.mode()));
        }
    }
    seen
}
