//! Each feature, missing: the spec or command that asks for it is refused by its name, with reason and
//! remedy, before anything is created (C-01).

use stockade_core::{
    Bytes, Command, Error, ErrorCode, Feature, HostTree, Image, Millicores, Mount, Network,
    OverlayDirs, RootMode, SandboxSpec, Signal, SnapshotKind, Span, Stdin, TerminalSize, User,
    Workspace, WorkspaceAt,
};
use stockade_engine::{Event, Filter};

use crate::case::{check, same};
use crate::kit::{host_path, probe_command};
use crate::{Case, Kit, Stop, Verdict};

macro_rules! refusals {
    ($($variant:ident $name:literal)*) => {
        pub(super) const REFUSAL_CASES: &[Case] = &[$(
            Case::new(
                concat!("a missing ", $name, " is refused by name, and nothing is created"),
                "C-01",
                |kit| Box::pin(check_feature_refused(kit, Feature::$variant)),
            ),
        )*];

        /// Features and their names, in the order of the cases.
        const REFUSED_FEATURES: &[(Feature, &str)] = &[$((Feature::$variant, $name)),*];
    };
}

refusals! {
    FilesystemIsolation "filesystem-isolation"
    ProcessIsolation "process-isolation"
    NetworkIsolation "network-isolation"
    CompleteKill "complete-kill"
    LoopbackNetwork "loopback-network"
    EgressAllowlist "egress-allowlist"
    HostImage "host-image"
    DirectoryImage "directory-image"
    OciImage "oci-image"
    NamedImage "named-image"
    WasmImage "wasm-image"
    LocalWorkspace "local-workspace"
    OverlayWorkspace "overlay-workspace"
    EphemeralWorkspace "ephemeral-workspace"
    ReadOnlyWorkspace "read-only-workspace"
    ExtraMounts "extra-mounts"
    HostTrees "host-trees"
    WorkspacePath "workspace-path"
    CopyOnWriteRoot "copy-on-write-root"
    CopyOnWriteImage "copy-on-write-image"
    ChosenUser "chosen-user"
    UserPerCommand "user-per-command"
    CpuRateLimit "cpu-rate-limit"
    CpuTimeLimit "cpu-time-limit"
    WallTimeLimit "wall-time-limit"
    MemoryLimit "memory-limit"
    DiskLimit "disk-limit"
    ProcessLimit "process-limit"
    OpenFilesLimit "open-files-limit"
    OutputLimit "output-limit"
    FuelLimit "fuel-limit"
    Determinism "determinism"
    Stdin "stdin"
    Terminal "terminal"
    Signals "signals"
    FileTransfer "file-transfer"
    Pause "pause"
    FilesSnapshot "files-snapshot"
    FullSnapshot "full-snapshot"
}

pub(super) fn feature_of(case: &Case) -> Option<Feature> {
    let at = REFUSAL_CASES.iter().position(|refusal| refusal.name == case.name)?;
    REFUSED_FEATURES.get(at).map(|(feature, _)| *feature)
}

/// How a feature is asked for.
enum FeatureRequest {
    /// By the spec.
    Spec(Box<SandboxSpec>),
    /// By the command.
    Command(Box<Command>),
    /// By an operation on a live sandbox.
    Operation(SandboxOperation),
}

enum SandboxOperation {
    Files,
    Pause,
    Signal,
    Snapshot(SnapshotKind),
}

