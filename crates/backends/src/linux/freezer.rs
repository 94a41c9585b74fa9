//! Pause and resume of a whole sandbox, agent and all. While it is paused nothing in it answers: requests are refused,
//! and what is to be killed is resumed first. Whether it is paused is said here alone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    BackendName, Error, ErrorCode, Process, ProcessControl, ProcessEvent, ProcessEvents, Result,
};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, watch};
use tokio::time::timeout;

use super::control_layer::{ControlLayer, LayeredControl};
use super::lock;
use super::running::LiveWalls;

/// Timeout for stopping a sandbox, and for continuing it: shorter than an engine's for destroying it.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(12);
/// How long a program that was killed may take to tell its exit before its sandbox can be paused again.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A way to stop and continue everything inside.
#[async_trait]
pub(crate) trait Stopper: Send + Sync {
    /// Returns when it has stopped, or goes on. One call at a time; called for a change, and again after a call that
    /// failed or took too long.
    async fn set(&self, stop: bool) -> Result<()>;
}

/// The kernel's freezer of the sandbox's control group.
#[async_trait]
impl Stopper for Arc<LiveWalls> {
    async fn set(&self, stop: bool) -> Result<()> {
        self.freeze(stop).await
    }
}

/// Whether a sandbox is paused, and the way to change that.
pub(crate) struct Freezer {
    backend: BackendName,
    stopper: Box<dyn Stopper>,
    /// Locked for writing while the state changes, and for reading while it must not: during a kill or a snapshot check.
    changing: Arc<RwLock<()>>,
    /// Not known while it is changed, and after a change that failed. Written with `changing` held for writing.
    stopped: Mutex<Option<bool>>,
}

impl Freezer {
    pub(crate) fn new(backend: BackendName, stopper: impl Stopper + 'static) -> Arc<Self> {
        let (changing, stopped) = (Arc::default(), Mutex::new(Some(false)));
        Arc::new(Self { backend, stopper: Box::new(stopper), changing, stopped })
    }

    /// Whether it is paused, or may be. Does not wait.
    pub(crate) fn is_paused(&self) -> bool {
        *lock(&self.stopped) != Some(false)
    }

    /// Idempotent. Returns when it has stopped, or goes on.
    pub(crate) async fn set(self: &Arc<Self>, stop: bool) -> Result<()> {
        let changing = Arc::clone(&self.changing).write_owned().await;
        self.change(changing, stop).await.map(drop)
    }

    /// Changes the state in a task of its own: a caller that is dropped half-way would leave it unknown.
    async fn change(
        self: &Arc<Self>,
        changing: OwnedRwLockWriteGuard<()>,
        stop: bool,
    ) -> Result<OwnedRwLockWriteGuard<()>> {
        let freezer = Arc::clone(self);
        let changed =
            tokio::spawn(async move { freezer.set_stopper(stop).await.map(|()| changing) });
        changed.await.unwrap_or_else(|error| {
            Err(self.change_error(stop, ErrorCode::System, "the task ended").source(error))
        })
    }

    /// Called with `changing` held for writing.
    async fn set_stopper(&self, stop: bool) -> Result<()> {
        let before = *lock(&self.stopped);
        if before == Some(stop) {
            return Ok(());
        }
        *lock(&self.stopped) = None;
        let changed = timeout(CHANGE_TIMEOUT, self.stopper.set(stop)).await;
        let changed = changed.unwrap_or_else(|_| {
            let message = "the sandbox did not stop or continue in time";
            Err(self.change_error(stop, ErrorCode::TooSlow, message))
        });
        *lock(&self.stopped) = match &changed {
            Ok(()) => Some(stop),
            Err(error) if error.code() == ErrorCode::Unsupported => before,
            Err(_) => None,
        };
        changed
    }

    fn change_error(&self, stop: bool, code: ErrorCode, message: &str) -> Error {
        let operation = if stop { "pause" } else { "resume" };
        Error::new(code, operation, message)
            .backend(self.backend.clone())
            .remedy("try again, or destroy the sandbox")
    }

    /// Resumes it unless it goes on. It is not paused before the answer is dropped.
    pub(crate) async fn keep_running(self: &Arc<Self>) -> Result<OwnedRwLockReadGuard<()>> {
        let running = Arc::clone(&self.changing).read_owned().await;
        if !self.is_paused() {
            return Ok(running);
        }
        drop(running);
        let changing = Arc::clone(&self.changing).write_owned().await;
        Ok(self.change(changing, false).await?.downgrade())
    }

