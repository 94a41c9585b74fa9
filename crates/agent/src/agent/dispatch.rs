//! What the engine asks for, message by message.

use super::channel::{Channel, ChannelWork};
use super::files::{self, OperationFailure};
use super::link::LinkStop;
use super::{Agent, channel};
use crate::protocol::{
    FileErrorKind, FileRequest, Hello, MAX_CHANNELS, MAX_FRAME, PROTOCOL_VERSION, Spawn, StartKind,
    Stream, ToAgent, split_frame,
};

/// The highest signal number there is.
const LAST_SIGNAL: u8 = 64;

impl Agent {
    /// Handles the whole messages that arrived, while their answers can be sent.
    pub fn handle_inbox(&mut self) -> Result<(), LinkStop> {
        let bytes = self.link.take_inbox();
        let mut rest = &bytes[..];
        while self.link.has_room()
            && let Some((body, after)) = split_frame(rest)?
        {
            self.handle_message(ToAgent::decode(body)?)?;
            rest = after;
        }
        let used = bytes.len() - rest.len();
        self.link.return_inbox(bytes, used);
        Ok(())
    }

    fn handle_message(&mut self, message: ToAgent<'_>) -> Result<(), LinkStop> {
        let is_first = matches!(message, ToAgent::Hello(_));
        let is_second = self.greeted && matches!(message, ToAgent::Keep(..));
        if !is_first && !is_second && (!self.greeted || self.renewed) {
            return Err(LinkStop::Broken);
        }
        match message {
            ToAgent::Hello(hello) => self.check_hello(hello)?,
            ToAgent::Spawn(number, spawn) => self.open_run(number, &spawn)?,
            ToAgent::File(number, request) => self.open_request(number, &request)?,
            ToAgent::Network(number) => self.open_network(number)?,
            ToAgent::Stdin(number, data) => {
                self.handle_input(number, |channel| channel.input_pump.push(data))?
            }
            ToAgent::StdinEnd(number) => self.handle_input(number, |channel| {
                channel.input_pump.end();
                Ok(())
            })?,
            ToAgent::Credit(number, stream, amount) => {
                self.handle_credit(number, stream, amount)?
            }
            ToAgent::Signal(number, signal) => self.handle_signal(number, signal)?,
            ToAgent::Kill(number) => {
                self.find_channel(number)?;
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.kill(number, &mut self.link);
                }
            }
            ToAgent::Keep(last, kept) => self.keep_channels(last, &kept)?,
            ToAgent::DiscardOutput(number) => {
                if let Some(channel) = self.find_channel(number)? {
                    channel.discard_output();
                }
            }
            ToAgent::Resize(number, size) => {
                if let Some(ChannelWork::Run(run)) =
                    self.find_channel(number)?.map(|channel| &channel.work)
                {
                    run.resize(size);
                }
            }
        }
        Ok(())
    }

    fn check_hello(&mut self, hello: Hello) -> Result<(), LinkStop> {
        let fits = hello.version == PROTOCOL_VERSION && hello.max_frame as usize >= MAX_FRAME;
        if self.greeted || !fits {
            return Err(LinkStop::Broken);
        }
        self.greeted = true;
        Ok(())
    }

    /// Takes a new number. Returns whether there is room for another channel.
    fn open_channel(&mut self, number: u32) -> Result<bool, LinkStop> {
        if number <= self.highest {
            return Err(LinkStop::Broken);
        }
        self.highest = number;
        Ok(self.channels.len() < MAX_CHANNELS)
    }

    fn open_run(&mut self, number: u32, spawn: &Spawn<'_>) -> Result<(), LinkStop> {
        if self.open_channel(number)? {
            self.spawn(number, spawn);
        } else {
            let sentence = "too many channels are open";
            self.refuse_start(number, StartKind::NoResources, libc::EAGAIN, sentence);
        }
        Ok(())
    }

    fn open_request(&mut self, number: u32, request: &FileRequest<'_>) -> Result<(), LinkStop> {
        if self.open_channel(number)? {
            self.start_request(number, request);
        } else {
            let (path, kind) = (files::path_of(request), FileErrorKind::TooLarge);
            let failure = OperationFailure::with_kind(path, kind, "too many requests at once");
            self.link.send(&failure.to_message(number));
        }
        Ok(())
    }

    fn open_network(&mut self, number: u32) -> Result<(), LinkStop> {
        if self.open_channel(number)? {
            self.start_network(number);
        } else {
            let kind = FileErrorKind::TooLarge;
            let failure = OperationFailure::with_kind("", kind, "too many requests at once");
            self.link.send(&failure.to_message(number));
        }
        Ok(())
    }

    /// An open channel; nothing if it has ended, which the peer may not know yet.
    fn find_channel(&mut self, number: u32) -> Result<Option<&mut Channel>, LinkStop> {
        if number > self.highest {
            return Err(LinkStop::Broken);
        }
        Ok(self.channels.get_mut(&number))
    }

    fn handle_input(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut Channel) -> Result<(), LinkStop>,
    ) -> Result<(), LinkStop> {
        if let Some(channel) = self.find_channel(number)? {
            change(channel)?;
        }
        if let Some(channel) = self.channels.get_mut(&number) {
            channel::Channel::feed_program(channel, number, &mut self.link);
        }
        Ok(())
    }

    fn handle_credit(&mut self, number: u32, stream: Stream, amount: u32) -> Result<(), LinkStop> {
        let Some(channel) = self.find_channel(number)? else {
            return Ok(());
        };
        match &mut channel.work {
            ChannelWork::Watch(watch) => watch.grant_credit(amount),
            ChannelWork::Run(_) | ChannelWork::Files(_) => {
                channel.output_pump(stream).grant_credit(amount)
            }
        }
    }

    fn handle_signal(&mut self, number: u32, signal: u8) -> Result<(), LinkStop> {
        if !(1..=LAST_SIGNAL).contains(&signal) {
            return Err(LinkStop::Broken);
        }
        if let Some(ChannelWork::Run(run)) = self.find_channel(number)?.map(|channel| &channel.work)
        {
            run.signal_tree(signal);
        }
        Ok(())
    }

    fn start_request(&mut self, number: u32, request: &FileRequest<'_>) {
        match request {
            FileRequest::Stat(_)
            | FileRequest::Read(..)
            | FileRequest::Write(..)
            | FileRequest::MakeDir(_)
            | FileRequest::SetMode(..)
            | FileRequest::Rename(..) => {
                files::answer_request(&self.roots, number, request, &mut self.link)
            }
            FileRequest::List(_)
            | FileRequest::Remove(_)
            | FileRequest::Replace(..)
            | FileRequest::TarOut(_)
            | FileRequest::TarIn(_) => self.start_job(number, request),
            FileRequest::Watch(path) => self.start_watch(number, path),
        }
    }
}
