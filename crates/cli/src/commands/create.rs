//! `stockade create`: a sandbox that lives on after this command.

use clap::Args;
use serde_json::json;
use stockade_core::{
    Command, Error, ErrorCode, Image, Limits, Result, SandboxId, SandboxPath, SandboxSpec,
    SnapshotId, Span, Workspace, WorkspaceId,
};
use stockade_engine::{HostThings, Snapshot, WorkspaceGuard};

use super::snapshot::{self, open_snapshot_store, resolve_snapshot};
use crate::args::SpecArgs;
use crate::args::secrets::SecretValues;
use crate::config::Settings;
use crate::daemon::launch::launch_supervisor;
use crate::daemon::message::{SandboxReady, SupervisorOrder};
use crate::image;
use crate::report::reasons::{describe_watched_limits, note_read_only_git, warn_of_network};
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::printer::Printer;
use crate::toolchains::Packages;
use crate::workspace::{self, Configured, WantedWorkspace};

/// What to make and how long it lives.
#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    life: LifeArgs,
    /// Start from a snapshot, with its image, limits and files. What of this
    /// host it sees (--image, --workspace, --mount), --net and --without have to be given again.
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = MADE_OF)]
    from: Option<SnapshotId>,
}

/// The flags that a captured state answers.
pub const MADE_OF: [&str; 14] = [
    "writable_root",
    "overlay",
    "git",
    "resume",
    "read_only",
    "workdir",
    "user",
    "deterministic",
    "cpu",
    "mem",
    "disk",
    "pids",
    "cpu_time",
    "fuel",
];

/// How long a sandbox lives.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Lifetime")]
pub struct LifeArgs {
    /// End it after this idle time.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    idle: Span,
    /// End it after this time in any case.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    lifetime: Span,
}

/// Makes the sandbox and prints its id.
pub async fn create(mut args: CreateArgs, printer: &Printer) -> Result<i32> {
    // No directory of the host is filled with what was captured.
    args.spec.place.no_workspace |= args.from.is_some() && args.spec.place.workspace.is_none();
    let wanted = args.spec.wanted()?;
    let mut configured = wanted.settings(printer)?;
    configured.settings.ask_registries(args.spec.pull);
    configured.settings.use_daemon(args.spec.host.as_deref());
    let mut spec = args.spec.spec(&wanted, &configured.settings)?;
    if let Some(snapshot) = &mut args.from {
        let store = open_snapshot_store(&configured.settings)?;
        *snapshot = resolve_snapshot(&store, snapshot, "create")?;
        spec = as_captured(snapshot, spec, &args.spec, &configured.settings, printer)?;
    }
    let settings = &configured.settings;
    if let Some(signal) = image::pull_for_sandbox(&args.spec, &mut spec, settings, printer).await? {
        return Ok(interrupts::exit_code(signal));
    }
    let _cache = args.spec.open_cache(&wanted, &mut configured, &mut spec, printer)?;
    let found = args.spec.add_toolchains(Packages::Absent, &mut spec, &configured.settings)?;
    note_read_only_git(&found, printer);
    warn_of_network(&spec.network, printer);
    let idle = Some(require_positive_span("--idle", args.life.idle)?);
    let lifetime = Some(require_positive_span("--lifetime", args.life.lifetime)?);
    let (from, secrets) = (args.from, args.spec.secret_values().await?);
    let blank = SupervisorOrder::new(spec, configured.origin.clone());
    let daemon = configured.settings.daemon_url();
    let order = SupervisorOrder { idle, lifetime, from, secrets, daemon, ..blank };
    let (ready, workspace) = build_sandbox(order, &wanted, &configured.settings, printer).await?;
    if printer.is_json() {
        printer.json(&json!({
            "sandbox": ready.id, "idle": idle, "lifetime": lifetime, "workspace": workspace,
            "limits": ready.limits,
        }));
    } else {
        printer.data(&format!("{}\n", ready.id));
    }
    note_unprinted_sandbox(&ready.id, printer);
    Ok(0)
}

/// Names a sandbox on standard error where its id could not be printed: its caller has to end it.
pub fn note_unprinted_sandbox(id: &SandboxId, printer: &Printer) {
    if printer.has_lost_output() {
        printer.note(&format!("sandbox `{id}` was made; `stockade kill {id}` ends it"));
    }
}