    /// Refuses what needs an answer from inside: it would wait for ever. It is not stopped before the answer
    /// is dropped.
    pub(crate) async fn goes_on(&self, operation: &'static str) -> Result<RwLockReadGuard<'_, ()>> {
        let goes_on = self.changing.read().await;
        match self.is_paused() {
            false => Ok(goes_on),
            true => Err(Error::new(ErrorCode::Invalid, operation, "the sandbox is paused")
                .backend(self.backend.clone())
                .remedy("resume it first")),
        }
    }

    /// The same process, which ends in a paused sandbox too.
    pub(crate) fn wrap_process(self: &Arc<Self>, process: Process) -> Process {
        let Process { events, control } = process;
        let (exited, exit_is_told) = watch::channel(false);
        let freezer = Arc::clone(self);
        let control = FreezableControl { control, freezer, exited: exit_is_told };
        let events = FreezableEvents { events, exited };
        Process { events: Box::new(events), control: Arc::new(LayeredControl(control)) }
    }
}

/// The control of a process whose sandbox may be paused.
struct FreezableControl {
    control: Arc<dyn ProcessControl>,
    freezer: Arc<Freezer>,
    exited: watch::Receiver<bool>,
}

#[async_trait]
impl ControlLayer for FreezableControl {
    fn inner(&self) -> &dyn ProcessControl {
        self.control.as_ref()
    }

    async fn kill(&self) -> Result<()> {
        // After the end there is nothing to resume the others for.
        if *self.exited.borrow() {
            return self.control.kill().await;
        }
        // In a task of its own: a caller that gives up waiting for the resume does not take back the kill.
        let killing = resume_and_kill(
            Arc::clone(&self.control),
            Arc::clone(&self.freezer),
            self.exited.clone(),
        );
        tokio::spawn(killing).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorCode::System, "kill", "the task ended").source(error))
        })
    }
}

/// Where it cannot be resumed, the kill goes on all the same.
async fn resume_and_kill(
    control: Arc<dyn ProcessControl>,
    freezer: Arc<Freezer>,
    exited: watch::Receiver<bool>,
) -> Result<()> {
    let running = freezer.keep_running().await.ok();
    let killed = control.kill().await;
    tokio::spawn(hold_until_exit(running, exited));
    killed
}

/// Keeps a sandbox from being paused until a program that was killed has told its exit: the agent inside reports it.
async fn hold_until_exit(
    running: Option<OwnedRwLockReadGuard<()>>,
    mut exited: watch::Receiver<bool>,
) {
    // An error means that its events are not read any more.
    let _ = timeout(EXIT_TIMEOUT, exited.wait_for(|exited| *exited)).await;
    drop(running);
}

/// The events of a process whose sandbox may be paused.
struct FreezableEvents {
    events: Box<dyn ProcessEvents>,
    exited: watch::Sender<bool>,
}