/// A spec, command or operation that asks for this feature and for nothing else that may be missing.
fn build_feature_request(kit: &Kit, feature: Feature) -> Verdict<FeatureRequest> {
    let (mut spec, mut command) = (kit.spec(), probe_command(["exit", "0"]));
    let nowhere = host_path(&kit.outside().join("nothing"))?;
    let limits = &mut spec.limits;
    match feature {
        Feature::FilesystemIsolation
        | Feature::ProcessIsolation
        | Feature::NetworkIsolation
        | Feature::CompleteKill => {}
        Feature::LoopbackNetwork => spec.network = Network::Loopback,
        Feature::EgressAllowlist => {
            let rule = "example.org:443".parse().map_err(Stop::Failed)?;
            spec.network = Network::Egress(vec![rule]);
        }
        Feature::HostImage => spec.image = Image::Host,
        Feature::DirectoryImage => spec.image = Image::Directory(nowhere),
        Feature::OciImage => spec.image = Image::Oci(nowhere),
        Feature::NamedImage => spec.image = Image::Named("nothing".parse()?),
        Feature::WasmImage => spec.image = Image::Wasm(nowhere),
        Feature::LocalWorkspace => spec.workspace = Workspace::Local(nowhere),
        Feature::OverlayWorkspace => {
            let layer = |name| host_path(&kit.outside().join(name));
            let (upper, work) = (layer("upper")?, layer("work")?);
            spec.workspace = Workspace::Overlay(OverlayDirs { lower: nowhere, upper, work });
        }
        Feature::EphemeralWorkspace => spec.workspace = Workspace::Ephemeral,
        Feature::ReadOnlyWorkspace => spec.read_only = true,
        Feature::ExtraMounts => {
            spec.mounts =
                vec![Mount { source: nowhere, target: "/mounted".parse()?, read_only: true }];
        }
        Feature::HostTrees => {
            let mount = Mount { source: nowhere, target: "/shown".parse()?, read_only: true };
            spec.trees = vec![HostTree { part_of: "test".into(), mount, required: true }];
        }
        Feature::WorkspacePath => {
            spec.workspace_at = Some(WorkspaceAt { path: "/srv/project".parse()?, required: true });
        }
        Feature::CopyOnWriteRoot => {
            (spec.image, spec.root) = (Image::Host, RootMode::CopyOnWrite);
        }
        Feature::CopyOnWriteImage => {
            (spec.image, spec.root) = (Image::Directory(nowhere), RootMode::CopyOnWrite);
        }
        Feature::ChosenUser => spec.user = Some(User { uid: 1234, gid: 1234 }),
        Feature::UserPerCommand => command.user = Some(User { uid: 1234, gid: 1234 }),
        Feature::CpuRateLimit => limits.cpu_rate = Some(Millicores(500)),
        Feature::CpuTimeLimit => limits.cpu_time = Some(Span::secs(1)),
        Feature::WallTimeLimit => limits.wall_time = Some(Span::secs(1)),
        Feature::MemoryLimit => limits.memory = Some(Bytes::mib(64)),
        Feature::DiskLimit => limits.disk = Some(Bytes::mib(64)),
        Feature::ProcessLimit => limits.processes = Some(8),
        Feature::OpenFilesLimit => limits.open_files = Some(64),
        Feature::OutputLimit => limits.output = Some(Bytes(100)),
        Feature::FuelLimit => limits.fuel = Some(1_000_000),
        Feature::Determinism => spec.deterministic = true,
        Feature::Stdin => command.stdin = Stdin::Stream,
        Feature::Terminal => command.terminal = Some(TerminalSize { rows: 1, cols: 1 }),
        Feature::Signals => return Ok(FeatureRequest::Operation(SandboxOperation::Signal)),
        Feature::FileTransfer => return Ok(FeatureRequest::Operation(SandboxOperation::Files)),
        Feature::Pause => return Ok(FeatureRequest::Operation(SandboxOperation::Pause)),
        Feature::FilesSnapshot => {
            return Ok(FeatureRequest::Operation(SandboxOperation::Snapshot(SnapshotKind::Files)));
        }
        Feature::FullSnapshot => {
            return Ok(FeatureRequest::Operation(SandboxOperation::Snapshot(SnapshotKind::Full)));
        }
    }
    let by_command = command != probe_command(["exit", "0"]);
    Ok(if by_command {
        FeatureRequest::Command(command.into())
    } else {
        FeatureRequest::Spec(spec.into())
    })
}