/// What was captured says what the sandbox is made of; the flags say what is around it, and alone name
/// what of this host it sees, what it may reach and what it does without (C-05).
pub fn as_captured(
    snapshot: &SnapshotId,
    spec: SandboxSpec,
    flags: &SpecArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<SandboxSpec> {
    let Snapshot { spec: captured, shown, .. } =
        snapshot::open_snapshot_store(settings)?.get(snapshot)?;
    host_things_are_named(&spec, &captured, &shown, printer)?;
    let backend = if flags.backend.is_some() { spec.backend } else { captured.backend };
    let image = if shown.image.is_some() { spec.image } else { captured.image };
    let network =
        if flags.surroundings.net.is_some() { spec.network } else { captured.network.clone() };
    let limits = Limits {
        wall_time: spec.limits.wall_time.or(captured.limits.wall_time),
        output: spec.limits.output.or(captured.limits.output),
        open_files: spec.limits.open_files.or(captured.limits.open_files),
        ..captured.limits
    };
    let SandboxSpec {
        workspace,
        workspace_at,
        mounts,
        trees,
        secrets,
        without,
        env,
        labels,
        tenant,
        boundaries,
        strict,
        host,
        ..
    } = spec;
    Ok(SandboxSpec {
        backend,
        host,
        boundaries,
        image,
        root: captured.root,
        workspace,
        workspace_at,
        read_only: captured.read_only,
        mounts,
        trees,
        env,
        user: captured.user,
        workdir: captured.workdir,
        network,
        secrets,
        deterministic: captured.deterministic,
        limits,
        strict,
        tenant,
        labels,
        without,
    })
}

/// Whether the flags name what the captured sandbox was shown of its host, and nothing in place of what
/// was captured.
fn host_things_are_named(
    flags: &SandboxSpec,
    captured: &SandboxSpec,
    shown: &HostThings,
    printer: &Printer,
) -> Result<()> {
    let refused = |message: &str, remedy: &str| {
        Err(Error::new(ErrorCode::Invalid, "--from", message).remedy(remedy))
    };
    let given = flags.image.is_on_the_host().then(|| flags.image.feature());
    if given != shown.image || matches!(flags.image, Image::Named(_)) {
        return match shown.image {
            None => refused("a captured state has its own image", "leave out --image"),
            Some(kind) => refused(
                &format!("it was captured over an image of its host ({kind}), which is not in it"),
                "name the same image with --image",
            ),
        };
    }
    match (&flags.workspace, shown.workspace) {
        (Workspace::Ephemeral, true) => refused(
            "it was captured over a read-only workspace of its host, which is not in it",
            "name the same directory with --workspace DIR",
        ),
        (Workspace::Local(_) | Workspace::Overlay(_), _) if !captured.read_only => {
            refused("a captured state has its own workspace", "leave out --workspace")
        }
        (Workspace::Ephemeral | Workspace::Local(_) | Workspace::Overlay(_), _) => {
            let given =
                |target: &&SandboxPath| flags.mounts.iter().any(|mount| mount.target == **target);
            for target in shown.mounts.iter().filter(|target| !given(target)) {
                let target = target.as_str().escape_debug();
                printer.note(&format!(
                    "note: it had a mount at `{target}`: give one with --mount SRC:{target}"
                ));
            }
            Ok(())
        }
    }
}

/// Makes the workspace, if one has to be, and then the sandbox. If that fails neither is left.
async fn build_sandbox(
    mut order: SupervisorOrder,
    wanted: &WantedWorkspace,
    settings: &Settings,
    printer: &Printer,
) -> Result<(SandboxReady, Option<WorkspaceId>)> {
    // A pull has listened for signals, which from then on end nothing by themselves.
    let has_pulled = matches!(order.spec.image, Image::Named(_));
    let acquiring = workspace::acquire_ahead(wanted, &mut order.spec, settings, printer);
    let ahead = end_at_signal(has_pulled, acquiring).await??;
    let workspace = ahead.as_ref().and_then(WorkspaceGuard::id).cloned();
    order.workspace.clone_from(&workspace);
    let asked = order.spec.limits;
    match end_at_signal(has_pulled, launch_supervisor(order, printer)).await? {
        Ok(ready) => {
            // The supervisor's engine has it by now.
            drop(ahead.map(WorkspaceGuard::leave));
            if let (Some(line), false) =
                (describe_watched_limits(&asked, &ready.limits), printer.is_json())
            {
                printer.note(&line);
            }
            if let (Some(id), false) = (&workspace, printer.is_json()) {
                printer.note(&format!("changes are kept apart in workspace {id}"));
            }
            Ok((ready, workspace))
        }
        Err(error) => {
            // A supervisor that was killed has not released it.
            if let Some(ahead) = ahead {
                ahead.release().await?;
            }
            Err(error)
        }
    }
}

/// The same, but a signal ends this process at once, as it does where none is listened for. A supervisor that is
/// waited for ends with it.
async fn end_at_signal<T>(is_listening: bool, work: impl Future<Output = T>) -> Result<T> {
    if !is_listening {
        return Ok(work.await);
    }
    match Interrupts::listen()?.unless(work).await {
        Ok(done) => Ok(done),
        Err(signal) => std::process::exit(interrupts::exit_code(signal)),
    }
}

/// Runs a command in a sandbox that ends with it, and does not wait for that.
pub async fn run_detached(
    spec: SandboxSpec,
    secrets: SecretValues,
    command: Command,
    from: Option<SnapshotId>,
    wanted: &WantedWorkspace,
    configured: &Configured,
    printer: &Printer,
) -> Result<i32> {
    if command.stdin != stockade_core::Stdin::None {
        let message = "--detach has no input: it excludes -i and -t";
        return Err(Error::new(ErrorCode::Invalid, "run", message)
            .remedy("leave one of them out, or use `stockade create` and `stockade exec`"));
    }
    let command = Some(Command { detached: true, ..command });
    let blank = SupervisorOrder::new(spec, configured.origin.clone());
    let daemon = configured.settings.daemon_url();
    let order = SupervisorOrder { command, from, secrets, daemon, ..blank };
    let (ready, workspace) = build_sandbox(order, wanted, &configured.settings, printer).await?;
    match &ready.job {
        _ if printer.is_json() => {
            printer.json(&json!({ "sandbox": ready.id, "job": ready.job, "workspace": workspace }));
        }
        Some(job) => printer.data(&format!("{} {job}\n", ready.id)),
        None => printer.data(&format!("{}\n", ready.id)),
    }
    note_unprinted_sandbox(&ready.id, printer);
    Ok(0)
}

fn require_positive_span(flag: &'static str, span: Span) -> Result<Span> {
    if span.as_millis() > 0 {
        return Ok(span);
    }
    Err(Error::new(ErrorCode::Invalid, flag, "is zero").remedy("give a positive time, as in `10m`"))
}
