//! What the engine asks for, message by message.

use super::channel::{Channel, Work};
use super::files::{self, Failure};
use super::link::Stop;
use super::{Agent, channel};
use crate::protocol::{
    FileErrorKind, FileRequest, Hello, MAX_CHANNELS, MAX_FRAME, PROTOCOL_VERSION, Spawn, StartKind,
    Stream, ToAgent, split_frame,
};

/// The highest signal number there is.
const LAST_SIGNAL: u8 = 64;

impl Agent {
    /// Handles the whole messages that arrived, while their answers can be sent.
    pub fn handle_inbox(&mut self) -> Result<(), Stop> {
        let bytes = self.link.take_inbox();
        let mut rest = &bytes[..];
        while self.link.has_room()
            && let Some((body, after)) = split_frame(rest)?
        {
            self.handle(ToAgent::decode(body)?)?;
            rest = after;
        }
        let used = bytes.len() - rest.len();
        self.link.return_inbox(bytes, used);
        Ok(())
    }

    fn handle(&mut self, message: ToAgent<'_>) -> Result<(), Stop> {
        let is_first = matches!(message, ToAgent::Hello(_));
        let is_second = self.greeted && matches!(message, ToAgent::Keep(..));
        if !is_first && !is_second && (!self.greeted || self.renewed) {
            return Err(Stop::Broken);
        }
        match message {
            ToAgent::Hello(hello) => self.greet(hello)?,
            ToAgent::Spawn(number, spawn) => self.open_run(number, &spawn)?,
            ToAgent::File(number, request) => self.open_request(number, &request)?,
            ToAgent::Stdin(number, data) => {
                self.input(number, |channel| channel.feed.push(data))?
            }
            ToAgent::StdinEnd(number) => self.input(number, |channel| {
                channel.feed.end();
                Ok(())
            })?,
            ToAgent::Credit(number, stream, amount) => self.credit(number, stream, amount)?,
            ToAgent::Signal(number, signal) => self.signal(number, signal)?,
            ToAgent::Kill(number) => {
                self.find(number)?;
                if let Some(channel) = self.channels.get_mut(&number) {
                    channel.kill(number, &mut self.link);
                }
            }
            ToAgent::Keep(last, kept) => self.keep(last, &kept)?,
            ToAgent::Hush(number) => {
                if let Some(channel) = self.find(number)? {
                    channel.hush();
                }
            }
            ToAgent::Resize(number, size) => {
                if let Some(Work::Run(run)) = self.find(number)?.map(|channel| &channel.work) {
                    run.resize(size);
                }
            }
        }
        Ok(())
    }

    fn greet(&mut self, hello: Hello) -> Result<(), Stop> {
        let fits = hello.version == PROTOCOL_VERSION && hello.max_frame as usize >= MAX_FRAME;
        if self.greeted || !fits {
            return Err(Stop::Broken);
        }
        self.greeted = true;
        Ok(())
    }

    /// Takes a new number. Returns whether there is room for another channel.
    fn open(&mut self, number: u32) -> Result<bool, Stop> {
        if number <= self.highest {
            return Err(Stop::Broken);
        }
        self.highest = number;
        Ok(self.channels.len() < MAX_CHANNELS)
    }

    fn open_run(&mut self, number: u32, spawn: &Spawn<'_>) -> Result<(), Stop> {
        if self.open(number)? {
            self.spawn(number, spawn);
        } else {
            let sentence = "too many channels are open";
            self.refuse(number, StartKind::NoResources, libc::EAGAIN, sentence);
        }
        Ok(())
    }

    fn open_request(&mut self, number: u32, request: &FileRequest<'_>) -> Result<(), Stop> {
        if self.open(number)? {
            self.start_request(number, request);
        } else {
            let (path, kind) = (files::path_of(request), FileErrorKind::TooLarge);
            let failure = Failure::because(path, kind, "too many requests at once");
            self.link.send(&failure.message(number));
        }
        Ok(())
    }

    /// An open channel; nothing if it has ended, which the other side may not know yet.
    fn find(&mut self, number: u32) -> Result<Option<&mut Channel>, Stop> {
        if number > self.highest {
            return Err(Stop::Broken);
        }
        Ok(self.channels.get_mut(&number))
    }

    fn input(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut Channel) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if let Some(channel) = self.find(number)? {
            change(channel)?;
        }
        if let Some(channel) = self.channels.get_mut(&number) {
            channel::Channel::feed(channel, number, &mut self.link);
        }
        Ok(())
    }

    fn credit(&mut self, number: u32, stream: Stream, amount: u32) -> Result<(), Stop> {
        let Some(channel) = self.find(number)? else {
            return Ok(());
        };
        match &mut channel.work {
            Work::Watch(watch) => watch.grant(amount),
            Work::Run(_) | Work::Job(_) => channel.tap(stream).grant(amount),
        }
    }

    fn signal(&mut self, number: u32, signal: u8) -> Result<(), Stop> {
        if !(1..=LAST_SIGNAL).contains(&signal) {
            return Err(Stop::Broken);
        }
        if let Some(Work::Run(run)) = self.find(number)?.map(|channel| &channel.work) {
            run.signal(signal);
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
                files::answer(&self.roots, number, request, &mut self.link)
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
