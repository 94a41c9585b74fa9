//! `workspace_apply`: what a person was asked about is what reaches the user's files (C-23), what is held
//! back is asked about under any rules (C-24), and a sandbox stands still meanwhile.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::common::{ToolBench, Where, allow_everything, test};
use async_trait::async_trait;
use serde_json::json;
use stockade_backends::native;
use stockade_core::{ErrorCode, Feature, HostPath, SandboxId, SnapshotKind, Workspace};
use stockade_engine::{Engine, Journal, JournalOptions};
use stockade_tools::{Ask, Call, Decision, Question, ToolboxOptions};
use stockade_workspaces::{Hint, Request, SandboxWorkspaces, WorkspaceOrigin, Workspaces};

/// A bench whose sandboxes have views of its workspace.
async fn overlaid(rules: bool) -> ToolBench {
    ToolBench::with(Where::Native, |options| {
        lay_over(options);
        if rules {
            options.approval = allow_everything();
        }
    })
    .await
}

/// Gives sandboxes views of the workspace.
pub fn lay_over(options: &mut ToolboxOptions) {
    let workspace = match options.bound.clone().map(|spec| spec.workspace) {
        Some(Workspace::Local(path)) => path,
        _ => panic!("no workspace"),
    };
    let state = &options.state_dir;
    let journal = Journal::open_in(state, JournalOptions::default()).unwrap();
    let workspaces = Workspaces::open(state, journal).unwrap();
    let hint = Hint::Overlay(workspace.as_path().to_owned());
    let origin = WorkspaceOrigin::Fresh(Request::new(hint));
    options.workspaces = Some(SandboxWorkspaces::new(workspaces, origin));
    for spec in options.bound.iter_mut().chain([&mut options.template]) {
        spec.workspace = planned(&workspace);
    }
}

/// As a view is planned; the layers are those of the view itself.
fn planned(lower: &HostPath) -> Workspace {
    let layers = json!({ "overlay": { "lower": lower, "upper": "/u/upper", "work": "/u/work" } });
    serde_json::from_value(layers).unwrap()
}

/// The one upper directory there is.
fn upper(state: &Path) -> PathBuf {
    let all = std::fs::read_dir(state.join("workspaces")).unwrap().flatten();
    let mut uppers = all.map(|entry| entry.path().join("upper")).filter(|path| path.exists());
    let upper = uppers.next().unwrap();
    assert!(uppers.next().is_none(), "there are two");
    upper
}

type ApprovalDeed = Box<dyn Fn() -> Decision + Send + Sync>;

/// Does something while the question stands.
struct Meanwhile(ApprovalDeed, Mutex<Vec<Question>>);

#[async_trait]
impl Ask for Meanwhile {
    async fn ask(&self, question: Question) -> Decision {
        self.1.lock().unwrap().push(question);
        (self.0)()
    }
}

fn meanwhile(
    bench: &ToolBench,
    deed: impl Fn() -> Decision + Send + Sync + 'static,
) -> (Call, Arc<Meanwhile>) {
    let person = Arc::new(Meanwhile(Box::new(deed), Mutex::default()));
    (Call { ask: Arc::clone(&person) as Arc<dyn Ask>, ..bench.caller() }, person)
}

#[test]
fn content_that_is_swapped_while_the_question_stands_is_not_applied() {
    test(async {
        let bench = overlaid(false).await;
        bench.write("script", "before\n");
        bench.ok("bash", json!({ "command": "printf 'shown!\n' > script" })).await;
        let upper = upper(&bench.state());
        let (call, person) = meanwhile(&bench, move || {
            std::fs::write(upper.join("script"), "evil!!\n").unwrap();
            Decision::Yes
        });
        let error = bench.toolbox.call("workspace_apply", json!({}), &call).await.unwrap_err();
        assert!(error.message.contains("was changed after"), "{error}");
        assert_eq!(bench.read("script"), "before\n");
        let asked = person.1.lock().unwrap()[0].clone();
        assert!(asked.text.contains("sha256:"), "{asked:?}");
        // Asked about anew, it is another question.
        let (again, person) = meanwhile(&bench, || Decision::Yes);
        bench.toolbox.call("workspace_apply", json!({}), &again).await.unwrap();
        assert_ne!(person.1.lock().unwrap()[0], asked);
        assert_eq!(bench.read("script"), "evil!!\n");
        bench.close().await;
    });
}

