//! A good backend with one place to go wrong. Everything a saboteur does not override is passed on.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_backends::mock::Mock;
use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Command, EffectiveLimits, Entry, Feature, Files,
    Process, ProcessControl, ProcessEvent, ProcessEvents, Result, Sandbox, SandboxId, SandboxPath,
    Signal, SnapshotFiles, SnapshotKind, Support, TerminalSize,
};

/// What becomes of each event of one process.
pub(super) type EventFilter = Box<dyn FnMut(ProcessEvent) -> Vec<ProcessEvent> + Send>;

/// One way to be broken: every method that is not overridden works.
#[async_trait]
pub(super) trait Sabotage: Send + Sync + 'static {
    /// A feature that it declares although the mock lacks it.
    fn declared(&self) -> Option<Feature> {
        None
    }

    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        mock.create(id, admitted).await
    }

    async fn list(&self, mock: &Mock) -> Result<Vec<SandboxId>> {
        mock.list().await
    }

    async fn destroy(&self, mock: &Mock, id: &SandboxId) -> Result<()> {
        mock.destroy(id).await
    }

    fn command(&self, command: &Command) -> Command {
        command.clone()
    }

    fn limits(&self, limits: &EffectiveLimits) -> EffectiveLimits {
        *limits
    }

    fn filter(&self) -> EventFilter {
        Box::new(|event| vec![event])
    }

    async fn kill(&self, control: &dyn ProcessControl) -> Result<()> {
        control.kill().await
    }

    async fn signal(&self, control: &dyn ProcessControl, signal: Signal) -> Result<()> {
        control.signal(signal).await
    }

    async fn write_stdin(&self, control: &dyn ProcessControl, data: Data) -> Result<()> {
        control.write_stdin(data).await
    }

    async fn resize(&self, control: &dyn ProcessControl, size: TerminalSize) -> Result<()> {
        control.resize(size).await
    }

    async fn read(
        &self,
        files: &dyn Files,
        path: &SandboxPath,
        offset: u64,
        most: u32,
    ) -> Result<Data> {
        files.read(path, offset, most).await
    }

    async fn write(
        &self,
        files: &dyn Files,
        path: &SandboxPath,
        data: Data,
        append: bool,
    ) -> Result<()> {
        files.write(path, data, append).await
    }

    async fn pause(&self, sandbox: &dyn Sandbox) -> Result<()> {
        sandbox.pause().await
    }

    async fn restore(&self, sandbox: &dyn Sandbox, from: &SnapshotFiles) -> Result<()> {
        sandbox.restore(from).await
    }
}

/// The mock with a saboteur in front.
pub(super) struct Broken<S> {
    mock: Mock,
    by: Arc<S>,
}

/// The mock, broken like this.
pub(super) fn break_mock<S: Sabotage + Default>(mock: Mock) -> Arc<dyn Backend> {
    Arc::new(Broken { mock, by: Arc::new(S::default()) })
}

#[async_trait]
impl<S: Sabotage> Backend for Broken<S> {
    fn name(&self) -> BackendName {
        self.mock.name()
    }

    async fn probe(&self) -> Capabilities {
        let measured = self.mock.probe().await;
        self.by
            .declared()
            .into_iter()
            .fold(measured, |all, feature| all.with(feature, Support::full("mere assertion")))
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        let sandbox = self.by.create(&self.mock, id, admitted).await?;
        Ok(Arc::new(BrokenSandbox { id: id.clone(), sandbox, by: Arc::clone(&self.by) }))
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.by.list(&self.mock).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.by.destroy(&self.mock, id).await
    }
}

struct BrokenSandbox<S> {
    id: SandboxId,
    sandbox: Arc<dyn Sandbox>,
    by: Arc<S>,
}

#[async_trait]
impl<S: Sabotage> Sandbox for BrokenSandbox<S> {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn alive(&self) -> bool {
        self.sandbox.alive()
    }

    fn is_paused(&self) -> bool {
        self.sandbox.is_paused()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let (command, limits) = (self.by.command(command), self.by.limits(limits));
        let Process { events, control } = self.sandbox.spawn(&command, &limits).await?;
        let events = BrokenEvents { events, filter: self.by.filter(), waiting: VecDeque::new() };
        let control = BrokenControl { control, by: Arc::clone(&self.by) };
        Ok(Process { events: Box::new(events), control: Arc::new(control) })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self)
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        self.sandbox.snapshot(kind, into).await
    }

    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        self.by.restore(self.sandbox.as_ref(), from).await
    }

    async fn pause(&self) -> Result<()> {
        self.by.pause(self.sandbox.as_ref()).await
    }

    async fn resume(&self) -> Result<()> {
        self.sandbox.resume().await
    }
}

#[async_trait]
impl<S: Sabotage> Files for BrokenSandbox<S> {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        self.sandbox.files()?.stat(path).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.sandbox.files()?.list(path).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        self.by.read(self.sandbox.files()?, path, offset, most).await
    }

    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()> {
        self.by.write(self.sandbox.files()?, path, data, append).await
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.sandbox.files()?.set_mode(path, mode).await
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.sandbox.files()?.make_dir(path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.sandbox.files()?.rename(from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.sandbox.files()?.remove(path).await
    }
}

struct BrokenEvents {
    events: Box<dyn ProcessEvents>,
    filter: EventFilter,
    waiting: VecDeque<ProcessEvent>,
}

#[async_trait]
impl ProcessEvents for BrokenEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            let event = self.events.next().await?;
            self.waiting.extend((self.filter)(event));
        }
    }
}

struct BrokenControl<S> {
    control: Arc<dyn ProcessControl>,
    by: Arc<S>,
}

#[async_trait]
impl<S: Sabotage> ProcessControl for BrokenControl<S> {
    async fn kill(&self) -> Result<()> {
        self.by.kill(self.control.as_ref()).await
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.by.signal(self.control.as_ref(), signal).await
    }

    async fn write_stdin(&self, data: Data) -> Result<()> {
        self.by.write_stdin(self.control.as_ref(), data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.control.close_stdin().await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.by.resize(self.control.as_ref(), size).await
    }
}
