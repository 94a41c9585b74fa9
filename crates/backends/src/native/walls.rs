//! A native sandbox for a caller that speaks to its agent from elsewhere: walls, the pipe, and the host's own
//! counts. Decides nothing about what goes over the pipe.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use stockade_core::{Admitted, Exit, ProcessControl, Result, SandboxId, Span};
use stockade_core::{SandboxSpec, User};

use super::Native;
use crate::linux::limit_monitor::Watching;
use crate::linux::running::LiveWalls;

/// The walls of one sandbox. They stand until the backend destroys them.
pub struct Walls {
    running: Arc<LiveWalls>,
}

/// One execution in them, held to its limits. Dropping it ends the watch.
pub struct LimitedExecution(Watching);

impl Native {
    /// Builds the walls and hands back the pipe to the agent, which has not said hello yet. As with
    /// `create`, nothing is left if it fails or is given up.
    pub async fn walls(&self, id: &SandboxId, admitted: &Admitted) -> Result<(Walls, UnixStream)> {
        let admitted = admitted.clone();
        self.build_locked(id, |native, id, _| async move {
            let (built, pipe) = native.build_walls(&id, &admitted).await?;
            Ok((Walls { running: native.linux_host.register_running(&id, built, &admitted) }, pipe))
        })
        .await
    }

    /// The user that everything in a sandbox of this spec runs as.
    pub(crate) fn sandbox_user(spec: &SandboxSpec) -> User {
        super::plan::sandbox_user(spec)
    }
}

impl Walls {
    /// Their init process: when that exits, everything in them ends.
    pub fn first_process(&self) -> i32 {
        self.running.pid
    }

    /// Holds an execution that is about to start to its processor time, and the sandbox to its other
    /// limits meanwhile. `control` ends the execution. One that cannot be held must not run.
    pub fn watch(
        &self,
        control: &Arc<dyn ProcessControl>,
        cpu_time: Option<Span>,
    ) -> Result<LimitedExecution> {
        self.running.apply_cpu_rate()?;
        Ok(LimitedExecution(Watching::new(&self.running, control, cpu_time)))
    }
}

impl LimitedExecution {
    /// Its program runs, under this process number as the sandbox counts: what it uses can be told apart.
    pub fn start(&self, pid: u32) {
        self.0.start(pid);
    }

    /// Names the limit that ended it, and says what it used (C-16).
    pub fn judge(&self, exit: Exit) -> Exit {
        self.0.judge_exit(exit)
    }
}
