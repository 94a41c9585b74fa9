//! Several sandboxes of one agent: over directories that the user allowed, and one of them for calls that name none.

use serde_json::json;
use stockade_core::{ErrorCode, HostPath};
use stockade_tools::{AllowedDirectories, Decision};

use crate::common::{ToolBench, Where, test};

/// A bench whose agent may name what lies beneath a directory, and that directory.
async fn bench_with_projects() -> (ToolBench, tempfile::TempDir) {
    let projects = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        std::fs::create_dir(projects.path().join(name)).unwrap();
        std::fs::write(projects.path().join(name).join("name"), name).unwrap();
    }
    let root = HostPath::try_from(projects.path().canonicalize().unwrap()).unwrap();
    let bench = ToolBench::with(Where::Native, |options| {
        options.directories = AllowedDirectories::new(vec![root]);
    })
    .await;
    (bench, projects)
}

#[test]
fn an_agent_works_in_several_directories_that_the_user_allowed() {
    test(async {
        let (bench, projects) = bench_with_projects().await;
        // Whatever a person would say: none is asked.
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "no".into() });
        for name in ["one", "two"] {
            let dir = projects.path().join(name);
            let made = bench.ok("sandbox_create", json!({ "workspace": dir })).await;
            let id = made["sandboxId"].clone();
            let line = json!({ "command": "cat name; echo seen > seen", "sandbox_id": id });
            assert_eq!(bench.ok("bash", line).await["stdout"], name);
            assert_eq!(std::fs::read_to_string(dir.join("seen")).unwrap(), "seen\n");
        }
        assert!(!bench.path("seen").exists());
        bench.close().await;
    });
}

#[test]
fn a_directory_that_the_user_did_not_allow_is_refused() {
    test(async {
        let (bench, projects) = bench_with_projects().await;
        std::os::unix::fs::symlink("/etc", projects.path().join("link")).unwrap();
        let link = projects.path().join("link");
        for dir in ["/etc", "/", "..", link.to_str().unwrap()] {
            let asked = json!({ "workspace": dir });
            bench.refuses("sandbox_create", asked, ErrorCode::Denied, "workspace").await;
        }
        let inside = json!({ "workspace": projects.path() });
        let one = bench.ok("sandbox_create", inside).await["sandboxId"].clone();
        // Its guest could put a link there at the right instant.
        let nested = json!({ "workspace": projects.path().join("one") });
        bench.refuses("sandbox_create", nested.clone(), ErrorCode::Invalid, "another").await;
        bench.ok("sandbox_destroy", json!({ "sandbox_id": one })).await;
        bench.ok("sandbox_create", nested).await;
        bench.close().await;
    });
}

#[test]
fn calls_that_name_no_sandbox_use_the_one_that_was_chosen() {
    test(async {
        let (bench, projects) = bench_with_projects().await;
        bench.write("name", "usual");
        let usual = bench.ok("bash", json!({ "command": "cat name" })).await;
        assert_eq!(usual["stdout"], "usual");
        let asked = json!({ "workspace": projects.path().join("two") });
        let id = bench.ok("sandbox_create", asked).await["sandboxId"].clone();
        bench.ok("sandbox_use", json!({ "sandbox_id": id })).await;
        let line = json!({ "command": "cat name" });
        assert_eq!(bench.ok("bash", line.clone()).await["stdout"], "two");
        assert_eq!(bench.ok("sandbox_list", json!({})).await["chosen"], id);
        bench.ok("sandbox_use", json!({})).await;
        assert_eq!(bench.ok("bash", line.clone()).await["stdout"], "usual");
        bench.ok("sandbox_use", json!({ "sandbox_id": id })).await;
        bench.ok("sandbox_destroy", json!({ "sandbox_id": id })).await;
        assert_eq!(bench.ok("bash", line).await["stdout"], "usual");
        let gone = json!({ "sandbox_id": id });
        bench.refuses("sandbox_use", gone, ErrorCode::NotFound, "no sandbox").await;
        bench.close().await;
    });
}

#[test]
fn another_image_needs_consent() {
    test(async {
        let bench = ToolBench::new(Where::Native).await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "no image".into() });
        let asked = json!({ "image": "debian:12" });
        bench.refuses("sandbox_create", asked, ErrorCode::Denied, "no image").await;
        let question = bench.whose.asked.lock().unwrap().pop().unwrap();
        assert!(question.text.contains("debian:12"), "{question:?}");
        bench.close().await;
    });
}
