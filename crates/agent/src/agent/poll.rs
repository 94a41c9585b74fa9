//! Waiting: what can be waited for, and what is done about each.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::channel::ChannelWork;
use super::link::LinkStop;
use super::run::ProgramPhase;
use super::{Agent, sys, tree};

/// Interval between searches for processes that are being killed.
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Something that can happen.
#[derive(Debug, Clone, Copy)]
pub enum PollSource {
    /// A message arrived.
    Input,
    /// The pipe takes more.
    Output,
    /// A child ended.
    Children,
    /// A keeper said something.
    Report(u32),
    /// There is output.
    OutputPump(u32, usize),
    /// Input can be passed on.
    InputPump(u32),
    /// A watched directory changed.
    Watch(u32),
}

impl Agent {
    /// Waits until something happens.
    pub fn wait_for_sources(&self) -> Result<Vec<PollSource>, LinkStop> {
        let waits = self.list_poll_fds();
        let mut fds: Vec<_> = waits.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags)).collect();
        match poll(&mut fds, self.poll_timeout().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(LinkStop::Closed),
        }
        let ready = waits.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|((source, ..), _)| *source).collect())
    }

    fn list_poll_fds(&self) -> Vec<(PollSource, &OwnedFd, PollFlags)> {
        let mut waits = Vec::new();
        if self.link.wants_input() {
            waits.push((PollSource::Input, &self.link.input, PollFlags::IN));
        }
        if self.link.is_waiting() {
            waits.push((PollSource::Output, &self.link.output, PollFlags::OUT));
        }
        if self.renewed {
            return waits;
        }
        waits.push((PollSource::Children, &self.children, PollFlags::IN));
        for (number, channel) in &self.channels {
            for (at, output_pump) in channel.output_pumps.iter().enumerate() {
                if let Some(fd) = output_pump.fd().filter(|_| output_pump.is_ready(&self.link)) {
                    waits.push((PollSource::OutputPump(*number, at), fd, PollFlags::IN));
                }
            }
            if let Some(fd) = channel.input_pump.waiting_fd() {
                waits.push((PollSource::InputPump(*number), fd, PollFlags::OUT));
            }
            match &channel.work {
                ChannelWork::Run(run)
                    if run.phase == ProgramPhase::Live && run.keeper.is_some() =>
                {
                    waits.push((PollSource::Report(*number), &run.report, PollFlags::IN));
                }
                ChannelWork::Watch(watch) => {
                    let fd = watch.waiting_fd(&self.link);
                    waits.extend(fd.map(|fd| (PollSource::Watch(*number), fd, PollFlags::IN)));
                }
                ChannelWork::Run(_) | ChannelWork::Files(_) => {}
            }
        }
        waits
    }

    /// How long to wait at most; nothing: for ever.
    fn poll_timeout(&self) -> Option<Timespec> {
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
    pub fn serve_source(&mut self, source: PollSource) -> Result<(), LinkStop> {
        match source {
            PollSource::Input => {
                if let Some(socket) = self.link.fill_input()? {
                    return self.renew_link(socket);
                }
            }
            // Every turn ends by sending.
            PollSource::Output => {}
            PollSource::Children => return self.reap_children(),
            PollSource::Report(number) => {
                if let Some(ChannelWork::Run(run)) =
                    self.channels.get_mut(&number).map(|it| &mut it.work)
                {
                    run.read_reports(number, &mut self.link);
                }
            }
            PollSource::OutputPump(number, at) => {
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.output_pumps[at].pump(number, &mut self.link, false);
                }
            }
            PollSource::InputPump(number) => {
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.feed_program(number, &mut self.link);
                }
            }
            PollSource::Watch(number) => {
                if let Some(ChannelWork::Watch(watch)) =
                    self.channels.get_mut(&number).map(|it| &mut it.work)
                {
                    watch.pump(number, &mut self.link);
                }
            }
        }
        Ok(())
    }

    fn reap_children(&mut self) -> Result<(), LinkStop> {
        while let Ok(1..) = rustix::io::read(&self.children, &mut [0; 1024]) {}
        while let Ok(Some((pid, status))) = sys::reap_child(false) {
            self.child_ended(pid, status)?;
        }
        Ok(())
    }

    fn child_ended(&mut self, pid: i32, status: i32) -> Result<(), LinkStop> {
        // Any other process is an orphan that fell to the agent; reaping it was all there is to do.
        let found = self.channels.iter_mut().find(|(_, channel)| channel.child() == Some(pid));
        let Some((number, channel)) = found else { return Ok(()) };
        let number = *number;
        match &mut channel.work {
            ChannelWork::Run(run) => {
                let lost = run.keeper_ended(number, &mut self.link, status);
                if lost && self.scope.is_some() {
                    // Its program's processes cannot be told from others any more: all of them are ended.
                    return Err(LinkStop::Closed);
                }
                if lost {
                    self.end_strays();
                }
            }
            ChannelWork::Files(worker) => worker.worker_ended(status),
            ChannelWork::Watch(_) => {}
        }
        Ok(())
    }

    /// Kills the processes of a killed keeper: they were reparented to the agent and have no channel now.
    fn end_strays(&mut self) {
        let known: BTreeSet<_> =
            self.channels.values().filter_map(super::channel::Channel::child).collect();
        tree::kill_strays(&known);
    }

    /// Kills what is to be killed, again and again until its keeper has ended.
    pub fn kill_wanted_runs(&mut self) {
        let wanted = |work: &ChannelWork| matches!(work, ChannelWork::Run(run) if run.killing);
        if !self.channels.values().any(|channel| wanted(&channel.work)) {
            self.next_hunt = None;
            return;
        }
        if self.next_hunt.is_some_and(|at| at > Instant::now()) {
            return;
        }
        for channel in self.channels.values() {
            if let ChannelWork::Run(run) = &channel.work
                && run.killing
            {
                run.kill_tree();
            }
        }
        self.next_hunt = Some(Instant::now() + KILL_POLL_INTERVAL);
    }

    /// Tells the ends that can be told and forgets the channels that are over.
    pub fn report_ended_channels(&mut self) {
        let link = &mut self.link;
        self.channels.retain(|number, channel| !channel.try_finish(*number, link));
    }
}
