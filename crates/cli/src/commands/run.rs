//! `stockade run`: one command in a sandbox of its own, of which nothing is left when this returns.

use std::sync::Arc;

use clap::Args;
use stockade_backends::microvm;
use stockade_backends::native::Native;
use stockade_core::{
    BackendChoice, Command, Ending, Error, ErrorCode, Feature, Result, SandboxSpec, Signal,
    SnapshotId, StartFailure, Stdin, WorkspaceSource,
};
use stockade_engine::{Engine, Execution, SandboxRequest, Subscription};
use stockade_tools::AskedPerson;
use stockade_workspaces::SandboxWorkspaces;

use super::create::{MADE_OF, as_captured, run_detached};
use super::detect::MEASURING_STATUS;
use super::snapshot::{open_snapshot_store, resolve_snapshot};
use super::workspace::review;
use crate::args::command::CommandArgs;
use crate::args::{SpecArgs, wasm_module};
use crate::image::{ImageUse, PulledAhead};
use crate::project_cache::HeldCache;
use crate::registry::{self, Isolation};
use crate::report::capture::{self, Captured};
use crate::report::reasons::{describe_watched_limits, note_read_only_git, warn_of_network};
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::output::TerminalOutput;
use crate::terminal::printer::Printer;
use crate::terminal::prompt::AtTerminal;
use crate::terminal::stdio_loop::{
    ProgramEnd, attend_program, collect_output, conclude_program, relay_output,
};
use crate::terminal::streams::Attachment;
use crate::terminal::{self, Raw};
use crate::toolchains::{self, Packages};
use crate::workspace::{self, Configured, SettledWorkspace, WantedWorkspace};

/// The exit code of a program that is not there.
const NOT_FOUND: i32 = 127;

/// What to run and in what.
#[derive(Debug, Args)]
#[command(override_usage = "stockade run [OPTIONS] -- CMD [ARGS]...\n       \
                            stockade run [OPTIONS] --shell LINE\n       \
                            stockade run [OPTIONS] --image NAME")]
pub struct RunArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Start from a snapshot, with its image, limits and files. What of this
    /// host it sees (--image, --workspace, --mount), --net and --without have to be given again.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "review", conflicts_with_all = MADE_OF)]
    from: Option<SnapshotId>,
    /// Keep changes apart, show the diff at the end, and ask whether to apply it.
    #[arg(
        long,
        help_heading = "Files",
        conflicts_with_all = ["no_workspace", "git", "detach"]
    )]
    review: bool,
    /// Run in the background: print the ids of the sandbox and the job. The sandbox
    /// ends with the command.
    #[arg(short, long, help_heading = "Command")]
    detach: bool,
    /// Taken for those who type it by habit: a sandbox of `run` never stays.
    #[arg(long, hide = true)]
    #[allow(dead_code, reason = "it changes nothing")]
    rm: bool,
    /// Run WebAssembly in a worker inside native walls, or not at all. [default: where there are any]
    #[arg(long, help_heading = "WebAssembly", conflicts_with_all = ["no_isolate", "detach"])]
    isolate: bool,
    /// Run WebAssembly in this process, without a second wall.
    #[arg(long, help_heading = "WebAssembly", conflicts_with = "detach")]
    no_isolate: bool,
    #[command(flatten)]
    command: CommandArgs,
}

impl RunArgs {
    fn choose_isolation(&self) -> Isolation {
        match (self.isolate, self.no_isolate) {
            (true, _) => Isolation::Demanded,
            (false, true) => Isolation::Declined,
            (false, false) => Isolation::Usual,
        }
    }
}

/// What the flags of a run mean.
struct PlannedRun {
    wanted: WantedWorkspace,
    configured: Configured,
    spec: SandboxSpec,
    command: Command,
    /// The cache that its sandbox shows, held to the end.
    _cache: Option<HeldCache>,
}

