//! Another peer in the place of the one that was there, after the machine around the agent was copied or
//! taken back to an earlier state. Programs go on. The new peer says which of them it knows, and nothing is
//! reported of the rest.

use std::os::fd::OwnedFd;

use super::Agent;
use super::channel::{Channel, ChannelWork};
use super::link::{Link, LinkStop};
use super::run::ProgramPhase;
use super::streams::OutputPump;
use crate::protocol::{End, FromAgent, Hello, MAX_FRAME, PROTOCOL_VERSION};

impl Agent {
    /// Continues over this socket. No output is sent before the new peer has said which channels it wants.
    pub fn renew_link(&mut self, socket: OwnedFd) -> Result<(), LinkStop> {
        self.link = Link::renewed(socket).map_err(|_| LinkStop::Closed)?;
        (self.greeted, self.renewed) = (false, true);
        self.channels.retain(|_, channel| channel.outlives_its_owner());
        self.channels
            .values_mut()
            .flat_map(|channel| &mut channel.output_pumps)
            .for_each(OutputPump::hold_output);
        self.greet_first();
        Ok(())
    }

    /// These are wanted, and numbers up to `last` were used.
    pub fn keep_channels(&mut self, last: u32, kept: &[u32]) -> Result<(), LinkStop> {
        if !std::mem::take(&mut self.renewed) {
            return Err(LinkStop::Broken);
        }
        self.highest = self.highest.max(last);
        for (number, channel) in &mut self.channels {
            if kept.contains(number) {
                channel.output_pumps.iter_mut().for_each(OutputPump::start_over);
                let credit = channel.input_pump.start_over();
                self.link.send(&FromAgent::StdinCredit(*number, credit));
            } else {
                channel.output_pumps.iter_mut().for_each(OutputPump::mute_output);
                self.link.keep_from(*number);
            }
        }
        for number in kept {
            self.tell_again(*number);
        }
        Ok(())
    }

    /// An exit that was reported to the earlier peer is not reported twice: to the new one it is lost.
    fn tell_again(&mut self, number: u32) {
        let phase = match self.channels.get(&number).map(|channel| &channel.work) {
            Some(ChannelWork::Run(run)) => Some(run.phase),
            Some(ChannelWork::Files(_) | ChannelWork::Watch(_)) | None => None,
        };
        let lost = FromAgent::Exited {
            channel: number,
            end: End::Lost,
            cpu_us: 0,
            peak_kib: 0,
            unsent: [0; 2],
        };
        match phase {
            Some(ProgramPhase::Live | ProgramPhase::Ended(..)) => {}
            Some(ProgramPhase::Told | ProgramPhase::Failed) => self.link.send(&lost),
            None => {
                self.link.send(&lost);
                self.link.send(&FromAgent::Ended(number));
            }
        }
    }

    /// The first message to the peer.
    pub fn greet_first(&mut self) {
        let hello = Hello { version: PROTOCOL_VERSION, max_frame: MAX_FRAME as u32 };
        self.link.send(&FromAgent::Hello(hello));
    }
}

impl Channel {
    /// Whether it goes on without the peer that asked for it. A request is ended: its reply has no reader.
    fn outlives_its_owner(&self) -> bool {
        match &self.work {
            ChannelWork::Run(_) => true,
            ChannelWork::Files(worker) => {
                worker.cancel();
                false
            }
            ChannelWork::Watch(_) => false,
        }
    }
}
