//! How executions and agents end: kills, daemons, lost keepers, closed pipes.
use crate::common;
use crate::common::{
    Agent, connect, connected, eventually, is_alive, pids, read_to_end, read_until, run, sh,
    status, test,
};
use stockade_core::{Command, ErrorCode, ExitStatus, ProcessEvent, Signal};

/// Forks twice, starts a session, ignores what can be ignored, and leaves its id in `pids`.
const DAEMON_SCRIPT: &str = "python3 -c '
import os, signal, time
def leave():
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    for n in range(1, 32):
        try: signal.signal(n, signal.SIG_IGN)
        except OSError: pass
    open(\"pids\", \"a\").write(str(os.getpid()) + chr(10))
    null = os.open(\"/dev/null\", os.O_RDWR)
    for fd in (0, 1, 2): os.dup2(null, fd)
    while True: time.sleep(1)
for _ in range(5):
    if os.fork() == 0: leave()
time.sleep(WAIT)
'";

#[test]
fn a_kill_stops_a_tree_that_keeps_forking() {
    test(async {
        let (_agent, client) = connected().await;
        let line = "f() { while :; do sleep 0.01 & sleep 0.01; done; }; f & f & f & f & echo up; f";
        let mut process = client.spawn(&sh(line), &[]).await.unwrap();
        read_until(&mut process, "up").await;
        process.control.kill().await.unwrap();
        assert_eq!(
            read_to_end(&mut process).await.exit.status,
            ExitStatus::Signalled(Signal::KILL)
        );
    });
}

#[test]
fn a_kill_does_not_wait_for_output_to_be_read() {
    test(async {
        let (_agent, client) = connected().await;
        let mut process = client.spawn(&Command::program(["yes"]), &[]).await.unwrap();
        assert!(matches!(process.events.next().await, Some(ProcessEvent::Output(..))));
        process.control.kill().await.unwrap();
        assert_eq!(
            read_to_end(&mut process).await.exit.status,
            ExitStatus::Signalled(Signal::KILL)
        );
    });
}

#[test]
fn a_background_child_does_not_hold_back_the_exit() {
    test(async {
        let (_agent, client) = connected().await;
        let mut process = client.spawn(&sh("sleep 1000 & echo done"), &[]).await.unwrap();
        let done = read_to_end(&mut process).await;
        assert_eq!(
            (done.stdout.as_slice(), done.exit.status),
            (&b"done\n"[..], ExitStatus::Exited(0))
        );
        process.control.kill().await.unwrap();
    });
}

#[test]
fn a_background_child_that_writes_lives_on_after_the_exit() {
    test(async {
        let (agent, client) = connected().await;
        let line = "(echo $$ > pid; i=0; while [ $i -lt 3000 ]; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
                    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; i=$((i+1)); done; \
                    touch finished) & echo up";
        let mut process = client.spawn(&sh(line), &[]).await.unwrap();
        assert_eq!(read_to_end(&mut process).await.exit.status, ExitStatus::Exited(0));
        eventually("the child finished", || agent.path("finished").exists()).await;
    });
}

#[test]
fn a_killed_keeper_is_a_lost_execution_and_leaves_no_strays() {
    test(async {
        let (agent, client) = connected().await;
        let line = "setsid sleep 1000 & echo $! > pids; kill -9 $PPID; sleep 1000";
        let mut process = client.spawn(&sh(line), &[]).await.unwrap();
        let exit = read_to_end(&mut process).await.exit;
        assert!(matches!(exit.status, ExitStatus::Lost(_)), "{exit:?}");
        assert_eq!(process.control.kill().await.unwrap_err().code(), ErrorCode::LeftBehind);
        let stray = pids(&agent.path("pids"), 1).await[0];
        eventually("the stray ended", || !is_alive(stray)).await;
        assert_eq!(status(&client, &sh("exit 3")).await, ExitStatus::Exited(3));
    });
}

#[test]
fn orphans_are_reaped() {
    test(async {
        let (agent, client) = connected().await;
        let line = "for i in 1 2 3 4 5 6 7 8; do (sh -c 'echo $$ >> pids' &); done; sleep 0.3";
        let mut process = client.spawn(&sh(line), &[]).await.unwrap();
        let orphans = pids(&agent.path("pids"), 8).await;
        let gone = |pid: &i32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
        eventually("every orphan was reaped", || orphans.iter().all(gone)).await;
        read_to_end(&mut process).await;
    });
}

#[test]
fn when_the_agent_dies_everything_is_lost() {
    test(async {
        let (agent, client) = connected().await;
        let mut process = client.spawn(&sh("sleep 1000"), &[]).await.unwrap();
        drop(agent);
        assert!(matches!(read_to_end(&mut process).await.exit.status, ExitStatus::Lost(_)));
        client.closed().await;
        let error = client.files().stat(&common::path(".")).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Gone);
        assert!(client.spawn(&sh("true"), &[]).await.is_err());
    });
}

