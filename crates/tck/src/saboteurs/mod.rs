//! Backends that are broken in one way each, and the cases that must notice. A kit that lets one of
//! them pass is no kit.

mod ends;
mod frame;
mod lives;
mod starts;
mod streams;
mod walls;

use std::sync::Arc;

use stockade_backends::mock::Mock;
use stockade_core::Backend;

use crate::simulated::Simulated;
use frame::break_mock;

/// A backend that is broken in one way.
#[derive(Clone, Copy)]
pub struct Saboteur {
    /// What it does wrong.
    pub name: &'static str,
    /// The cases that must fail on it.
    pub caught_by: &'static [&'static str],
    build: fn(Mock) -> Arc<dyn Backend>,
}

impl Saboteur {
    /// The saboteur as a subject.
    pub fn subject(&self) -> Simulated {
        Simulated::around(self.name, self.build)
    }
}

macro_rules! saboteurs {
    ($($name:literal $type:path => [$($case:literal),+];)*) => {
        /// Every saboteur there is.
        pub const ALL_SABOTEURS: &[Saboteur] = &[$(
            Saboteur { name: $name, caught_by: &[$($case),+], build: break_mock::<$type> },
        )*];
    };
}

saboteurs! {
    "loses the last piece of output" streams::LosesTheLast => [
        "a program that succeeds exits with 0 and all of its output arrives",
        "the last bytes before the exit arrive"
    ];
    "swaps the streams" streams::SwapsStreams => ["standard output and standard error stay apart"];
    "tells a piece of output twice" streams::TellsTwice => [
        "a program that succeeds exits with 0 and all of its output arrives"
    ];
    "tells output out of order" streams::OutOfOrder => [
        "a program that succeeds exits with 0 and all of its output arrives"
    ];
    "takes output for text" streams::TakesForText => ["every byte value arrives as it was written"];
    "translates line ends" streams::TranslatesLineEnds => [
        "every byte value arrives as it was written"
    ];
    "ends a program that writes a lot" streams::EndsWriters => [
        "a program beyond its cap runs on and its exit is kept"
    ];
    "keeps all output in memory" streams::KeepsOutput => [
        "output that is not read costs bounded memory"
    ];
    "cuts input short" streams::CutsInput => [
        "input given with the command arrives byte for byte, then its end"
    ];
    "always tells success" ends::AlwaysZero => ["a non-zero exit code arrives as it is"];
    "keeps seven bits of an exit code" ends::SevenBits => [
        "exit codes that shells give a meaning arrive as they are"
    ];
    "tells a signal as an exit code" ends::SignalAsCode => [
        "a program that a signal ended is reported with that signal"
    ];
    "tells a start failure as an exit code" ends::FailureAsCode => [
        "a program that does not exist is a start failure and no exit code"
    ];
    "does not kill" ends::DoesNotKill => ["a sandbox can be used again after a time-out"];
    "does not answer what it is to kill" ends::HangsWhenKilling => [
        "a program that takes none of its input is ended in time",
        "a program whose output waits for its reader is ended in time"
    ];
    "kills the program and not what it detached" ends::KillsTheProgramOnly => [
        "a time-out ends what was detached, too",
        "cancelling ends what was detached, too"
    ];
    "cannot kill twice" ends::KillsOnce => ["killing twice, or after the end, succeeds"];
    "swallows signals" ends::SwallowsSignals => ["a signal reaches the program"];
    "ignores the memory limit" walls::IgnoresMemory => ["memory beyond the limit is not to be had"];
    "ignores the processor time limit" walls::IgnoresCpuTime => [
        "a program that uses up its processor time is ended for it"
    ];
    "ignores the rate of processor time" walls::IgnoresCpuRate => [
        "processor time comes at the rate asked for"
    ];
    "ignores the process limit" walls::IgnoresProcesses => [
        "processes beyond the limit cannot be started"
    ];
    "ignores the open files limit" walls::IgnoresOpenFiles => [
        "files beyond the limit cannot be opened"
    ];
    "ignores the disk limit" walls::IgnoresDisk => [
        "what is written beyond the disk limit does not fit"
    ];
    "ignores that a workspace is read-only" walls::IgnoresReadOnly => [
        "a read-only workspace refuses every write",
        "a read-only workspace cannot be written to from outside either"
    ];
    "follows links out of the workspace" walls::FollowsLinks => [
        "a link out of the workspace is not followed when reading"
    ];
    "waits for the other end of a fifo" walls::WaitsForFifo => [
        "reading a fifo is refused instead of waiting"
    ];
    "makes mount points where an image's links lead" walls::FollowsImageLinks => [
        "nothing in an image leads a mount elsewhere or replaces what is the sandbox's"
    ];
    "shares its files between sandboxes" walls::SharesFiles => [
        "sandboxes that start at once see nothing of each other",
        "temporary files of another sandbox cannot be seen"
    ];
    "hands the host's environment on" starts::LeaksEnvironment => [
        "no variable of the host reaches a program"
    ];
    "forgets the environment" starts::ForgetsEnvironment => [
        "variables of the sandbox and of the command arrive, the command's winning"
    ];
    "splits arguments at blanks" starts::SplitsArguments => [
        "arguments arrive exactly as they were given"
    ];
    "starts everything in the workspace root" starts::IgnoresDirectory => [
        "a directory that does not exist is a start failure of that kind"
    ];
    "runs everything as the same user" starts::IgnoresUser => [
        "commands run as the user and group that were chosen"
    ];
    "ignores a new terminal size" starts::IgnoresResize => ["a program sees its terminal's new size"];
    "leaves the sandbox when it destroys" lives::LeavesSandbox => [
        "nothing is left of a sandbox when destroy returns"
    ];
    "leaves the processes when it destroys" lives::LeavesProcesses => [
        "destroying ends what was detached, too"
    ];
    "cannot destroy twice" lives::DestroysOnce => ["destroying twice, or what never was, succeeds"];
    "hangs on what it does not know" lives::HangsOnUnknown => [
        "destroying twice, or what never was, succeeds"
    ];
    "forgets what it made" lives::ForgetsToList => [
        "a sandbox is listed while it lives, and no longer"
    ];
    "goes on building after it was told to stop" lives::BuildsOn => [
        "a run that is given up at any point leaves nothing"
    ];
    "makes files that every user can read" lives::MakesOpenFiles => [
        "what is made on the host is closed to other users, whatever the umask"
    ];
    "declares what it then refuses" lives::DeclaresAndRefuses => [
        "a read-only workspace refuses every write"
    ];
    "pauses nothing" lives::PausesNothing => ["a paused sandbox stands still and then goes on"];
    "restores nothing" lives::RestoresNothing => [
        "a snapshot of the files brings them back as they were"
    ];
}
