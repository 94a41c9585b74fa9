//! Saboteurs of how programs end.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use stockade_core::{
    Error, ErrorCode, Exit, ExitStatus, ProcessControl, ProcessEvent, Result, Signal,
};

use super::frame::{EventFilter, Sabotage};
use super::streams::filters;

/// The exit, told otherwise.
fn map_exit_status(as_what: fn(ExitStatus) -> ExitStatus) -> EventFilter {
    Box::new(move |event| match event {
        ProcessEvent::Output(..) => vec![event],
        ProcessEvent::Exit(exit) => {
            vec![ProcessEvent::Exit(Exit { status: as_what(exit.status), ..exit })]
        }
    })
}

filters! {
    AlwaysZero map_exit_status(|status| match status {
        ExitStatus::Exited(_) => ExitStatus::Exited(0),
        ExitStatus::Signalled(_)
        | ExitStatus::StartFailed(_)
        | ExitStatus::LimitExceeded(_)
        | ExitStatus::Lost(_) => status,
    });
    SevenBits map_exit_status(|status| match status {
        ExitStatus::Exited(code) => ExitStatus::Exited(code & 0x7f),
        ExitStatus::Signalled(_)
        | ExitStatus::StartFailed(_)
        | ExitStatus::LimitExceeded(_)
        | ExitStatus::Lost(_) => status,
    });
    SignalAsCode map_exit_status(|status| match status {
        ExitStatus::Signalled(signal) => ExitStatus::Exited(128 + signal.0),
        ExitStatus::Exited(_)
        | ExitStatus::StartFailed(_)
        | ExitStatus::LimitExceeded(_)
        | ExitStatus::Lost(_) => status,
    });
    FailureAsCode map_exit_status(|status| match status {
        ExitStatus::StartFailed(_) => ExitStatus::Exited(127),
        ExitStatus::Exited(_)
        | ExitStatus::Signalled(_)
        | ExitStatus::LimitExceeded(_)
        | ExitStatus::Lost(_) => status,
    });
}

#[derive(Default)]
pub(super) struct DoesNotKill;

#[async_trait]
impl Sabotage for DoesNotKill {
    async fn kill(&self, _control: &dyn ProcessControl) -> Result<()> {
        Ok(())
    }
}

/// A peer that never answers what it was told to kill.
#[derive(Default)]
pub(super) struct HangsWhenKilling;

#[async_trait]
impl Sabotage for HangsWhenKilling {
    async fn kill(&self, _control: &dyn ProcessControl) -> Result<()> {
        std::future::pending().await
    }
}

#[derive(Default)]
pub(super) struct KillsTheProgramOnly;

#[async_trait]
impl Sabotage for KillsTheProgramOnly {
    async fn kill(&self, control: &dyn ProcessControl) -> Result<()> {
        control.signal(Signal::KILL).await
    }
}

/// Knows a process again by where its control lies: good enough for a saboteur.
#[derive(Default)]
pub(super) struct KillsOnce(Mutex<BTreeSet<usize>>);

#[async_trait]
impl Sabotage for KillsOnce {
    async fn kill(&self, control: &dyn ProcessControl) -> Result<()> {
        let address = std::ptr::from_ref(control).cast::<()>().addr();
        let first = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
        if !first {
            return Err(Error::new(ErrorCode::Gone, "kill", "it was killed already"));
        }
        control.kill().await
    }
}

#[derive(Default)]
pub(super) struct SwallowsSignals;

#[async_trait]
impl Sabotage for SwallowsSignals {
    async fn signal(&self, _control: &dyn ProcessControl, _signal: Signal) -> Result<()> {
        Ok(())
    }
}
