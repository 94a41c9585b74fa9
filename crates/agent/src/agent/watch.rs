//! Watching one directory. The kernel's queue is the bound: what does not fit is an overflow event.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::Agent;
use super::channel::{Channel, ChannelWork};
use super::files::OperationFailure;
use super::link::{Link, LinkStop};
use super::streams::{InputPump, OutputPump, add_credit};
use crate::protocol::{FromAgent, Stream, WINDOW_BYTES, WatchEvent, WatchKind, charge};

/// The buffer for the kernel's events.
const EVENT_BUFFER_BYTES: usize = 4096;
/// The most that the records of one buffer of events can take.
const MAX_RECORDS_BYTES: u32 = 4 * EVENT_BUFFER_BYTES as u32;

/// One watch.
pub struct Watch {
    fd: Option<OwnedFd>,
    credit: u32,
}

impl Watch {
    /// The descriptor to wait for, while events may be sent.
    pub fn waiting_fd(&self, link: &Link) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| self.credit >= MAX_RECORDS_BYTES && link.has_room())
    }

    pub fn is_over(&self) -> bool {
        self.fd.is_none()
    }

    pub fn end(&mut self) {
        self.fd = None;
    }

    pub fn grant_credit(&mut self, amount: u32) -> Result<(), LinkStop> {
        self.credit = add_credit(self.credit, amount)?;
        Ok(())
    }

    /// Sends the events that one read yields.
    pub fn pump(&mut self, number: u32, link: &mut Link) {
        let Some(fd) = &self.fd else { return };
        let mut buffer = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
        let mut reader = inotify::Reader::new(fd, &mut buffer);
        let mut records = Vec::new();
        let mut gone = false;
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            if let Some(kind) = to_watch_kind(event.events()) {
                gone |= kind == WatchKind::Gone;
                // A file name is far shorter than a frame.
                let _ = WatchEvent { kind, name: &name }.record(&mut records);
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        if !records.is_empty() {
            self.credit = self.credit.saturating_sub(charge(records.len()));
            link.send(&FromAgent::Output(number, Stream::Stdout, &records));
        }
        if gone {
            self.end();
            link.send(&FromAgent::Ended(number));
        }
    }
}

fn to_watch_kind(events: ReadFlags) -> Option<WatchKind> {
    let any = |flags: ReadFlags| events.intersects(flags);
    if any(ReadFlags::QUEUE_OVERFLOW) {
        Some(WatchKind::Overflow)
    } else if any(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) {
        Some(WatchKind::Gone)
    } else if any(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(WatchKind::Created)
    } else if any(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        Some(WatchKind::Removed)
    } else if any(ReadFlags::MODIFY | ReadFlags::ATTRIB | ReadFlags::CLOSE_WRITE) {
        Some(WatchKind::Changed)
    } else {
        None
    }
}

impl Agent {
    /// Starts a watch, or says why not.
    pub fn start_watch(&mut self, number: u32, path: &str) {
        let message = match self.open_watch(path) {
            Ok(fd) => {
                let watch = Watch { fd: Some(fd), credit: WINDOW_BYTES };
                let output_pumps =
                    [OutputPump::new(Stream::Stdout, None), OutputPump::new(Stream::Stderr, None)];
                let input_pump = InputPump::new(None, false);
                self.channels.insert(
                    number,
                    Channel { output_pumps, input_pump, work: ChannelWork::Watch(watch) },
                );
                return self.link.send(&FromAgent::FileDone(number));
            }
            Err(failure) => failure,
        };
        self.link.send(&message.to_message(number));
    }

    fn open_watch(&self, path: &str) -> Result<OwnedFd, OperationFailure> {
        let dir = self.roots.open_dir(path)?;
        let fail = |errno| OperationFailure::new(path, errno);
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(fail)?;
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // By descriptor: the path was resolved by the kernel already and may not be resolved again.
        let held = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir));
        inotify::add_watch(&fd, held, flags).map_err(fail)?;
        Ok(fd)
    }
}
