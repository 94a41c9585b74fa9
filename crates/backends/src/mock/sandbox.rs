//! One simulated sandbox: its machine (files, counters, tasks), its processes, its file interface.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, io};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{
    Admitted, CarriedProgram, Command, EffectiveLimits, Entry, EntryKind, Error, ErrorCode,
    ExitStatus, Files, Process, ProcessEvent, Result, RootMode, Sandbox, SandboxId, SandboxPath,
    SnapshotFiles, SnapshotKind, StartFailure, WORKSPACE_ROOT,
};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};

use super::faults::Faults;
use super::guest::{Guest, MockProgram};
use super::process::{MockControl, MockEvents, run_program};
use super::tree::{Errno, MockNode, MockTree};
use super::{NAME, lock};

/// Queue length of a program's events, signals and input.
const QUEUE_LENGTH: usize = 16;

/// How long a program that was ended may take to report it.
const REPORT_GRACE: Duration = Duration::from_millis(500);

/// Number that marks the task of a program itself, as opposed to what an execution detached.
const PROGRAM_TASK: u64 = 0;

pub(super) struct MockMachine {
    pub tree: Mutex<MockTree>,
    pub memory: AtomicU64,
    pub cpu_ms: AtomicU64,
    paused: watch::Sender<bool>,
    tasks: Mutex<Vec<(u64, JoinHandle<()>)>>,
}

impl MockMachine {
    /// Waits while the sandbox is paused.
    pub(super) async fn wait_while_paused(&self) {
        let _ = self.paused.subscribe().wait_for(|paused| !*paused).await;
    }

    pub(super) fn adopt_task(&self, execution: u64, task: JoinHandle<()>) {
        let mut tasks = lock(&self.tasks);
        tasks.retain(|(_, task)| !task.is_finished());
        tasks.push((execution, task));
    }

    pub(super) fn count_processes(&self) -> usize {
        lock(&self.tasks).iter().filter(|(_, task)| !task.is_finished()).count()
    }

    /// Ends what an execution detached, and waits until it is gone. The program itself is told to
    /// end by its control, so that it can still report how.
    pub(super) async fn end_execution(&self, execution: u64) {
        let (own, others) = std::mem::take(&mut *lock(&self.tasks))
            .into_iter()
            .partition::<Vec<_>, _>(|(of, task)| *of == execution && !task.is_finished());
        lock(&self.tasks).extend(others);
        end_all(own).await;
    }
}

