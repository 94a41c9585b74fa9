//! Checkouts of repositories that an agent names.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use stockade_core::{ErrorCode, HostPath};
use stockade_tools::{AllowedDirectories, Decision};

use crate::common::{ToolBench, Where, test};

fn git(dir: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]).args(args);
    let done = command.current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{args:?}: {done:?}");
}

/// A bench whose agent may name what lies beneath a directory, in which there is a repository.
async fn bench_with_repository() -> (ToolBench, tempfile::TempDir) {
    let projects = tempfile::tempdir().unwrap();
    let repository = projects.path().join("repository");
    std::fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "--quiet"]);
    for version in ["first", "second"] {
        std::fs::write(repository.join("a"), version).unwrap();
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "--quiet", "-m", version]);
        git(&repository, &["tag", version]);
    }
    let root = HostPath::try_from(projects.path().canonicalize().unwrap()).unwrap();
    let bench = ToolBench::with(Where::Native, |options| {
        options.directories = AllowedDirectories::new(vec![root]);
    })
    .await;
    (bench, projects)
}

#[test]
fn an_agent_works_on_a_checkout_and_its_changes_are_kept_apart() {
    test(async {
        let (bench, projects) = bench_with_repository().await;
        let repository = projects.path().join("repository");
        // Whatever a person would say: none is asked.
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "no".into() });
        let asked = json!({ "git": repository, "rev": "first" });
        let id = bench.ok("sandbox_create", asked).await["sandboxId"].clone();
        let line = json!({ "command": "cat a; echo changed > a", "sandbox_id": id });
        assert_eq!(bench.ok("bash", line).await["stdout"], "first");
        assert_eq!(std::fs::read_to_string(repository.join("a")).unwrap(), "second");
        let diff = bench.ok("workspace_diff", json!({ "sandbox_id": id })).await;
        assert!(diff.to_string().contains("\"a\""), "{diff}");
        bench.close().await;
    });
}

#[test]
fn other_repositories_are_refused_and_addresses_need_consent() {
    test(async {
        let (bench, projects) = bench_with_repository().await;
        for wrong in
            ["/etc", "ext::sh -c id", "file:///etc", "git@example.org:a", "--upload-pack=x"]
        {
            let error = bench.refused("sandbox_create", json!({ "git": wrong })).await;
            assert!(error.message.contains("`git`"), "{wrong}: {error}");
        }
        let both = json!({ "git": projects.path().join("repository"), "empty_workspace": true });
        bench.refuses("sandbox_create", both, ErrorCode::Invalid, "git").await;
        bench.refuses("sandbox_create", json!({ "rev": "x" }), ErrorCode::Invalid, "rev").await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "no".into() });
        let address = json!({ "git": "https://example.invalid/a.git" });
        bench.refuses("sandbox_create", address, ErrorCode::Denied, "").await;
        assert_eq!(bench.whose.asked.lock().unwrap().len(), 1);
        bench.close().await;
    });
}
