//! What the agent does once, before its loop.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, setrlimit};

use super::files::Roots;
use super::guard::Guard;
use super::landlock_scope::SignalScope;
use super::link::Link;
use super::pid_namespace::KeeperNamespace;
use super::program::Surroundings;
use super::{Agent, sys};

/// The argument which says that a Landlock domain takes the place of a pid namespace.
const SCOPED_ARGUMENT: &str = "--scoped";

/// The argument which says that orphans fall to the first process alone, and to no keeper.
const APART_ARGUMENT: &str = "--apart";

/// Makes everything ready and says hello.
pub fn prepare_agent(mut args: impl Iterator<Item = String>) -> io::Result<Agent> {
    let mut first = args.next();
    let (scoped, apart) =
        (first.as_deref() == Some(SCOPED_ARGUMENT), first.as_deref() == Some(APART_ARGUMENT));
    if scoped || apart {
        first = args.next();
    }
    let (Some(pipe), Some(root)) = (first, args.next()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // The name is for those who look at the host's list of processes; nothing here needs it.
    let _name = args.next();
    if args.next().is_some() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (input, output) = open_pipe(&pipe)?;
    let is_one = !pipe.contains(',');
    let apart = if apart { KeeperNamespace::where_needed()? } else { None };
    // The first process of a kernel has inherited none, and where that is, each call is dear.
    if apart.is_none() {
        sys::default_signals();
    }
    sys::ignore_broken_pipes();
    // Alone in its session, so that no terminal's signals reach it; refused where it already is.
    let _ = sys::begin_session();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // What runs beside it as the same user may neither trace it nor look into its descriptors.
    // Where a Landlock domain keeps them apart, it is the warden outside that has to look.
    let scope =
        if scoped { Some(SignalScope::inherited(rustix::process::getppid())?) } else { None };
    if scope.is_none() {
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut agent = Agent {
        link: Link::new(input, output, is_one),
        children: sys::watch_children()?,
        scope,
        roots: Roots::open(&root)?,
        surroundings: Surroundings {
            root: CString::new(root)?,
            open_files: raise_open_files(),
            scope,
            guard: Guard::where_walls_are(),
            apart,
        },
        channels: BTreeMap::new(),
        highest: 0,
        greeted: false,
        renewed: false,
        next_hunt: None,
    };
    if scoped {
        sys::hold_requests()?;
    }
    agent.greet_first();
    Ok(agent)
}

/// `N`, or `IN,OUT`. Moved out of the way of the standard descriptors, which are then filled.
fn open_pipe(text: &str) -> io::Result<(OwnedFd, OwnedFd)> {
    let (input, output) = text.split_once(',').unwrap_or((text, text));
    let number = |text: &str| text.parse::<RawFd>().map_err(|_| io::ErrorKind::InvalidInput);
    let (input, output) = (number(input)?, number(output)?);
    let pipe = (adopt_pipe_fd(input)?, adopt_pipe_fd(output)?);
    close_inherited(input)?;
    if output != input {
        close_inherited(output)?;
    }
    fill_stdio()?;
    Ok(pipe)
}

/// A copy above the standard descriptors that neither blocks nor survives `exec`.
fn adopt_pipe_fd(number: RawFd) -> io::Result<OwnedFd> {
    let inherited = sys::adopt_fd(number)?;
    let copy = rustix::io::fcntl_dupfd_cloexec(&inherited, 3);
    // Not dropped here: both directions may share the number.
    std::mem::forget(inherited);
    let copy = copy?;
    rustix::fs::fcntl_setfl(&copy, rustix::fs::fcntl_getfl(&copy)? | OFlags::NONBLOCK)?;
    Ok(copy)
}

fn close_inherited(number: RawFd) -> io::Result<()> {
    sys::adopt_fd(number).map(drop)
}

/// Makes sure that 0, 1 and 2 are taken: a pipe that got one of those numbers would be overwritten
/// on its way to a program.
fn fill_stdio() -> io::Result<()> {
    loop {
        let fd = open_null().or_else(|_| rustix::pipe::pipe().map(|(read, _)| read))?;
        if fd.as_raw_fd() > 2 {
            return Ok(());
        }
        std::mem::forget(fd);
    }
}

/// The file that is always empty.
pub fn open_null() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Many channels need many descriptors. Returns the limit as it was, for the programs.
fn raise_open_files() -> Rlimit {
    let found = getrlimit(Resource::Nofile);
    let all = Rlimit { current: found.maximum, maximum: found.maximum };
    // Refused only where the limit is already as it should be.
    let _ = setrlimit(Resource::Nofile, all);
    found
}
