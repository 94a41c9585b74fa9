//! One command of a sandbox: described, then started and read.

use std::time::Duration;

use bytes::Bytes as Data;
use stockade_core::{
    Command, EnvName, Error, ErrorCode, Outcome, Result, SandboxId, SandboxPath, Signal, Stdin,
};
use stockade_engine::{Engine, Execution, Output, OutputEvent, Subscription};

/// A command that is not started yet.
#[must_use = "nothing is started before `output` or `start`"]
pub struct Exec<'a> {
    engine: &'a Engine,
    sandbox: &'a SandboxId,
    command: Result<Command>,
}

/// A command that was started. Dropping it kills the program and its descendants (C-15).
#[derive(Debug)]
pub struct Running {
    execution: Execution,
    events: Subscription,
}

impl<'a> Exec<'a> {
    pub(crate) fn new(engine: &'a Engine, sandbox: &'a SandboxId, command: Command) -> Self {
        Self { engine, sandbox, command: Ok(command) }
    }

    fn change(mut self, change: impl FnOnce(&mut Command) -> Result<()>) -> Self {
        self.command = self.command.and_then(|mut command| {
            change(&mut command)?;
            Ok(command)
        });
        self
    }

    /// Sets a variable for this command.
    pub fn env(self, name: &str, value: impl Into<String>) -> Self {
        self.change(|command| {
            let name = name.parse::<EnvName>().map_err(|why| invalid("env", why))?;
            command.env.insert(name, value.into());
            Ok(())
        })
    }

    /// Starts it in this directory of the sandbox.
    pub fn dir(self, dir: &str) -> Self {
        self.change(|command| {
            let dir = dir.parse::<SandboxPath>().map_err(|why| invalid("dir", why))?;
            command.dir = Some(dir);
            Ok(())
        })
    }

    /// Gives it these bytes to read, then the end.
    pub fn stdin(self, input: impl Into<Vec<u8>>) -> Self {
        self.change(|command| {
            command.stdin = Stdin::Bytes(input.into());
            Ok(())
        })
    }

    /// Lets it read what [`Running::write_stdin`] writes.
    pub fn stdin_stream(self) -> Self {
        self.change(|command| {
            command.stdin = Stdin::Stream;
            Ok(())
        })
    }

    /// How long it may take. The lower holds where the sandbox names one too.
    pub fn wall_time(self, most: Duration) -> Self {
        self.change(|command| {
            command.wall_time = Some(most.into());
            Ok(())
        })
    }

    /// Runs it to its end and returns what it wrote. How it ended is in the outcome: a program that fails is no
    /// error of this call.
    pub async fn output(self) -> Result<Output> {
        let Running { execution, events } = self.start().await?;
        let output = events.output().await;
        // The handle lived so long because dropping it kills.
        drop(execution);
        Ok(output)
    }

    /// Starts it. Its output is held until it is read, so that none is missed: a program whose output is not read
    /// waits at last, as at a full pipe.
    pub async fn start(self) -> Result<Running> {
        let (execution, events) = self.engine.exec_followed(self.sandbox, self.command?).await?;
        Ok(Running { execution, events })
    }
}

impl Running {
    /// The next event, waiting for it; nothing after [`OutputEvent::End`].
    pub async fn next(&mut self) -> Option<OutputEvent> {
        self.events.next().await
    }

    /// Feeds it input, waiting while it does not read.
    pub async fn write_stdin(&self, data: impl Into<Data>) -> Result<()> {
        self.execution.write_stdin(data.into()).await
    }

    /// Ends its input.
    pub async fn close_stdin(&self) -> Result<()> {
        self.execution.close_stdin().await
    }

    /// Sends a signal to the program and its descendants.
    pub async fn signal(&self, signal: Signal) -> Result<()> {
        self.execution.signal(signal).await
    }

    /// Reads the rest of its output, and how it ended.
    pub async fn output(self) -> Output {
        let Self { execution, events } = self;
        let output = events.output().await;
        drop(execution);
        output
    }

    /// Ends it, and says how it ended.
    pub async fn kill(self) -> Result<Outcome> {
        self.execution.close().await?;
        Ok(self.execution.outcome().await)
    }

    /// The execution itself: its record's id, further readers, its walls.
    pub fn execution(&self) -> &Execution {
        &self.execution
    }
}

fn invalid(field: &str, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Invalid, "describe a command", format!("{field}: {why}"))
}
