//! A thread that starts runtimes and then stays: what it started is killed by the kernel when it ends,
//! be it with its owner or because the whole process was killed (C-31).

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread;

use stockade_launcher::{Cgroup, ReadOnlyView, start_in};
use tokio::sync::oneshot;

struct RuntimeSpawnJob {
    command: Command,
    cgroup: Option<Cgroup>,
    views: Vec<ReadOnlyView>,
    done: oneshot::Sender<io::Result<Child>>,
}

/// Starts what it is given, one after the other.
pub(super) struct Spawner(mpsc::Sender<RuntimeSpawnJob>);

impl Spawner {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<RuntimeSpawnJob>();
        let serve = move || {
            while let Ok(RuntimeSpawnJob { command, cgroup, views, done }) = waiting.recv() {
                let started = start_in(command, cgroup.as_ref(), &views);
                // The caller is gone, and no other would end it.
                if let Err(Ok(mut orphan)) = done.send(started) {
                    let _ = orphan.kill();
                    let _ = orphan.wait();
                }
            }
        };
        thread::Builder::new().name("stockade-gvisor".into()).spawn(serve)?;
        Ok(Self(jobs))
    }

    /// Starts one in its control groups, with these views of the host.
    pub(super) async fn spawn(
        &self,
        command: Command,
        cgroup: Option<Cgroup>,
        views: Vec<ReadOnlyView>,
    ) -> io::Result<Child> {
        let (done, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts runtimes is gone");
        self.0.send(RuntimeSpawnJob { command, cgroup, views, done }).map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}
