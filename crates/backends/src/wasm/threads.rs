//! Threads that run programs: one each, because a program uses its thread up until it is interrupted. Idle
//! ones wait for the next program, with a timer of their own, so that nothing depends on the caller's
//! runtime. A program gets one when it has not ended at its first interruption.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use rustix::fs::Mode;
use tokio::runtime::{Builder, Runtime};
use tokio::task::unconstrained;

use super::executor::ProgramThread;

/// Idle threads kept for the next program.
const MAX_IDLE_THREADS: usize = 64;
/// Stack of a thread: compiling recurses; the program itself has a stack of its own.
const THREAD_STACK_BYTES: usize = 4 << 20;

/// The umask of programs, as that of every other backend's guests.
const GUESTS_UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// A program until its end.
pub(super) type Course = Pin<Box<dyn Future<Output = ()> + Send>>;

type Task = Box<dyn FnOnce(&Runtime) + Send>;
type Idle = Mutex<Vec<SyncSender<Task>>>;

/// The threads.
#[derive(Default)]
pub(super) struct Threads(Arc<Idle>);

fn lock(idle: &Idle) -> MutexGuard<'_, Vec<SyncSender<Task>>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// Begins a program on this thread, and goes on with it on one of its own if that was not all.
    pub(super) fn begin_course(
        &self,
        thread: Arc<ProgramThread>,
        mut course: Course,
    ) -> io::Result<()> {
        match poll_once(&mut course) {
            Poll::Ready(()) => Ok(()),
            Poll::Pending => {
                thread.leave_thread();
                self.run_task(move |runtime| {
                    thread.arrive_on_thread();
                    runtime.block_on(course);
                })
            }
        }
    }

    /// Runs a task on a thread of its own.
    pub(super) fn run_task(&self, task: impl FnOnce(&Runtime) + Send + 'static) -> io::Result<()> {
        let mut task: Task = Box::new(task);
        loop {
            let Some(idle) = lock(&self.0).pop() else { break };
            match idle.send(task) {
                Ok(()) => return Ok(()),
                Err(back) => task = back.0,
            }
        }
        let idle = Arc::downgrade(&self.0);
        let thread = std::thread::Builder::new().name("wasm".into()).stack_size(THREAD_STACK_BYTES);
        let runtime = Builder::new_current_thread().enable_time().build()?;
        thread.spawn(move || serve_tasks(&runtime, task, &idle)).map(drop)
    }
}

/// Polls a program for the first time. If its machine panics, the caller that waits for it is told that it is
/// lost, as if the panic had ended a thread of its own.
fn poll_once(course: &mut Course) -> Poll<()> {
    // The waker does nothing: the program is polled again as soon as it has a thread.
    let mut context = Context::from_waker(Waker::noop());
    // The caller's own work is not what the program is to be interrupted for.
    let mut piece = unconstrained(course.as_mut());
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut piece).poll(&mut context)));
    polled.unwrap_or(Poll::Ready(()))
}

fn serve_tasks(runtime: &Runtime, first: Task, idle: &Weak<Idle>) {
    // What a program makes is the caller's, as elsewhere: the umask of this process is for its own files.
    // Where the thread cannot have one, new files are closed to others.
    let _ = stockade_launcher::take_own_umask(GUESTS_UMASK);
    first(runtime);
    while let Some(next) = wait_for_task(idle) {
        next(runtime);
    }
}

/// The next task; nothing if enough idle threads wait for one, or no caller is left that could give any.
fn wait_for_task(idle: &Weak<Idle>) -> Option<Task> {
    let (sender, tasks): (_, Receiver<Task>) = sync_channel(1);
    {
        let idle = idle.upgrade()?;
        let mut idle = lock(&idle);
        if idle.len() >= MAX_IDLE_THREADS {
            return None;
        }
        idle.push(sender);
    }
    tasks.recv().ok()
}