async fn check_feature_refused(kit: Kit, feature: Feature) -> Verdict {
    let lacking = kit.with_hidden_feature(feature).await?;
    let verdict = match build_feature_request(&lacking, feature)? {
        FeatureRequest::Spec(spec) => {
            let (first, second) = (lacking.engine().create((*spec).clone()).await.map(drop), {
                lacking.engine().run(*spec, probe_command(["exit", "0"])).await.map(drop)
            });
            check_named_refusal(&lacking, first, feature)
                .and(check_named_refusal(&lacking, second, feature))
        }
        FeatureRequest::Command(command) => {
            let answer = lacking.engine().run(lacking.spec(), *command).await.map(drop);
            check_named_refusal(&lacking, answer, feature)
        }
        FeatureRequest::Operation(asked) => {
            let answer = perform_operation(&lacking, asked).await?;
            check_unsupported(answer, feature)
        }
    };
    lacking.close().await?;
    verdict
}

/// Stops the case unless the answer is a refusal of this feature and nothing was created for it.
fn check_named_refusal(kit: &Kit, answer: stockade_core::Result<()>, feature: Feature) -> Verdict {
    let Err(error) = answer else {
        return Err(Stop::Failed(format!("expected {feature} to be refused, but it was admitted")));
    };
    same!("the refusal's code", error.code(), ErrorCode::Refused);
    let refusals = error.refusals().map(|refusals| refusals.0.clone()).unwrap_or_default();
    let refusal = refusals.iter().find(|refusal| refusal.feature == Some(feature));
    let Some(refusal) = refusal else {
        return Err(Stop::Failed(format!("expected {feature} among the refusals, saw {error}")));
    };
    same!("the reason", refusal.reason, "hidden by the kit");
    same!("the remedy", refusal.remedy, "ask the kit to show it");
    same!("sandboxes that were asked for", kit.asked_for().len(), 0);
    let records = kit.engine().journal().records(Filter::default())?;
    for record in records {
        let event = record?.event;
        check!(
            matches!(event, Event::Refused { .. }),
            "expected refusals in the journal only, saw {event:?}"
        );
    }
    Ok(())
}

/// Operations are refused where they are asked for, by the same name.
async fn perform_operation(kit: &Kit, asked: SandboxOperation) -> Verdict<Result<(), Error>> {
    let id = kit.engine().create(kit.spec()).await?;
    let sandbox = kit.engine().sandbox(&id)?;
    Ok(match asked {
        SandboxOperation::Files => sandbox.files().map(drop),
        SandboxOperation::Pause => sandbox.pause().await,
        SandboxOperation::Snapshot(kind) => kit.engine().snapshot(&id, kind).await.map(drop),
        SandboxOperation::Signal => {
            let command = Command::program(["./probe", "sleep", "600000"]);
            let execution = kit.engine().exec(&id, command).await?;
            execution.signal(Signal::TERM).await
        }
    })
}

fn check_unsupported(answer: Result<(), Error>, feature: Feature) -> Verdict {
    let Err(error) = answer else {
        return Err(Stop::Failed(format!("expected {feature} to be refused, but it was done")));
    };
    same!("the refusal's code", error.code(), ErrorCode::Unsupported);
    check!(error.to_string().contains(feature.name()), "expected the feature's name, saw {error}");
    check!(error.hint().is_some(), "expected a remedy, saw {error}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stockade_core::LimitKind;

    use super::*;

    #[test]
    fn every_feature_has_its_refusal_under_its_own_name() {
        let named: BTreeSet<_> = REFUSED_FEATURES.iter().map(|(feature, _)| *feature).collect();
        assert_eq!(named, Feature::ALL.iter().copied().collect());
        assert!(REFUSED_FEATURES.iter().all(|(feature, name)| feature.name() == *name));
        assert!(LimitKind::ALL.iter().all(|kind| named.contains(&kind.feature())));
    }
}