#[test]
fn dropping_the_events_ends_the_program() {
    test(async {
        let (agent, client) = connected().await;
        let process = client.spawn(&sh("echo $$ > pids; exec sleep 1000"), &[]).await.unwrap();
        let pid = pids(&agent.path("pids"), 1).await[0];
        drop(process);
        eventually("the program ended", || !is_alive(pid)).await;
    });
}

#[test]
fn dropping_the_events_of_a_flood_leaves_nothing() {
    test(async {
        let (agent, client) = connected().await;
        for _ in 0..20 {
            let mut process = client.spawn(&Command::program(["yes"]), &[]).await.unwrap();
            process.events.next().await;
            drop(process.events);
            process.control.kill().await.unwrap();
        }
        let me = agent.pid();
        eventually("every keeper ended", || {
            let children = std::fs::read_to_string(format!("/proc/{me}/task/{me}/children"));
            children.unwrap().trim().is_empty()
        })
        .await;
        // The agent closes what belonged to a keeper when it has noticed its end.
        eventually("every descriptor is closed", || {
            std::fs::read_dir(format!("/proc/{me}/fd")).unwrap().count() < 12
        })
        .await;
    });
}

mod needs_python {
    use super::*;

    #[test]
    fn a_kill_reaches_daemons_that_hide() {
        test(async {
            let (agent, client) = connected().await;
            let mut process =
                client.spawn(&sh(&DAEMON_SCRIPT.replace("WAIT", "1000")), &[]).await.unwrap();
            let daemons = pids(&agent.path("pids"), 5).await;
            process.control.kill().await.unwrap();
            assert!(!daemons.iter().any(|pid| is_alive(*pid)));
            assert_eq!(
                read_to_end(&mut process).await.exit.status,
                ExitStatus::Signalled(Signal::KILL)
            );
            process.control.kill().await.unwrap();
        });
    }

    #[test]
    fn daemons_outlive_their_program_until_a_kill() {
        test(async {
            let (agent, client) = connected().await;
            let mut process =
                client.spawn(&sh(&DAEMON_SCRIPT.replace("WAIT", "0")), &[]).await.unwrap();
            assert_eq!(read_to_end(&mut process).await.exit.status, ExitStatus::Exited(0));
            let daemons = pids(&agent.path("pids"), 5).await;
            assert!(daemons.iter().all(|pid| is_alive(*pid)));
            process.control.kill().await.unwrap();
            assert!(!daemons.iter().any(|pid| is_alive(*pid)));
        });
    }

    #[test]
    fn everything_ends_when_the_pipe_closes() {
        test(async {
            let (mut agent, client) = connected().await;
            let mut process =
                client.spawn(&sh(&DAEMON_SCRIPT.replace("WAIT", "1000")), &[]).await.unwrap();
            let daemons = pids(&agent.path("pids"), 5).await;
            drop(client);
            assert!(agent.wait().success());
            assert!(!daemons.iter().any(|pid| is_alive(*pid)));
            assert!(matches!(read_to_end(&mut process).await.exit.status, ExitStatus::Lost(_)));
            process.control.kill().await.unwrap();
        });
    }

    #[test]
    fn as_the_first_process_it_starts_kills_and_ends_everything_too() {
        test(async {
            let (mut agent, client) = connect(Agent::start_as_init()).await;
            let daemons = sh(&DAEMON_SCRIPT.replace("WAIT", "1000"));
            let mut process = client.spawn(&daemons, &[]).await.unwrap();
            pids(&agent.path("pids"), 5).await;
            process.control.kill().await.unwrap();
            // Counted by the shell itself: of two children, one might look before the other is there.
            let left = run(&client, &sh("set -- /proc/[0-9]*; echo $#")).await.stdout;
            // The agent, the keeper and the shell.
            assert_eq!(String::from_utf8(left).unwrap(), "3\n");
            drop(client);
            assert!(agent.wait().success());
            assert!(matches!(
                read_to_end(&mut process).await.exit.status,
                ExitStatus::Signalled(_)
            ));
        });
    }
}
