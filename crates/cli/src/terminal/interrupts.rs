//! Signals sent to this command. The first is passed on; a second one, or two seconds without an end,
//! means that the caller has waited long enough.

use std::time::Duration;

use stockade_core::{Error, ErrorCode, Result, Signal};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use crate::terminal::stdio_loop::ProgramControl;

/// Grace period of a program after it was asked to end.
pub const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The signals that mean "end".
pub struct Interrupts {
    interrupt: Listener,
    terminate: Listener,
    hangup: Listener,
    quit: Listener,
}

impl Interrupts {
    /// From here on such a signal no longer ends this process by itself.
    pub fn listen() -> Result<Self> {
        let open = || -> std::io::Result<Self> {
            Ok(Self {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                hangup: signal(SignalKind::hangup())?,
                quit: signal(SignalKind::quit())?,
            })
        };
        open().map_err(|error| {
            Error::new(ErrorCode::System, "run", "signals cannot be received").source(error)
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> Signal {
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
            _ = self.quit.recv() => SignalKind::quit(),
        };
        Signal(kind.as_raw_value())
    }

    /// Does something, unless a signal comes first.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            done = work => Ok(done),
            signal = self.next() => Err(signal),
        }
    }

    /// Passes the first signal on; returns when the program has to be ended for good.
    pub async fn conduct(&mut self, program: &impl ProgramControl) -> Signal {
        let first = self.next().await;
        // A program that has not started or has ended needs no signal: its end comes by itself.
        let _ = program.signal(first).await;
        tokio::select! {
            second = self.next() => second,
            () = tokio::time::sleep(GRACE_PERIOD) => first,
        }
    }
}

/// The exit code of a command that a signal ended.
pub const fn exit_code(signal: Signal) -> i32 {
    128 + signal.0
}
