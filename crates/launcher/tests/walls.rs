//! What a program inside sees and may do, as root and as an ordinary user, on the real kernel.

mod common;

use common::{Owner, directory, for_each_owner, launch, local};
use serde_json::json;
use stockade_launcher::{DENIED, LaunchPlan, Mount, Network, Rlimits, Wall};

fn plan() -> LaunchPlan {
    LaunchPlan::default()
}

#[test]
fn the_agent_is_process_one_and_whom_the_plan_names() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &LaunchPlan { uid: 1234, gid: 4321, ..plan() });
        assert_eq!(inside.ask(json!({ "ids": "" })), json!({ "uid": 1234, "gid": 4321, "pid": 1 }));
        let args = inside.ask(json!({ "args": "" }));
        assert_eq!(args, json!(["stockade-agent", "3", "/workspace"]));
    });
}