#[test]
fn what_is_held_back_is_asked_about_whatever_the_rules_allow() {
    test(async {
        let bench = overlaid(true).await;
        let make = json!({ "command": "mkdir -p .hg && echo x > .hg/hgrc && echo x > plain" });
        bench.ok("bash", make.clone()).await;
        let done = bench.ok("workspace_apply", json!({})).await;
        assert_eq!(done["applied"], json!(["plain"]));
        assert!(bench.whose.asked.lock().unwrap().is_empty());
        bench.ok("bash", make).await;
        *bench.whose.answer.lock().unwrap() = Some(Decision::No { because: "no".into() });
        let named = json!({ "include": [".hg"] });
        bench.refuses("workspace_apply", named.clone(), ErrorCode::Denied, "only a person").await;
        assert!(!bench.path(".hg").exists());
        let asked = bench.whose.asked.lock().unwrap().pop().unwrap();
        assert!(asked.text.contains("version-control"), "{asked:?}");
        assert!(asked.facts.paths.contains(&".hg/hgrc".to_owned()), "{asked:?}");
        *bench.whose.answer.lock().unwrap() = Some(Decision::Yes);
        bench.ok("workspace_apply", named).await;
        assert_eq!(bench.read(".hg/hgrc"), "x\n");
        bench.close().await;
    });
}

/// Whether a sandbox stands still: it is not captured then.
fn is_paused(engine: &Arc<Engine>, id: &SandboxId) -> bool {
    let (engine, id) = (Arc::clone(engine), id.clone());
    let into = tempfile::tempdir().unwrap();
    let ask = async move {
        let sandbox = engine.sandbox(&id).unwrap();
        sandbox.snapshot(SnapshotKind::Files, into.path()).await
    };
    // On a thread of its own: this one is a worker of the runtime that answers.
    let handle = tokio::runtime::Handle::current();
    let asked = std::thread::scope(|scope| scope.spawn(|| handle.block_on(ask)).join().unwrap());
    asked.is_err_and(|error| error.message().contains("paused"))
}

#[test]
fn a_sandbox_stands_still_while_a_person_decides_and_goes_on_after_a_no() {
    test(async {
        let bench = overlaid(false).await;
        bench.ok("bash", json!({ "command": "echo x > new" })).await;
        let measured = bench.engine.detect_one(&native::NAME).await.unwrap();
        assert!(measured.has(Feature::Pause), "native cannot pause here: this proves nothing");
        let id: SandboxId = bench.toolbox.binding().await.unwrap().sandbox_id.parse().unwrap();
        let engine = Arc::clone(&bench.engine);
        let seen = Arc::new(Mutex::new(None));
        let (noted, of) = (Arc::clone(&seen), id.clone());
        let (call, _) = meanwhile(&bench, move || {
            *noted.lock().unwrap() = Some(is_paused(&engine, &of));
            Decision::No { because: "no".into() }
        });
        bench.toolbox.call("workspace_apply", json!({}), &call).await.unwrap_err();
        assert_eq!(*seen.lock().unwrap(), Some(true));
        let ran = bench.ok("bash", json!({ "command": "echo on" })).await;
        assert_eq!((ran["stdout"].as_str(), &ran["notice"]), (Some("on\n"), &json!(null)));
        bench.close().await;
    });
}

#[test]
fn a_sandbox_goes_on_after_a_question_that_was_given_up() {
    test(async {
        let bench = overlaid(false).await;
        bench.ok("bash", json!({ "command": "echo x > new" })).await;
        *bench.whose.answer.lock().unwrap() = None;
        let asked = Arc::clone(&bench.whose);
        let until_asked = async {
            while asked.asked.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            done = bench.call("workspace_apply", json!({})) => panic!("{done:?}"),
            () = until_asked => {}
        }
        // It goes on in a task of its own: until then it says that it is paused.
        loop {
            match bench.call("read_file", json!({ "path": "new" })).await {
                Ok(answer) => break assert_eq!(answer.structured["content"], "x\n"),
                Err(error) => assert!(error.message.contains("paused"), "{error}"),
            }
        }
        bench.close().await;
    });
}

/// A rule about paths sees all of them, however many there are.
#[test]
fn no_number_of_changes_hides_one_from_a_rule() {
    test(async {
        let bench = Box::pin(overlaid(false)).await;
        bench.ok("bash", json!({ "command": "mkdir a; for i in $(seq 1100); do echo > a/$i; done; echo > z" })).await;
        bench.ok("workspace_diff", json!({})).await;
        let (call, person) = meanwhile(&bench, || Decision::No { because: "no".into() });
        bench.toolbox.call("workspace_apply", json!({}), &call).await.unwrap_err();
        let asked = person.1.lock().unwrap()[0].clone();
        assert!(asked.facts.paths.len() < 1100 && asked.facts.paths.last().unwrap() == "z");
        bench.close().await;
    });
}
