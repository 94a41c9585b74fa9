//! File operations that take their time or yield a stream: each in a forked worker, so that the loop never
//! waits for a disk, or for a tree that another process makes grow.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

use super::channel::{Channel, ChannelWork};
use super::files::{self, OperationFailure, WorkerStreams};
use super::link::Link;
use super::run::{output_pipe, set_nonblocking};
use super::streams::{InputPump, OutputPump};
use super::sys::{self, Fork};
use super::{Agent, network};
use crate::protocol::{FileRequest, FromAgent, HEADER_BYTES, MAX_FRAME, Stream};

/// One worker.
pub struct FileWorker {
    /// Its process, until that was reaped.
    pub worker: Option<i32>,
    /// Where it says what went wrong, as a whole message.
    report: OwnedFd,
    status: i32,
}

impl FileWorker {
    pub fn cancel(&self) {
        if let Some(worker) = self.worker {
            sys::send_signal(worker, libc::SIGKILL);
        }
    }

    pub fn worker_ended(&mut self, status: i32) {
        self.worker = None;
        self.status = status;
    }

    /// Tells the result once the worker is gone and its output passed on.
    pub fn try_finish(&mut self, number: u32, link: &mut Link, drained: bool) -> bool {
        let over = self.worker.is_none() && drained;
        if over {
            let frame = read_all(&self.report);
            match frame.get(HEADER_BYTES..).map(FromAgent::decode) {
                Some(Ok(failure)) => link.send(&failure),
                Some(Err(_)) | None if self.status != 0 => link.send(&cut_short(number)),
                Some(Err(_)) | None => link.send(&FromAgent::FileDone(number)),
            }
        }
        over
    }
}

fn cut_short(number: u32) -> FromAgent<'static> {
    let kind = crate::protocol::FileErrorKind::System;
    FromAgent::FileError(number, kind, libc::EINTR, "", "the operation was cut short")
}

/// What the worker left in the pipe: it is gone, so this is all there is.
fn read_all(report: &OwnedFd) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES + MAX_FRAME];
    let length = rustix::io::read(report, &mut frame[..]).unwrap_or(0);
    frame.truncate(length);
    frame
}

impl Agent {
    /// Starts a worker, or says why not.
    pub fn start_job(&mut self, number: u32, request: &FileRequest<'_>) {
        let work = |streams| files::run_request(&self.roots, request, streams);
        match self.fork_worker(number, work) {
            Ok(channel) => {
                self.channels.insert(number, channel);
            }
            Err(error) => {
                let failure = OperationFailure::from_io(files::path_of(request), &error);
                self.link.send(&failure.to_message(number));
            }
        }
    }

    /// Starts the network helper, or says why not.
    pub fn start_network(&mut self, number: u32) {
        let work = |streams| {
            network::serve(streams).map_err(|error| OperationFailure::from_io("", &error))
        };
        match self.fork_worker(number, work) {
            Ok(channel) => {
                self.channels.insert(number, channel);
            }
            Err(error) => {
                self.link.send(&OperationFailure::from_io("", &error).to_message(number));
            }
        }
    }

    fn fork_worker(
        &self,
        number: u32,
        work: impl FnOnce(WorkerStreams) -> Result<(), OperationFailure>,
    ) -> io::Result<Channel> {
        let (out, output) = output_pipe()?;
        let (input, worker_input) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&worker_input)?;
        let (report, reports) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&report)?;
        let worker = match sys::fork()? {
            Fork::Child => self.run_worker(number, work, output, input, &reports),
            Fork::Parent(pid) => pid,
        };
        let output_pumps =
            [OutputPump::new(Stream::Stdout, Some(out)), OutputPump::new(Stream::Stderr, None)];
        let worker = FileWorker { worker: Some(worker), report, status: 0 };
        Ok(Channel {
            output_pumps,
            input_pump: InputPump::new(Some(worker_input), false),
            work: ChannelWork::Files(worker),
        })
    }

    /// The worker's whole life.
    fn run_worker(
        &self,
        number: u32,
        work: impl FnOnce(WorkerStreams) -> Result<(), OperationFailure>,
        output: OwnedFd,
        input: OwnedFd,
        report: &OwnedFd,
    ) -> ! {
        let roots = self.roots.fds();
        sys::close_all_but(&mut sys::raw_fds(&[&output, &input, report, roots[0], roots[1]]));
        let streams = WorkerStreams { output: File::from(output), input: File::from(input) };
        let code = match work(streams) {
            Ok(()) => 0,
            Err(failure) => {
                let mut frame = Vec::new();
                if failure.to_message(number).encode(&mut frame).is_ok() {
                    // A write error is ignored: the agent is gone then.
                    let _ = rustix::io::write(report, &frame);
                }
                1
            }
        };
        sys::exit_now(code)
    }
}
