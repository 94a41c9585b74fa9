//! How sandboxes begin, fail and end: what is refused is named, and nothing is left.
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{failure, for_each_owner, launch, readable, try_launch, until};
use rustix::process::{Pid, Signal, kill_process};
use stockade_launcher::{Cgroup, LaunchPlan, Launcher, PlanMount, PlanWorkspace, Wall};

fn plan() -> LaunchPlan {
    LaunchPlan::default()
}

fn kill(launcher: &Launcher) {
    let pid = Pid::from_raw(i32::try_from(launcher.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn a_missing_source_is_named() {
    for_each_owner(|_, launcher| {
        let path = PathBuf::from("/nowhere/at/all");
        let workspace = PlanWorkspace::Local { path: path.clone() };
        let refused = failure(try_launch(launcher, &LaunchPlan { workspace, ..plan() }));
        assert_eq!((refused.wall, refused.errno), (Wall::Source, libc::ENOENT));
        assert!(refused.detail.contains("/nowhere/at/all"));
        let mounts = vec![PlanMount { source: path, target: "/x".into(), read_only: true }];
        let refused = failure(try_launch(launcher, &LaunchPlan { mounts, ..plan() }));
        assert!(refused.to_string().contains("/nowhere/at/all"), "{refused}");
        launch(launcher, &plan());
    });
}

#[test]
fn a_source_behind_a_symbolic_link_is_refused() {
    for_each_owner(|owner, launcher| {
        let directory = common::directory(owner);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        let workspace = PlanWorkspace::Local { path: link };
        let refused = failure(try_launch(launcher, &LaunchPlan { workspace, ..plan() }));
        assert_eq!((refused.wall, refused.errno), (Wall::Source, libc::ELOOP));
        assert!(refused.remedy.is_some());
    });
}

#[test]
fn a_target_that_is_not_plain_is_refused() {
    for_each_owner(|_, launcher| {
        for target in ["relative", "/", "/a/../b", ""] {
            let plan = LaunchPlan { workspace_target: target.into(), ..plan() };
            assert_eq!(failure(try_launch(launcher, &plan)).wall, Wall::Request, "{target}");
        }
    });
}

#[test]
fn a_target_that_cannot_be_made_is_named() {
    for_each_owner(|owner, launcher| {
        let directory = common::directory(owner);
        let source = directory.path().canonicalize().unwrap();
        let target = PathBuf::from("/usr/no-such-place");
        let mounts = vec![PlanMount { source, target, read_only: true }];
        let refused = failure(try_launch(launcher, &LaunchPlan { mounts, ..plan() }));
        assert_eq!(refused.wall, Wall::Mounts);
        assert!(refused.detail.contains("/usr/no-such-place"));
    });
}

#[test]
fn an_agent_that_is_no_program_is_a_failure_and_not_a_launch() {
    for owner in common::owners() {
        let launcher = common::launcher_with(owner, Path::new("/etc/hosts"));
        let refused = failure(try_launch(&launcher, &plan()));
        assert_eq!((refused.wall, refused.errno), (Wall::Agent, libc::ENOEXEC));
    }
}

#[test]
fn the_sandbox_ends_when_its_agent_ends() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        inside.run(&["sh", "-c", "sleep 1000 >/dev/null 2>&1 & "]);
        let stray = format!("/proc/{}", inside.launched.pid);
        inside.ended_by_drop();
        until("the process is buried", || !Path::new(&stray).exists());
    });
}

#[test]
fn a_killed_launcher_takes_its_sandboxes_with_it() {
    for_each_owner(|_, launcher| {
        let sandboxes = [launch(launcher, &plan()), launch(launcher, &plan())];
        kill(launcher);
        sandboxes.iter().for_each(common::Inside::ended);
    });
}

#[test]
fn a_launcher_whose_owner_is_gone_ends_everything() {
    for owner in common::owners() {
        let launcher = common::launcher(owner);
        let sandboxes = [launch(&launcher, &plan()), launch(&launcher, &plan())];
        drop(launcher);
        sandboxes.iter().for_each(common::Inside::ended);
    }
}

#[test]
fn a_launch_that_is_given_up_leaves_nothing() {
    for_each_owner(|_, launcher| {
        for _ in 0..20 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            drop(launcher.begin(&plan(), theirs.into()).unwrap());
            drop(ours);
        }
        let children = format!("/proc/{0}/task/{0}/children", launcher.pid());
        until("no child is left", || std::fs::read_to_string(&children).unwrap().is_empty());
        launch(launcher, &plan());
    });
}

#[test]
fn many_launches_may_be_under_way_at_once() {
    for_each_owner(|_, launcher| {
        let begin = |_| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (launcher.begin(&plan(), theirs.into()).unwrap(), ours)
        };
        let pending: Vec<_> = (0..30).map(begin).collect();
        let mut pids = std::collections::BTreeSet::new();
        for (pending, _pipe) in pending {
            readable(pending.as_fd());
            pids.insert(pending.finish().unwrap().pid);
        }
        assert_eq!(pids.len(), 30);
    });
}

/// Control groups of the first version, which root has on this host.
fn groups(name: &str) -> Vec<PathBuf> {
    let controllers = ["pids", "memory", "freezer"];
    let base = controllers.iter().map(|controller| Path::new("/sys/fs/cgroup").join(controller));
    base.filter(|base| base.join("cgroup.procs").exists()).map(|base| base.join(name)).collect()
}

#[test]
fn an_agent_that_could_still_be_changed_is_refused() {
    let agent = std::fs::File::open(common::example("inside")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_stockade-launcher")).to_path_buf();
    let program = stockade_launcher::Program::Path(program);
    let launcher = Launcher::start(&program, agent.as_fd()).unwrap();
    assert_eq!(failure(try_launch(&launcher, &plan())).wall, Wall::Agent);
}

mod needs_root {
    use super::*;

    #[test]
    fn no_launch_leaves_a_descriptor_or_a_mount_in_the_launcher() {
        for_each_owner(|_, launcher| {
            let count = || {
                let pid = launcher.pid();
                let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
                let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
                (mounts.lines().count(), fds)
            };
            launch(launcher, &plan()).ended_by_drop();
            let before = count();
            for _ in 0..20 {
                launch(launcher, &plan()).ended_by_drop();
            }
            // The first launch may still have been closing; one leak per launch would be twenty.
            until("nothing is left", || count().0 <= before.0 && count().1 <= before.1);
        });
    }

    #[test]
    fn a_sandbox_is_in_its_control_groups_from_the_start_and_they_go_with_the_owner() {
        let directories = groups(&format!("stockade-test-{}", std::process::id()));
        for directory in &directories {
            std::fs::create_dir(directory).unwrap();
        }
        let launcher = common::launcher(common::Owner::Root);
        let cgroup = Some(Cgroup::V1(directories.clone()));
        let mut inside = launch(&launcher, &LaunchPlan { cgroup, ..plan() });
        for directory in &directories {
            let members = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap();
            assert_eq!(members.trim(), inside.launched.pid.to_string());
        }
        let seen = inside.read("/proc/self/cgroup").unwrap();
        assert!(!seen.contains("stockade-test"), "{seen}");
        inside.run(&["sh", "-c", "sleep 1000 >/dev/null 2>&1 & "]);
        drop(launcher);
        assert!(directories.iter().all(|directory| !directory.exists()));
    }
}
