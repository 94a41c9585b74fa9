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
fn other_repositories_are_refused_and_addresses_need_consent() {
    test(async {
        let (bench, projects) = bench_with_repository().await;
        // A directory may lead anywhere: its `.git` is what a guest has made of it.
        let own = projects.path().join("repository").display().to_string();
        for wrong in
            [&own, "/etc", "ext::sh -c id", "file:///etc", "git@example.org:a", "--upload-pack=x"]
        {
            let error = bench.refused("sandbox_create", json!({ "git": wrong })).await;
            assert!(error.message.contains("`git`"), "{wrong}: {error}");
        }
        let both = json!({ "git": "https://example.invalid/a", "empty_workspace": true });
        bench.refuses("sandbox_create", both, ErrorCode::Invalid, "git").await;
        bench.refuses("sandbox_create", json!({ "rev": "x" }), ErrorCode::Invalid, "rev").await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "no".into() });
        let address = json!({ "git": "https://example.invalid/a.git" });
        bench.refuses("sandbox_create", address, ErrorCode::Denied, "").await;
        assert_eq!(bench.whose.asked.lock().unwrap().len(), 1);
        bench.close().await;
    });
}
