//! One channel: a program, a file operation or a watch, with the streams that belong to it.

use super::file_worker::FileWorker;
use super::link::Link;
use super::run::AgentExecution;
use super::streams::{InputPump, OutputPump};
use super::watch::Watch;
use crate::protocol::{FromAgent, Stream};

/// One channel.
pub struct Channel {
    pub output_pumps: [OutputPump; 2],
    pub input_pump: InputPump,
    pub work: ChannelWork,
}

/// What a channel is for.
pub enum ChannelWork {
    Run(AgentExecution),
    Files(FileWorker),
    Watch(Watch),
}

impl Channel {
    pub fn output_pump(&mut self, stream: Stream) -> &mut OutputPump {
        match stream {
            Stream::Stdout => &mut self.output_pumps[0],
            Stream::Stderr => &mut self.output_pumps[1],
        }
    }

    /// The process the agent started for it and has not reaped.
    pub fn child(&self) -> Option<i32> {
        match &self.work {
            ChannelWork::Run(run) => run.keeper,
            ChannelWork::Files(worker) => worker.worker,
            ChannelWork::Watch(_) => None,
        }
    }

    /// Whether the writer of its output has ended, so that only what is already there is waited for.
    pub fn is_draining(&self) -> bool {
        match &self.work {
            ChannelWork::Run(run) => run.is_draining(),
            ChannelWork::Files(worker) => worker.worker.is_none(),
            ChannelWork::Watch(_) => false,
        }
    }

    /// Whether there is something to drain that can be drained now.
    pub fn can_drain(&self, link: &Link) -> bool {
        self.is_draining()
            && self
                .output_pumps
                .iter()
                .any(|output_pump| !output_pump.is_done() && output_pump.is_ready(link))
    }

    /// Passes on the last output and then tells the end. Returns whether the channel is over.
    pub fn try_finish(&mut self, number: u32, link: &mut Link) -> bool {
        if self.is_draining() {
            self.output_pumps
                .iter_mut()
                .filter(|output_pump| !output_pump.is_done())
                .for_each(|output_pump| output_pump.pump(number, link, true));
        }
        match &mut self.work {
            ChannelWork::Run(run) => run.try_finish(number, link, &self.output_pumps),
            ChannelWork::Files(worker) => {
                worker.try_finish(number, link, self.output_pumps.iter().all(OutputPump::is_done))
            }
            ChannelWork::Watch(watch) => watch.is_over(),
        }
    }

    /// Ends its work, of any kind.
    pub fn kill(&mut self, number: u32, link: &mut Link) {
        match &mut self.work {
            ChannelWork::Run(run) => run.killing = run.keeper.is_some(),
            ChannelWork::Files(worker) => {
                worker.cancel();
                self.output_pumps.iter_mut().for_each(OutputPump::close);
                self.input_pump.close();
            }
            ChannelWork::Watch(watch) => {
                watch.end();
                link.send(&FromAgent::Ended(number));
            }
        }
    }

    /// A program's output has no reader any more. The output of a request is its reply, and is sent.
    pub fn discard_output(&mut self) {
        if matches!(self.work, ChannelWork::Run(_)) {
            self.output_pumps.iter_mut().for_each(OutputPump::stop_sending);
        }
    }

    /// Writes waiting input and gives credit back, unless the program's end was told: the peer may have forgotten the
    /// channel.
    pub fn feed_program(&mut self, number: u32, link: &mut Link) {
        if let Some(amount) = self.input_pump.pump()
            && !self.is_end_told()
        {
            link.send(&FromAgent::StdinCredit(number, amount));
        }
    }

    fn is_end_told(&self) -> bool {
        match &self.work {
            ChannelWork::Run(run) => run.is_end_told(),
            // Told when the channel goes.
            ChannelWork::Files(_) | ChannelWork::Watch(_) => false,
        }
    }
}