async fn end_all(tasks: Vec<(u64, JoinHandle<()>)>) {
    for (_, task) in tasks {
        if !task.is_finished() {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Snapshot part with the files.
const TREE_PART: &str = "tree";
/// Snapshot part with the programs that ran, in one that claims to have the memory too: they begin anew in
/// a copy.
const PROGRAMS_PART: &str = "programs";

pub(super) struct MockSandbox {
    id: SandboxId,
    machine: Arc<MockMachine>,
    programs: HashMap<String, Arc<dyn MockProgram>>,
    faults: Faults,
    executions: AtomicU64,
    running: Mutex<Vec<watch::Sender<bool>>>,
    /// What runs, by its arguments.
    commands: Mutex<Vec<(Vec<String>, AbortHandle)>>,
    carried: Mutex<Vec<CarriedProgram>>,
    lost: AtomicBool,
}

impl MockSandbox {
    pub(super) fn new(
        id: &SandboxId,
        admitted: &Admitted,
        programs: HashMap<String, Arc<dyn MockProgram>>,
        faults: Faults,
    ) -> Self {
        let spec = admitted.spec();
        let room = admitted.limits().disk.map_or(u64::MAX, |disk| disk.0);
        let tree = MockTree::new(spec.read_only, spec.root == RootMode::CopyOnWrite, room);
        let machine = MockMachine {
            tree: Mutex::new(tree),
            memory: AtomicU64::new(0),
            cpu_ms: AtomicU64::new(0),
            paused: watch::Sender::new(false),
            tasks: Mutex::default(),
        };
        Self {
            id: id.clone(),
            machine: Arc::new(machine),
            programs,
            faults,
            executions: AtomicU64::new(1),
            running: Mutex::default(),
            commands: Mutex::default(),
            carried: Mutex::default(),
            lost: AtomicBool::new(false),
        }
    }

    pub(super) fn count_processes(&self) -> usize {
        self.machine.count_processes()
    }

    /// It dies by itself, as when its agent is killed; what is left waits to be destroyed.
    pub(super) fn mark_lost(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Ends everything in it: programs report their end, the rest is gone.
    pub(super) async fn end_tasks(&self) {
        let running = std::mem::take(&mut *lock(&self.running));
        running.iter().for_each(|killed| {
            killed.send_replace(true);
        });
        let tasks = std::mem::take(&mut *lock(&self.machine.tasks));
        let (mut programs, detached): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|(of, _)| *of == PROGRAM_TASK);
        end_all(detached).await;
        // A program may report how it ended, also without a reader.
        for (_, task) in &mut programs {
            let _ = tokio::time::timeout(REPORT_GRACE, task).await;
        }
        end_all(programs).await;
    }

    fn list_running_commands(&self) -> Vec<Vec<String>> {
        let mut commands = lock(&self.commands);
        commands.retain(|(_, task)| !task.is_finished());
        commands.iter().map(|(argv, _)| argv.clone()).collect()
    }

    /// Starts what ran when this state was captured with its memory.
    pub(super) async fn resume_programs(
        &self,
        from: &SnapshotFiles,
        limits: &EffectiveLimits,
    ) -> Result<()> {
        if from.kind != SnapshotKind::Full {
            return Ok(());
        }
        let read = fs::read(from.get(PROGRAMS_PART)?);
        let programs = read.and_then(|json| Ok(serde_json::from_slice(&json)?));
        let programs: Vec<Vec<String>> = programs.map_err(|error| {
            Error::new(ErrorCode::System, "restore", "programs").backend(NAME).source(error)
        })?;
        for command in programs {
            let process = self.spawn(&Command::program(command.clone()), limits).await?;
            lock(&self.carried).push(CarriedProgram { command, process });
        }
        Ok(())
    }

    /// The program and directory of a command, or why it cannot start.
    fn look_up(&self, command: &Command) -> Result<(Arc<dyn MockProgram>, String), StartFailure> {
        let given = command.dir.as_ref().map_or(".", SandboxPath::as_str);
        let tree = lock(&self.machine.tree);
        let dir = tree.resolve(WORKSPACE_ROOT, given, false, true);
        let dir = dir.ok().filter(|dir| tree.list(dir).is_ok());
        let dir =
            dir.ok_or_else(|| StartFailure::BadDirectory(format!("`{given}` is not a directory")))?;
        let argv = command.argv();
        let name = argv.first().map_or("", String::as_str);
        if let Some(program) = self.programs.get(name) {
            return Ok((Arc::clone(program), dir));
        }
        let at = tree.resolve(&dir, name, false, true);
        match at.and_then(|at| tree.node(&at).cloned()) {
            Ok(_) if name.contains('/') => {
                Err(StartFailure::NotExecutable(format!("`{name}` is not a program")))
            }
            Ok(_) | Err(_) => Err(StartFailure::NotFound(format!("there is no `{name}`"))),
        }
    }
}

#[async_trait]
impl Sandbox for MockSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn alive(&self) -> bool {
        !self.lost.load(Ordering::SeqCst)
    }

    fn is_paused(&self) -> bool {
        *self.machine.paused.borrow()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        self.faults.spawn.inject_fault("spawn").await?;
        let execution = self.executions.fetch_add(1, Ordering::SeqCst);
        let (events, events_out) = mpsc::channel(QUEUE_LENGTH);
        let (signals, signals_out) = mpsc::channel(QUEUE_LENGTH);
        let (stdin, stdin_out) = mpsc::channel(QUEUE_LENGTH);
        let (killed, killed_out) = watch::channel(false);
        let (terminal, terminal_out) = watch::channel(command.terminal);
        match self.look_up(command) {
            Err(failure) => {
                let _ =
                    events.try_send(ProcessEvent::Exit(ExitStatus::StartFailed(failure).into()));
            }
            Ok((program, dir)) => {
                let guest = Guest {
                    argv: command.argv(),
                    env: command.env.clone(),
                    dir,
                    user: command.user,
                    sandbox: self.id.clone(),
                    limits: *limits,
                    machine: Arc::clone(&self.machine),
                    execution,
                    events,
                    stdin: stdin_out,
                    terminal: terminal_out,
                    ignores_signals: Arc::default(),
                };
                // Not of the execution: a kill lets the program report its end itself.
                let task = tokio::spawn(run_program(program, guest, signals_out, killed_out));
                lock(&self.commands).push((command.argv(), task.abort_handle()));
                self.machine.adopt_task(PROGRAM_TASK, task);
            }
        }
        lock(&self.running).push(killed.clone());
        let stdin = (command.stdin != stockade_core::Stdin::None).then_some(stdin);
        let control = MockControl {
            machine: Arc::clone(&self.machine),
            execution,
            faults: self.faults.clone(),
            signals,
            killed,
            stdin: stdin.into(),
            terminal,
        };
        let events =
            MockEvents { events: events_out, fault: self.faults.stream.clone(), ended: false };
        Ok(Process { events: Box::new(events), control: Arc::new(control) })
    }

    fn files(&self) -> Result<&dyn Files> {
        Ok(self)
    }

    fn take_carried(&self) -> Vec<CarriedProgram> {
        std::mem::take(&mut *lock(&self.carried))
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        if kind == SnapshotKind::Full {
            let programs =
                serde_json::to_vec(&self.list_running_commands()).map_err(io::Error::from);
            let written =
                programs.and_then(|programs| fs::write(into.join(PROGRAMS_PART), programs));
            written.map_err(|error| {
                Error::new(ErrorCode::System, "snapshot", "programs").backend(NAME).source(error)
            })?;
        }
        let tree = serde_json::to_vec(&*lock(&self.machine.tree)).map_err(io::Error::from);
        tree.and_then(|tree| fs::write(into.join(TREE_PART), tree)).map_err(|error| {
            Error::new(ErrorCode::System, "snapshot", "the tree").backend(NAME).source(error)
        })
    }

    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        let read = fs::read(from.get(TREE_PART)?);
        let tree = read.and_then(|tree| Ok(serde_json::from_slice(&tree)?)).map_err(|error| {
            Error::new(ErrorCode::System, "restore", "the tree").backend(NAME).source(error)
        })?;
        *lock(&self.machine.tree) = tree;
        Ok(())
    }

    async fn pause(&self) -> Result<()> {
        self.machine.paused.send_replace(true);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        self.machine.paused.send_replace(false);
        Ok(())
    }
}

fn errno_error(operation: &'static str, path: &SandboxPath, errno: Errno) -> Error {
    let (code, what) = match errno {
        Errno::NoEntry => (ErrorCode::NotFound, "is not there"),
        Errno::Escapes => (ErrorCode::PathEscapes, "leaves its root"),
        Errno::NotDirectory => (ErrorCode::Invalid, "is not a directory"),
        Errno::IsDirectory => (ErrorCode::Invalid, "is a directory"),
        Errno::NotRegular => (ErrorCode::Invalid, "is not a regular file"),
        Errno::NoSpace => (ErrorCode::TooLarge, "does not fit: the disk limit is reached"),
        Errno::ReadOnly => (ErrorCode::Denied, "is read-only"),
        Errno::Loop => (ErrorCode::Invalid, "has too many symbolic links"),
    };
    Error::new(code, operation, format!("`{path}` {what}")).backend(NAME)
}

fn to_entry(name: &str, node: &MockNode, mode: u32) -> Entry {
    let (kind, size) = match node {
        MockNode::Directory => (EntryKind::Directory, 0),
        MockNode::File(data) => (EntryKind::File, data.len() as u64),
        MockNode::Symlink(target) => (EntryKind::Symlink, target.len() as u64),
        MockNode::Fifo => (EntryKind::Other, 0),
    };
    Entry { name: name.to_owned(), kind, size, mode }
}

impl MockSandbox {
    /// Resolves beneath the workspace and works on the tree; failures name the path.
    fn with_path<T>(
        &self,
        operation: &'static str,
        path: &SandboxPath,
        follow_last: bool,
        work: impl FnOnce(&mut MockTree, &str) -> Result<T, Errno>,
    ) -> Result<T> {
        self.with_partial_path(operation, path, path.as_str(), follow_last, work)
    }

    /// The same for a part of the path; failures name the whole.
    fn with_partial_path<T>(
        &self,
        operation: &'static str,
        path: &SandboxPath,
        part: &str,
        follow_last: bool,
        work: impl FnOnce(&mut MockTree, &str) -> Result<T, Errno>,
    ) -> Result<T> {
        let mut tree = lock(&self.machine.tree);
        tree.resolve(WORKSPACE_ROOT, part, true, follow_last)
            .and_then(|at| work(&mut tree, &at))
            .map_err(|errno| errno_error(operation, path, errno))
    }
}

#[async_trait]
impl Files for MockSandbox {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        self.with_path("stat", path, false, |tree, at| {
            let name = at.rsplit('/').next().unwrap_or_default();
            tree.node(at).map(|node| to_entry(name, node, tree.mode(at)))
        })
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.with_path("list", path, true, |tree, at| {
            let mode = |name: &str| tree.mode(&format!("{at}/{name}"));
            let entries = tree.list(at)?;
            Ok(entries.iter().map(|(name, node)| to_entry(name, node, mode(name))).collect())
        })
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        self.with_path("read", path, true, |tree, at| {
            let data = tree.read(at)?;
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
            let to = from.saturating_add(most as usize).min(data.len());
            Ok(Data::copy_from_slice(&data[from..to]))
        })
    }

    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()> {
        self.with_path("write", path, true, |tree, at| tree.write(at, &data, append))
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.with_path("set mode", path, true, |tree, at| tree.set_mode(at, mode & 0o777))
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        let whole = path.as_str();
        let ends = whole.match_indices('/').map(|(end, _)| end).filter(|end| *end > 0);
        for end in ends.chain([whole.len()]) {
            self.with_partial_path("make directory", path, &whole[..end], true, |tree, at| {
                match tree.node(at) {
                    Ok(MockNode::Directory) => Ok(()),
                    Ok(MockNode::File(_) | MockNode::Symlink(_) | MockNode::Fifo) => {
                        Err(Errno::NotDirectory)
                    }
                    Err(_) => tree.put(at, MockNode::Directory),
                }
            })?;
        }
        Ok(())
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let target = self.with_path("rename", to, false, |_, at| Ok(at.to_owned()))?;
        self.with_path("rename", from, false, |tree, at| tree.rename(at, &target))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.with_path("remove", path, false, |tree, at| tree.remove(at).map(drop))
    }
}
