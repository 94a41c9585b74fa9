//! One channel: a program, a file job or a watch, with the streams that belong to it.

use super::job::Job;
use super::link::Link;
use super::run::Run;
use super::streams::{Feed, Tap};
use super::watch::Watch;
use crate::protocol::{FromAgent, Stream};

/// One channel.
pub struct Channel {
    pub taps: [Tap; 2],
    pub feed: Feed,
    pub work: Work,
}

/// What a channel is for.
pub enum Work {
    Run(Run),
    Job(Job),
    Watch(Watch),
}

impl Channel {
    pub fn tap(&mut self, stream: Stream) -> &mut Tap {
        match stream {
            Stream::Stdout => &mut self.taps[0],
            Stream::Stderr => &mut self.taps[1],
        }
    }

    /// The process the agent started for it and has not reaped.
    pub fn child(&self) -> Option<i32> {
        match &self.work {
            Work::Run(run) => run.keeper,
            Work::Job(job) => job.worker,
            Work::Watch(_) => None,
        }
    }

    /// Whether the writer of its output has ended, so that only what is already there is waited for.
    pub fn is_draining(&self) -> bool {
        match &self.work {
            Work::Run(run) => run.is_draining(),
            Work::Job(job) => job.worker.is_none(),
            Work::Watch(_) => false,
        }
    }

    /// Whether there is something to drain that can be drained now.
    pub fn can_drain(&self, link: &Link) -> bool {
        self.is_draining() && self.taps.iter().any(|tap| !tap.is_done() && tap.is_ready(link))
    }

    /// Passes on the last output and then tells the end. Returns whether the channel is over.
    pub fn settle(&mut self, number: u32, link: &mut Link) -> bool {
        if self.is_draining() {
            self.taps
                .iter_mut()
                .filter(|tap| !tap.is_done())
                .for_each(|tap| tap.pump(number, link, true));
        }
        match &mut self.work {
            Work::Run(run) => run.settle(number, link, &self.taps),
            Work::Job(job) => job.settle(number, link, self.taps.iter().all(Tap::is_done)),
            Work::Watch(watch) => watch.is_over(),
        }
    }

    /// Ends whatever it is.
    pub fn kill(&mut self, number: u32, link: &mut Link) {
        match &mut self.work {
            Work::Run(run) => run.killing = run.keeper.is_some(),
            Work::Job(job) => {
                job.cancel();
                self.taps.iter_mut().for_each(Tap::close);
                self.feed.close();
            }
            Work::Watch(watch) => {
                watch.end();
                link.send(&FromAgent::Ended(number));
            }
        }
    }

    /// Nobody wants what a program writes. What a request yields is its answer, and is sent.
    pub fn hush(&mut self) {
        if matches!(self.work, Work::Run(_)) {
            self.taps.iter_mut().for_each(Tap::hush);
        }
    }

    /// Writes waiting input and gives credit back.
    pub fn feed(&mut self, number: u32, link: &mut Link) {
        if let Some(amount) = self.feed.pump() {
            link.send(&FromAgent::StdinCredit(number, amount));
        }
    }
}
