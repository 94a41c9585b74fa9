//! What is asked for: refused as a whole, by name, or given up by name (C-01 to C-06).

use std::path::Path;

use serde_json::json;
use stockade_core::{
    BackendChoice, BackendName, Bytes, Enforcement, ErrorCode, Feature, Image, LimitKind, Mount,
    SandboxSpec, Span, Workspace,
};
use stockade_engine::{Event, Filter};

use crate::case::{case, check, same};
use crate::kit::{host_path, probe_command};
use crate::{Case, Kit, Stop, Verdict};

pub(super) const SPEC_CASES: &[Case] = &[
    case!("every reason for a refusal is in one answer", "C-01", all_at_once),
    case!("a limit that is given up by name is told and recorded as such", "C-02", given_up),
    case!("the default limits are the finite ones of the contract", "C-03", check_default_limits),
    case!("what is wrong with a spec is refused by the name of the field", "C-04", wrong_fields),
    case!(
        "a path that leaves its root by its spelling never gets far",
        "C-04",
        check_path_spelling
    ),
    case!("a backend that is not there is refused by its name", "C-04", unknown_backend),
    case!("explaining a spec creates nothing", "C-01", check_explain_creates_nothing),
    case!("no view of the host holds the engine's state, read-only or not", "C-06", own_state),
    case!("no view of the host is one that its programs share", "C-06", shared_directories),
];

/// Every way in which a spec can show a directory of the host, with the field that does it.
fn every_view(kit: &Kit, shown: &Path) -> Verdict<Vec<(&'static str, SandboxSpec)>> {
    let shown = host_path(shown)?;
    let mut views = Vec::new();
    for read_only in [false, true] {
        let plain = SandboxSpec { workspace: Workspace::Ephemeral, read_only, ..kit.spec() };
        let mount = Mount { source: shown.clone(), target: "/shown".parse()?, read_only };
        let (mut local, mut mounted) = (plain.clone(), plain);
        local.workspace = Workspace::Local(shown.clone());
        mounted.mounts = vec![mount];
        views.extend([("workspace", local), ("mounts[0].source", mounted)]);
    }
    let image = SandboxSpec { image: Image::Directory(shown), ..kit.spec() };
    views.push(("image", image));
    Ok(views)
}

async fn refused_in_every_view(kit: &Kit, shown: &Path) -> Verdict {
    for (field, spec) in every_view(kit, shown)? {
        let told = collect_refusals(kit, spec).await?;
        let seen = told.iter().any(|refusal| refusal.field == field && !refusal.remedy.is_empty());
        let shown = shown.display();
        check!(seen, "expected `{shown}` to be refused as {field}, saw {told:?}");
    }
    same!("sandboxes that were asked for", kit.asked_for().len(), 0);
    Ok(())
}

async fn own_state(kit: Kit) -> Verdict {
    let state = kit.state();
    let inside = state.join("snapshots");
    let alias = kit.outside().join("alias");
    std::os::unix::fs::symlink(&state, &alias)?;
    for shown in [state.parent(), Some(&state), Some(&inside), Some(&alias)].into_iter().flatten() {
        refused_in_every_view(&kit, shown).await?;
    }
    Ok(())
}

async fn shared_directories(kit: Kit) -> Verdict {
    for shown in ["/", "/tmp", "/var/tmp", "/run", "/etc", "/var", "/proc", "/dev"] {
        refused_in_every_view(&kit, Path::new(shown)).await?;
    }
    Ok(())
}

async fn collect_refusals(kit: &Kit, spec: SandboxSpec) -> Verdict<Vec<stockade_core::Refusal>> {
    match kit.engine().create(spec).await {
        Ok(id) => Err(Stop::Failed(format!("expected a refusal, but {id} was made"))),
        Err(error) => {
            same!("the refusal's code", error.code(), ErrorCode::Refused);
            Ok(error.refusals().map(|refusals| refusals.0.clone()).unwrap_or_default())
        }
    }
}

async fn all_at_once(kit: Kit) -> Verdict {
    let kit = kit.with_hidden_feature(Feature::ReadOnlyWorkspace).await?;
    let mut spec = kit.spec();
    spec.read_only = true;
    spec.limits.memory = Some(Bytes(0));
    spec.limits.wall_time = Some(Span::millis(0));
    let told = collect_refusals(&kit, spec).await?;
    let fields: Vec<_> = told.iter().map(|refusal| refusal.field.as_str()).collect();
    for field in ["readOnly", "limits.memory", "limits.wall-time"] {
        check!(fields.contains(&field), "expected {field} among the refusals, saw {fields:?}");
    }
    same!("sandboxes that were asked for", kit.asked_for().len(), 0);
    Ok(())
}