#[async_trait]
impl ProcessEvents for FreezableEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        let event = self.events.next().await;
        if matches!(event, None | Some(ProcessEvent::Exit(_))) {
            self.exited.send_replace(true);
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use stockade_core::{ExitStatus, Feature, Signal};

    use super::*;

    /// What becomes of one kind of change.
    #[derive(Clone, Copy)]
    enum Faulty {
        Nothing,
        PauseHangs,
        PauseIsUnsupported,
        ResumeFails,
        ResumeIsSlow,
    }

    /// Keeps what it was asked for.
    struct TestStopper(Faulty, Arc<Mutex<Vec<bool>>>);

    #[async_trait]
    impl Stopper for TestStopper {
        async fn set(&self, stop: bool) -> Result<()> {
            lock(&self.1).push(stop);
            match (self.0, stop) {
                (Faulty::PauseHangs, true) => std::future::pending().await,
                (Faulty::PauseIsUnsupported, true) => {
                    Err(Error::unsupported("pause", Feature::Pause))
                }
                (Faulty::ResumeFails, false) => {
                    Err(Error::new(ErrorCode::System, "resume", "it does not go on"))
                }
                (Faulty::ResumeIsSlow, false) => {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    Ok(())
                }
                (_, _) => Ok(()),
            }
        }
    }

    fn freezer(faulty: Faulty) -> (Arc<Freezer>, Arc<Mutex<Vec<bool>>>) {
        let asked = Arc::default();
        let stopper = TestStopper(faulty, Arc::clone(&asked));
        (Freezer::new(BackendName::literal("test"), stopper), asked)
    }

    /// The control of a program that has ended. Counts its kills.
    #[derive(Default)]
    struct FinishedControl(AtomicU32);

    #[async_trait]
    impl ProcessControl for FinishedControl {
        async fn kill(&self) -> Result<()> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        async fn ended(&self) {}
    }

    /// Tells the exit to the first reader that asks.
    struct ReadyExit;

    #[async_trait]
    impl ProcessEvents for ReadyExit {
        async fn next(&mut self) -> Option<ProcessEvent> {
            Some(ProcessEvent::Exit(ExitStatus::Signalled(Signal::KILL).into()))
        }
    }

    fn process_in(freezer: &Arc<Freezer>) -> (Process, Arc<FinishedControl>) {
        let control = Arc::<FinishedControl>::default();
        let process = Process { events: Box::new(ReadyExit), control: control.clone() };
        (freezer.wrap_process(process), control)
    }

    async fn pause_within_a_second(freezer: &Arc<Freezer>) -> bool {
        timeout(Duration::from_secs(1), freezer.set(true)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_program_is_passed_on() {
        let (freezer, _) = freezer(Faulty::Nothing);
        let (process, _) = process_in(&freezer);
        let ended = timeout(Duration::from_secs(1), process.control.ended()).await;
        assert!(ended.is_ok(), "it never ends");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_hangs_and_was_given_up_is_undone_by_resume() {
        let (freezer, asked) = freezer(Faulty::PauseHangs);
        assert!(!pause_within_a_second(&freezer).await);
        assert!(freezer.is_paused() && freezer.goes_on("exec").await.is_err());
        freezer.set(false).await.unwrap();
        assert!(!freezer.is_paused() && freezer.goes_on("exec").await.is_ok());
        freezer.set(false).await.unwrap();
        assert_eq!(*lock(&asked), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_takes_too_long_fails_and_may_have_been_made() {
        let (freezer, _) = freezer(Faulty::PauseHangs);
        assert_eq!(freezer.set(true).await.unwrap_err().code(), ErrorCode::TooSlow);
        assert!(freezer.is_paused());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_is_not_supported_changes_nothing() {
        let (freezer, _) = freezer(Faulty::PauseIsUnsupported);
        assert_eq!(freezer.set(true).await.unwrap_err().code(), ErrorCode::Unsupported);
        assert!(!freezer.is_paused());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_resumes_the_sandbox_and_that_is_told() {
        let (freezer, asked) = freezer(Faulty::Nothing);
        let (mut process, killed) = process_in(&freezer);
        freezer.set(true).await.unwrap();
        assert!(freezer.is_paused());
        process.control.kill().await.unwrap();
        assert!(!freezer.is_paused());
        assert!(process.events.next().await.is_some());
        // After its end a kill resumes nothing.
        freezer.set(true).await.unwrap();
        process.control.kill().await.unwrap();
        assert!(freezer.is_paused());
        assert_eq!(*lock(&asked), [true, false, true]);
        assert_eq!(killed.0.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resume_whose_caller_gives_up_is_done_to_its_end() {
        let (freezer, _) = freezer(Faulty::ResumeIsSlow);
        freezer.set(true).await.unwrap();
        let given_up = timeout(Duration::from_secs(1), freezer.keep_running()).await;
        assert!(given_up.is_err() && freezer.is_paused());
        drop(freezer.goes_on("exec").await.unwrap());
        assert!(!freezer.is_paused());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kill_goes_on_where_the_sandbox_cannot_be_resumed() {
        let (freezer, _) = freezer(Faulty::ResumeFails);
        let (process, killed) = process_in(&freezer);
        freezer.set(true).await.unwrap();
        process.control.kill().await.unwrap();
        assert_eq!(killed.0.load(Ordering::SeqCst), 1);
        assert!(freezer.is_paused());
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_is_not_paused_between_a_kill_and_the_exit() {
        let (freezer, _) = freezer(Faulty::Nothing);
        let (mut process, _) = process_in(&freezer);
        process.control.kill().await.unwrap();
        assert!(!pause_within_a_second(&freezer).await);
        assert!(process.events.next().await.is_some());
        assert!(pause_within_a_second(&freezer).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_that_is_never_told_does_not_keep_a_sandbox_from_being_paused() {
        let (freezer, _) = freezer(Faulty::Nothing);
        let (process, _) = process_in(&freezer);
        process.control.kill().await.unwrap();
        freezer.set(true).await.unwrap();
        assert!(freezer.is_paused());
    }
}
