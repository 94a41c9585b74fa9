//! Waiting: what can be waited for, and what is done about each.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::channel::Work;
use super::link::Stop;
use super::run::Phase;
use super::{Agent, sys, tree};

/// Interval between searches for processes that are being killed.
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Something that can happen.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// A message arrived.
    Input,
    /// The pipe takes more.
    Output,
    /// A child ended.
    Children,
    /// A keeper said something.
    Report(u32),
    /// There is output.
    Tap(u32, usize),
    /// Input can be passed on.
    Feed(u32),
    /// A watched directory changed.
    Watch(u32),
}

impl Agent {
    /// Waits until something happens.
    pub fn wait(&self) -> Result<Vec<Source>, Stop> {
        let waits = self.waits();
        let mut fds: Vec<_> = waits.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags)).collect();
        match poll(&mut fds, self.patience().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(Stop::Closed),
        }
        let ready = waits.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|((source, ..), _)| *source).collect())
    }

    fn waits(&self) -> Vec<(Source, &OwnedFd, PollFlags)> {
        let mut waits = Vec::new();
        if self.link.wants_input() {
            waits.push((Source::Input, &self.link.input, PollFlags::IN));
        }
        if self.link.is_waiting() {
            waits.push((Source::Output, &self.link.output, PollFlags::OUT));
        }
        if self.renewed {
            return waits;
        }
        waits.push((Source::Children, &self.children, PollFlags::IN));
        for (number, channel) in &self.channels {
            for (at, tap) in channel.taps.iter().enumerate() {
                if let Some(fd) = tap.fd().filter(|_| tap.is_ready(&self.link)) {
                    waits.push((Source::Tap(*number, at), fd, PollFlags::IN));
                }
            }
            if let Some(fd) = channel.feed.waiting_fd() {
                waits.push((Source::Feed(*number), fd, PollFlags::OUT));
            }
            match &channel.work {
                Work::Run(run) if run.phase == Phase::Live && run.keeper.is_some() => {
                    waits.push((Source::Report(*number), &run.report, PollFlags::IN));
                }
                Work::Watch(watch) => {
                    let fd = watch.waiting_fd(&self.link);
                    waits.extend(fd.map(|fd| (Source::Watch(*number), fd, PollFlags::IN)));
                }
                Work::Run(_) | Work::Job(_) => {}
            }
        }
        waits
    }

    /// How long to wait at most; nothing: for ever.
    fn patience(&self) -> Option<Timespec> {
        if self.renewed {
            return None;
        }
        if self.channels.values().any(|channel| channel.can_drain(&self.link)) {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let until = self.next_hunt?.saturating_duration_since(Instant::now());
        Timespec::try_from(until).ok()
    }

    /// Deals with one thing that happened.
    pub fn serve_source(&mut self, source: Source) -> Result<(), Stop> {
        match source {
            Source::Input => {
                if let Some(socket) = self.link.fill()? {
                    return self.renew(socket);
                }
            }
            // Every turn ends by sending.
            Source::Output => {}
            Source::Children => return self.reap(),
            Source::Report(number) => {
                if let Some(Work::Run(run)) = self.channels.get_mut(&number).map(|it| &mut it.work)
                {
                    run.hear(number, &mut self.link);
                }
            }
            Source::Tap(number, at) => {
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.taps[at].pump(number, &mut self.link, false);
                }
            }
            Source::Feed(number) => {
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.feed(number, &mut self.link);
                }
            }
            Source::Watch(number) => {
                if let Some(Work::Watch(watch)) =
                    self.channels.get_mut(&number).map(|it| &mut it.work)
                {
                    watch.pump(number, &mut self.link);
                }
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<(), Stop> {
        while let Ok(1..) = rustix::io::read(&self.children, &mut [0; 1024]) {}
        while let Ok(Some((pid, status))) = sys::reap(false) {
            self.child_ended(pid, status)?;
        }
        Ok(())
    }

    fn child_ended(&mut self, pid: i32, status: i32) -> Result<(), Stop> {
        // Anybody else is an orphan that fell to the agent; reaping it was all there is to do.
        let found = self.channels.iter_mut().find(|(_, channel)| channel.child() == Some(pid));
        let Some((number, channel)) = found else { return Ok(()) };
        let number = *number;
        match &mut channel.work {
            Work::Run(run) => {
                let lost = run.keeper_ended(number, &mut self.link, status);
                if lost && self.scope.is_some() {
                    // Nobody can tell any more whose its program's processes are: everybody goes.
                    return Err(Stop::Closed);
                }
                if lost {
                    self.end_strays();
                }
            }
            Work::Job(job) => job.worker_ended(status),
            Work::Watch(_) => {}
        }
        Ok(())
    }

    /// What a killed keeper kept has fallen to the agent and belongs to nobody now.
    fn end_strays(&mut self) {
        let known: BTreeSet<_> =
            self.channels.values().filter_map(super::channel::Channel::child).collect();
        tree::kill_strays(&known);
    }

    /// Kills what is to be killed, again and again until its keeper has ended.
    pub fn hunt(&mut self) {
        let wanted = |work: &Work| matches!(work, Work::Run(run) if run.killing);
        if !self.channels.values().any(|channel| wanted(&channel.work)) {
            self.next_hunt = None;
            return;
        }
        if self.next_hunt.is_some_and(|at| at > Instant::now()) {
            return;
        }
        for channel in self.channels.values() {
            if let Work::Run(run) = &channel.work
                && run.killing
            {
                run.hunt();
            }
        }
        self.next_hunt = Some(Instant::now() + KILL_POLL_INTERVAL);
    }

    /// Tells the ends that can be told and forgets the channels that are over.
    pub fn settle(&mut self) {
        let link = &mut self.link;
        self.channels.retain(|number, channel| !channel.settle(*number, link));
    }
}
