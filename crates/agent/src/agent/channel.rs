//! One channel: a program, a file job or a watch, with the streams that belong to it.

use super::job::FileWorker;
use super::link::Link;
use super::run::AgentExecution;
use super::streams::{Feed, Tap};
use super::watch::Watch;
use crate::protocol::{FromAgent, Stream};

/// One channel.
pub struct Channel {
    pub taps: [Tap; 2],
    pub feed: Feed,
    pub work: ChannelWork,
}

/// What a channel is for.
pub enum ChannelWork {
    Run(AgentExecution),
    Job(FileWorker),
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
            ChannelWork::Run(run) => run.keeper,
            ChannelWork::Job(job) => job.worker,
            ChannelWork::Watch(_) => None,
        }
    }

    /// Whether the writer of its output has ended, so that only what is already there is waited for.
    pub fn is_draining(&self) -> bool {
        match &self.work {
            ChannelWork::Run(run) => run.is_draining(),
            ChannelWork::Job(job) => job.worker.is_none(),
            ChannelWork::Watch(_) => false,
        }
    }

    /// Whether there is something to drain that can be drained now.
    pub fn can_drain(&self, link: &Link) -> bool {
        self.is_draining() && self.taps.iter().any(|tap| !tap.is_done() && tap.is_ready(link))
    }

    /// Passes on the last output and then tells the end. Returns whether the channel is over.
    pub fn try_finish(&mut self, number: u32, link: &mut Link) -> bool {
        if self.is_draining() {
            self.taps
                .iter_mut()
                .filter(|tap| !tap.is_done())
                .for_each(|tap| tap.pump(number, link, true));
        }
        match &mut self.work {
            ChannelWork::Run(run) => run.try_finish(number, link, &self.taps),
            ChannelWork::Job(job) => {
                job.try_finish(number, link, self.taps.iter().all(Tap::is_done))
            }
            ChannelWork::Watch(watch) => watch.is_over(),
        }
    }

    /// Ends its work, of any kind.
    pub fn kill(&mut self, number: u32, link: &mut Link) {
        match &mut self.work {
            ChannelWork::Run(run) => run.killing = run.keeper.is_some(),
            ChannelWork::Job(job) => {
                job.cancel();
                self.taps.iter_mut().for_each(Tap::close);
                self.feed.close();
            }
            ChannelWork::Watch(watch) => {
                watch.end();
                link.send(&FromAgent::Ended(number));
            }
        }
    }

    /// A program's output has no reader any more. The output of a request is its reply, and is sent.
    pub fn hush(&mut self) {
        if matches!(self.work, ChannelWork::Run(_)) {
            self.taps.iter_mut().for_each(Tap::hush);
        }
    }

    /// Writes waiting input and gives credit back.
    pub fn feed_program(&mut self, number: u32, link: &mut Link) {
        if let Some(amount) = self.feed.pump() {
            link.send(&FromAgent::StdinCredit(number, amount));
        }
    }
}