/// Finds out what the flags mean; the signal that ended it, if one did while an image was pulled.
async fn plan_run(args: &mut RunArgs, printer: &Printer) -> Result<Result<PlannedRun, Signal>> {
    let fitting =
        if args.detach { Attachment::Nothing } else { Attachment::of_streams(printer.is_json()) };
    if args.review {
        review::require_reviewer(printer)?;
        args.spec.place.overlay |= args.spec.place.resume.is_none();
    }
    // No directory of the host is filled with what was captured.
    args.spec.place.no_workspace |= args.from.is_some() && args.spec.place.workspace.is_none();
    let wanted = args.spec.wanted()?;
    let mut configured = wanted.settings(printer)?;
    configured.settings.ask_registries(args.spec.pull);
    configured.settings.use_daemon(args.spec.host.as_deref());
    let settings = &configured.settings;
    let mut spec = args.spec.spec(&wanted, settings)?;
    if spec.backend == BackendChoice::Auto && !args.detach {
        // Choosing a backend asks for it; until then there is enough to do.
        microvm::begin_kvm_probe();
    }
    if let Some(snapshot) = &mut args.from {
        *snapshot = resolve_snapshot(&open_snapshot_store(settings)?, snapshot, "run")?;
        spec = as_captured(snapshot, spec, &args.spec, settings, printer)?;
    }
    let image = ImageUse::of_command(&args.spec, &args.command, &spec, args.detach)?;
    match image.pull_ahead(&mut spec, settings, printer).await? {
        PulledAhead::Defaults(defaults) => args.command.run_by(&defaults),
        PulledAhead::Nothing => {}
        PulledAhead::Interrupted(signal) => return Ok(Err(signal)),
    }
    let mut command = args.command.command(fitting)?;
    wasm_module::recognise_module(&mut spec, &mut command)?;
    warn_of_network(&spec.network, printer);
    let cache = args.spec.open_cache(&wanted, &mut configured, &mut spec, printer)?;
    let settings = &configured.settings;
    let packages = if args.from.is_some() { Packages::Absent } else { Packages::InHome };
    let found = args.spec.add_toolchains(packages, &mut spec, settings)?;
    note_read_only_git(&found, printer);
    if printer.is_json() {
        capture::check_capturable(&spec, &command)?;
    }
    Ok(Ok(PlannedRun { wanted, configured, spec, command, _cache: cache }))
}

/// Runs the command; answers its exit code.
pub async fn run(mut args: RunArgs, native: Native, printer: &Printer) -> Result<i32> {
    let PlannedRun { wanted, configured, mut spec, mut command, _cache } =
        match plan_run(&mut args, printer).await? {
            Ok(planned) => planned,
            Err(signal) => return Ok(interrupts::exit_code(signal)),
        };
    let settings = &configured.settings;
    let secrets = args.spec.secret_values().await?;
    if args.detach {
        return run_detached(spec, secrets, command, args.from, &wanted, &configured, printer)
            .await;
    }
    let person = ask_at_terminal(&spec, &args.command, &mut command)?;
    terminal::require_terminal(&command, "run")?;
    let mut interrupts = Interrupts::listen()?;
    let opened = printer.patiently(
        "cleaning up after earlier commands",
        registry::engine_with(native, args.choose_isolation(), settings, &spec.backend),
    );
    let engine = match interrupts.unless(opened).await {
        Ok(engine) => engine?,
        Err(signal) => return Ok(interrupts::exit_code(signal)),
    };
    engine.hold_secrets(&spec.tenant, secrets);
    let turn = person.as_ref().map(|person| person.turn());
    if let Some(person) = person {
        engine.set_host_asker(Arc::new(AskedPerson(person)));
    }
    if args.command.can_lose_terminal(&command) {
        let offered = engine.offers(&spec, Feature::Terminal);
        match interrupts.unless(printer.patiently(MEASURING_STATUS, offered)).await {
            Ok(true) => {}
            Ok(false) => command.terminal = None,
            Err(signal) => return Ok(interrupts::exit_code(signal)),
        }
    }
    CommandArgs::adjust(&command, &mut spec);
    let source = workspace::build_source(&wanted, &spec, &engine, settings);
    let source = match interrupts.unless(source).await {
        Ok(source) => source?.map(SandboxWorkspaces::compared),
        Err(signal) => return Ok(interrupts::exit_code(signal)),
    };
    let waits_for = workspace::describe_wait(source.as_ref(), &spec.image);
    let request = build_request(spec, source.as_ref(), args.from);
    let starting =
        start_session(&engine, request, &command, waits_for, &mut interrupts, printer).await?;
    let (execution, follower, raw) = match starting {
        StartedRun::Runs { execution, follower, raw } => (execution, follower, raw),
        StartedRun::Interrupted(signal) => return Ok(interrupts::exit_code(signal)),
    };
    let session = RunSession { execution, follower, interrupts, command, raw, source };
    if printer.is_json() {
        return session.run_captured(printer).await;
    }
    let output = turn.map_or_else(TerminalOutput::default, TerminalOutput::beside_questions);
    session.run_streamed(output, args.review, printer).await
}

/// The person at this terminal, where hosts are asked about. The terminal is for the questions then, and not for the
/// command.
fn ask_at_terminal(
    spec: &SandboxSpec,
    flags: &CommandArgs,
    command: &mut Command,
) -> Result<Option<Arc<AtTerminal>>> {
    if !spec.network.asks() {
        return Ok(None);
    }
    let refuse = |message: &str, remedy: &str| {
        Err(Error::new(ErrorCode::Invalid, "--net", message).remedy(remedy))
    };
    if flags.terminal || flags.interactive {
        let message = "`ask` puts its questions on the terminal: it excludes -i and -t";
        return refuse(message, "leave them out, or list the hosts instead of `ask`");
    }
    (command.stdin, command.terminal) = (Stdin::None, None);
    match AtTerminal::reach()? {
        Some(person) => Ok(Some(person)),
        None => refuse(
            "`ask` needs a terminal as standard input and standard error for its questions",
            "list the hosts instead of `ask`",
        ),
    }
}

