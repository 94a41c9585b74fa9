//! The program inside the walls: one thread, one poll loop, no async runtime.
//!
//! It gives every backend the same behaviour: processes, output, input, terminals, signals, files. It
//! enforces nothing: it runs inside the walls, beside untrusted code. It ends, and everything in the sandbox
//! with it, when its pipe closes or does not keep to the protocol.

mod channel;
mod dispatch;
mod file_worker;
mod files;
mod guard;
mod keeper;
mod landlock_scope;
mod link;
mod network;
mod pid_namespace;
mod poll;
mod program;
mod reconnect;
mod run;
mod start;
mod streams;
mod sys;
mod terminal;
mod tree;
mod watch;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Instant;

use channel::Channel;
use files::Roots;
use landlock_scope::SignalScope;
use link::{Link, LinkStop};
use program::Surroundings;

/// Everything the agent knows.
struct Agent {
    link: Link,
    /// Becomes readable when a child ended.
    children: OwnedFd,
    roots: Roots,
    surroundings: Surroundings,
    /// How far signals reach, where a Landlock domain bounds it.
    scope: Option<SignalScope>,
    channels: BTreeMap<u32, Channel>,
    /// The highest channel number so far; every other number up to it has ended.
    highest: u32,
    greeted: bool,
    /// A new peer has come that has not said yet which channels it knows.
    renewed: bool,
    /// When to look again for processes that are to be killed.
    next_hunt: Option<Instant>,
}

/// Runs the agent until its pipe closes. Exit codes: 0 the pipe closed, 64 bad arguments or
/// surroundings, 70 the peer broke the protocol.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let Ok(mut agent) = start::prepare_agent(args) else {
        return ExitCode::from(64);
    };
    let stop = agent.serve_messages();
    // A pid namespace ends with its first process, and a warden ends everybody with its agent.
    if !sys::is_init() && agent.scope.is_none() {
        tree::end_all_descendants(&agent.children);
    }
    match stop {
        LinkStop::Closed => ExitCode::SUCCESS,
        LinkStop::Broken => ExitCode::from(70),
    }
}

impl Agent {
    fn serve_messages(&mut self) -> LinkStop {
        loop {
            if let Err(stop) = self.run_once() {
                return stop;
            }
        }
    }

    /// Waits for something to happen and deals with all of it.
    fn run_once(&mut self) -> Result<(), LinkStop> {
        for source in self.wait_for_sources()? {
            self.serve_source(source)?;
            if self.renewed {
                break;
            }
        }
        self.handle_inbox()?;
        // Nothing is said of any program to a side that has not said which it knows.
        if !self.renewed {
            self.kill_wanted_runs();
            self.report_ended_channels();
        }
        self.link.flush()
    }
}
