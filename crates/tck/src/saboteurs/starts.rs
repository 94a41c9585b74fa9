//! Saboteurs of how programs start, and of what they are told.

use async_trait::async_trait;
use stockade_core::{Command, ProcessControl, Result, Run, TerminalSize};

use super::frame::Sabotage;

/// Saboteurs that do nothing but start another command than the one they were given.
macro_rules! commands {
    ($($type:ident $change:expr;)*) => {$(
        #[derive(Default)]
        pub(super) struct $type;

        #[async_trait]
        impl Sabotage for $type {
            fn command(&self, command: &Command) -> Command {
                let change: fn(&mut Command) = $change;
                let mut command = command.clone();
                change(&mut command);
                command
            }
        }
    )*};
}

commands! {
    LeaksEnvironment |command| {
        let named = std::env::vars().filter_map(|(name, value)| Some((name.parse().ok()?, value)));
        for (name, value) in named {
            command.env.entry(name).or_insert(value);
        }
    };
    ForgetsEnvironment |command| command.env.clear();
    SplitsArguments |command| {
        let split = |argument: String| argument.split(' ').map(String::from).collect::<Vec<_>>();
        command.run = Run::Program(command.argv().into_iter().flat_map(split).collect());
    };
    IgnoresDirectory |command| command.dir = None;
    IgnoresUser |command| command.user = None;
}

#[derive(Default)]
pub(super) struct IgnoresResize;

#[async_trait]
impl Sabotage for IgnoresResize {
    async fn resize(&self, _control: &dyn ProcessControl, _size: TerminalSize) -> Result<()> {
        Ok(())
    }
}