/// What became of the start.
enum StartedRun {
    Runs {
        execution: Execution,
        follower: Subscription,
        raw: Option<Raw>,
    },
    /// The caller would not wait.
    Interrupted(Signal),
}

fn build_request(
    spec: SandboxSpec,
    source: Option<&SandboxWorkspaces>,
    from: Option<SnapshotId>,
) -> SandboxRequest {
    let workspace = source.map(|source| Arc::new(source.clone()) as Arc<dyn WorkspaceSource>);
    SandboxRequest { workspace, from, ..SandboxRequest::from(spec) }
}

async fn start_session(
    engine: &Engine,
    request: SandboxRequest,
    command: &Command,
    waits_for: &str,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<StartedRun> {
    let asked = request.spec.limits;
    let starting = printer.patiently(waits_for, engine.run_followed(request, command.clone()));
    match interrupts.unless(starting).await {
        Ok(started) => {
            let (execution, follower) = started?;
            if let (Some(line), false) =
                (describe_watched_limits(&asked, execution.limits()), printer.is_json())
            {
                printer.note(&line);
            }
            // Not before: keys such as Ctrl-C end a start that takes long.
            match command.terminal.map(|_| Raw::enter()).transpose() {
                Ok(raw) => Ok(StartedRun::Runs { execution, follower, raw }),
                Err(error) => {
                    drop(follower);
                    execution.close().await?;
                    Err(error)
                }
            }
        }
        Err(signal) => {
            engine.close().await?;
            Ok(StartedRun::Interrupted(signal))
        }
    }
}

/// Runs a program on this terminal in a fresh sandbox; answers its exit code.
pub async fn run_interactive(
    spec: SpecArgs,
    program: Vec<String>,
    printer: &Printer,
) -> Result<i32> {
    let command = CommandArgs { interactive: true, terminal: true, shell: None, program };
    let (isolate, no_isolate) = (false, false);
    let (review, detach, rm, from) = (false, false, false, None);
    let args = RunArgs { spec, from, review, detach, rm, isolate, no_isolate, command };
    run(args, Native::new(), printer).await
}

struct RunSession {
    execution: Execution,
    follower: Subscription,
    interrupts: Interrupts,
    command: Command,
    raw: Option<Raw>,
    source: Option<SandboxWorkspaces>,
}

impl RunSession {
    /// Output as it comes, and the reasons at the end.
    async fn run_streamed(
        mut self,
        mut output: TerminalOutput,
        ask: bool,
        printer: &Printer,
    ) -> Result<i32> {
        let end = {
            let follower = &mut self.follower;
            let relay = relay_output(follower, &mut output);
            attend_program(&*self.execution, &mut self.interrupts, &self.command, relay).await
        };
        let released = self.execution.close().await;
        drop(self.raw.take());
        let settled = SettledWorkspace::of(self.source.as_ref());
        let code = conclude_program(end?, output, &mut self.interrupts, printer).await?;
        released?;
        self.tell_where_program_is(code, printer).await;
        match settled? {
            Some(settled) if ask => {
                let own = review::review_changes(settled, &mut self.interrupts, printer).await?;
                Ok(own.unwrap_or(code))
            }
            Some(settled) => {
                settled.tell(printer);
                Ok(code)
            }
            None => Ok(code),
        }
    }

    /// A program that is not inside but on the host is shown by a flag, which is named.
    async fn tell_where_program_is(&self, code: i32, printer: &Printer) {
        if code != NOT_FOUND {
            return;
        }
        let outcome = self.execution.outcome().await;
        let missing = matches!(outcome.ending, Ending::StartFailed(StartFailure::NotFound(_)));
        if let Some(line) = missing.then(|| toolchains::missing_program(&self.command)).flatten() {
            printer.note(&line);
        }
    }

    /// Everything as one JSON object at the end.
    async fn run_captured(mut self, printer: &Printer) -> Result<i32> {
        let mut captured = Captured::default();
        let end = {
            let collect = collect_output(&mut self.follower, &mut captured);
            attend_program(&*self.execution, &mut self.interrupts, &self.command, collect).await
        };
        let released = self.execution.close().await;
        let forced = match end? {
            ProgramEnd::Forced(signal) => Some(interrupts::exit_code(signal)),
            ProgramEnd::Over(_) | ProgramEnd::Unread => None,
        };
        let settled = SettledWorkspace::of(self.source.as_ref());
        released?;
        let outcome = self.execution.outcome().await;
        let code = forced.unwrap_or_else(|| outcome.exit_code());
        let mut report = captured.report(&self.execution, outcome);
        report.workspace = settled?.map(|settled| settled.summary());
        printer.json(&report);
        Ok(code)
    }
}