async fn given_up(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.without.insert(Feature::DiskLimit);
    let execution = kit.start(spec, probe_command(["exit", "0"])).await?;
    let outcome = execution.outcome().await;
    let disk = outcome.limits.iter().find(|entry| entry.limit() == LimitKind::Disk);
    check!(
        matches!(disk, Some(Enforcement::NotAtAll { .. })),
        "expected no disk limit, saw {disk:?}"
    );
    let job = kit.engine().journal().job(execution.job())?;
    let Some(Event::Started { without, .. }) = job.map(|job| job.started.event) else {
        return Err(Stop::failed("expected the record of a start, saw none"));
    };
    check!(without.contains(&Feature::DiskLimit), "expected it in the record, saw {without:?}");
    Ok(())
}

async fn check_default_limits(kit: Kit) -> Verdict {
    let ran = kit.run(["exit", "0"]).await?.exited(0)?;
    let told = serde_json::to_value(&ran.outcome.limits)?;
    let value = |kind: LimitKind| {
        let entry = told.as_array()?.iter().find(|entry| entry["limit"] == json!(kind))?;
        Some((entry["enforced"].clone(), entry["value"].clone()))
    };
    let expected = [
        (LimitKind::CpuTime, "30s"),
        (LimitKind::WallTime, "1m"),
        (LimitKind::Memory, "512m"),
        (LimitKind::Disk, "1g"),
        (LimitKind::Processes, "128"),
        (LimitKind::Output, "16m"),
    ];
    for (kind, text) in expected {
        let Some((enforced, value)) = value(kind) else {
            return Err(Stop::Failed(format!("expected an entry about {kind}, saw none")));
        };
        if enforced != json!("not-at-all") {
            same!(format!("the default of {kind}"), value, json!(text));
        }
    }
    Ok(())
}

async fn wrong_fields(kit: Kit) -> Verdict {
    let mount = |target: &str| -> Verdict<Mount> {
        Ok(Mount { source: host_path(&kit.outside())?, target: target.parse()?, read_only: true })
    };
    let mut spec = kit.spec();
    spec.limits.processes = Some(0);
    spec.mounts = vec![mount("relative")?, mount("/twice")?, mount("/twice")?];
    let told = collect_refusals(&kit, spec).await?;
    let fields: Vec<_> = told.iter().map(|refusal| refusal.field.as_str()).collect();
    for field in ["limits.processes", "mounts[0].target", "mounts[2].target"] {
        check!(fields.contains(&field), "expected {field} among the refusals, saw {fields:?}");
    }
    check!(
        told.iter().all(|refusal| !refusal.remedy.is_empty()),
        "expected remedies, saw {told:?}"
    );
    let nameless = stockade_core::Command::program([""]);
    let refused = kit.engine().run(kit.spec(), nameless).await;
    check!(refused.is_err(), "expected a command without a program to be refused, but it ran");
    Ok(())
}

async fn check_path_spelling(_kit: Kit) -> Verdict {
    for text in ["..", "../x", "a/../../x", "/../etc/passwd"] {
        let parsed = text.parse::<stockade_core::SandboxPath>();
        let Err(error) = parsed else {
            return Err(Stop::Failed(format!("expected `{text}` to be refused, but it parsed")));
        };
        check!(error.to_string().contains(text), "expected the path in the message, saw {error}");
    }
    Ok(())
}

async fn unknown_backend(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.backend = BackendChoice::Named(BackendName::literal("nosuchbackend"));
    let Err(error) = kit.engine().create(spec).await else {
        return Err(Stop::failed("expected a refusal, but a sandbox was made"));
    };
    check!(error.to_string().contains("nosuchbackend"), "expected the name, saw {error}");
    same!("sandboxes that were asked for", kit.asked_for().len(), 0);
    Ok(())
}

async fn check_explain_creates_nothing(kit: Kit) -> Verdict {
    let selection = kit.engine().explain(&kit.spec()).await;
    same!("the backend that would be taken", selection.chosen, Some(kit.backend().name()));
    same!("sandboxes that were asked for", kit.asked_for().len(), 0);
    same!(
        "records that were written",
        kit.engine().journal().records(Filter::default())?.count(),
        0
    );
    Ok(())
}
