//! Executions that this host itself counts for: by the sandbox's control group and its processes.

use std::sync::Arc;

use async_trait::async_trait;
use stockade_agent::client::Limit;
use stockade_core::{EffectiveLimits, ExitStatus, LimitKind, Process, Result, Span};

use super::{BegunExecution, Monitor, StartedProgram};
use crate::linux::executions::KnownProgram;
use crate::linux::limit_monitor::{Before, Begun, Kernel, Watched, held_apart, process_limits};
use crate::linux::running::LiveWalls;

/// The host's counters of one sandbox.
pub(crate) struct HostMonitor {
    running: Arc<LiveWalls>,
    kernel: Kernel,
}

impl HostMonitor {
    pub(crate) fn new(running: &Arc<LiveWalls>, kernel: Kernel) -> Arc<Self> {
        Arc::new(Self { running: Arc::clone(running), kernel })
    }
}

/// The counters of a sandbox before an execution.
struct HostExecution {
    running: Arc<LiveWalls>,
    kernel: Kernel,
    before: Before,
    cpu_time: Option<Span>,
}

#[async_trait]
impl Monitor for HostMonitor {
    fn is_alive(&self) -> bool {
        self.running.is_alive()
    }

    fn process_limits(&self, limits: &EffectiveLimits) -> Vec<(Limit, u64)> {
        match self.kernel {
            Kernel::Shared => process_limits(limits),
            Kernel::Apart => held_apart(limits, &self.running),
        }
    }

    async fn begin(&self, limits: &EffectiveLimits) -> Result<Box<dyn BegunExecution>> {
        Ok(Box::new(HostExecution {
            running: Arc::clone(&self.running),
            kernel: self.kernel,
            before: Before::of(&self.running),
            cpu_time: limits.cpu_time,
        }))
    }

    /// The kernel has ended the sandbox for want of memory.
    fn ended_with_sandbox(&self) -> Option<ExitStatus> {
        let out_of_memory = self.running.has_unjudged_oom_kill();
        out_of_memory.then_some(ExitStatus::LimitExceeded(LimitKind::Memory))
    }
}

impl BegunExecution for HostExecution {
    fn watch(self: Box<Self>, started: StartedProgram, process: Process) -> Process {
        let Process { events, control } = process;
        let program = match self.kernel {
            Kernel::Shared => KnownProgram::Told(started.pid),
            Kernel::Apart => KnownProgram::Unknown,
        };
        let begun = Begun { before: self.before, program, kernel: self.kernel };
        let events = Watched::new(events, &self.running, &control, self.cpu_time, begun);
        let control = events.count_by_control(control);
        Process { events: Box::new(events), control }
    }
}
