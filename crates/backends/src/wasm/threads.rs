//! Threads that run programs: one each, because a program uses its thread up until it is interrupted.
//! Idle ones wait for the next program, with a timer of their own, so that nothing depends on the
//! runtime of whoever asked.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::runtime::{Builder, Runtime};

/// How many wait for the next program.
const IDLE: usize = 64;
/// Compiling recurses; the program itself has a stack of its own.
const STACK: usize = 4 << 20;

type Task = Box<dyn FnOnce(&Runtime) + Send>;
type Idle = Mutex<Vec<SyncSender<Task>>>;

/// The threads.
#[derive(Default)]
pub(super) struct Threads(Arc<Idle>);

fn lock(idle: &Idle) -> MutexGuard<'_, Vec<SyncSender<Task>>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// Runs a task on a thread of its own.
    pub(super) fn run(&self, task: impl FnOnce(&Runtime) + Send + 'static) -> io::Result<()> {
        let mut task: Task = Box::new(task);
        loop {
            let Some(idle) = lock(&self.0).pop() else { break };
            match idle.send(task) {
                Ok(()) => return Ok(()),
                Err(back) => task = back.0,
            }
        }
        let idle = Arc::downgrade(&self.0);
        let thread = std::thread::Builder::new().name("wasm".into()).stack_size(STACK);
        let runtime = Builder::new_current_thread().enable_time().build()?;
        thread.spawn(move || serve(&runtime, task, &idle)).map(drop)
    }
}

fn serve(runtime: &Runtime, first: Task, idle: &Weak<Idle>) {
    first(runtime);
    while let Some(next) = wait(idle) {
        next(runtime);
    }
}

/// The next task; nothing if enough others wait for one, or nobody is left who could give any.
fn wait(idle: &Weak<Idle>) -> Option<Task> {
    let (sender, tasks): (_, Receiver<Task>) = sync_channel(1);
    {
        let idle = idle.upgrade()?;
        let mut idle = lock(&idle);
        if idle.len() >= IDLE {
            return None;
        }
        idle.push(sender);
    }
    tasks.recv().ok()
}
