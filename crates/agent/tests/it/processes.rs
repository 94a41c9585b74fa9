//! Programs under a real agent.
use crate::common;
use crate::common::{connected, read_to_end, read_until, run, sh, status, test};
use bytes::Bytes;
use stockade_agent::client::Limit;
use stockade_core::{
    Command, ErrorCode, ExitStatus, ProcessEvent, Signal, StartFailure, Stdin, StreamId,
    TerminalSize, Unsent, User,
};

#[test]
fn exit_codes_are_verbatim() {
    test(async {
        let (_agent, client) = connected().await;
        for code in [0, 1, 42, 127, 255] {
            assert_eq!(
                status(&client, &sh(&format!("exit {code}"))).await,
                ExitStatus::Exited(code)
            );
        }
    });
}

#[test]
fn behind_walls_programs_set_no_ids_and_make_no_namespaces() {
    test(async {
        let (agent, client) = common::connect(common::Agent::start_without_privileges()).await;
        let plain = "echo x > f && chmod 1755 f && (umask 0; echo y > g)";
        assert_eq!(status(&client, &sh(plain)).await, ExitStatus::Exited(0));
        for refused in [
            "chmod u+s f",
            "chmod g+s f",
            "install -m 4755 f h",
            "mkdir d; chmod 2755 d",
            "unshare --user true",
        ] {
            assert_ne!(status(&client, &sh(refused)).await, ExitStatus::Exited(0), "{refused}");
        }
        for entry in std::fs::read_dir(agent.workspace.path()).unwrap().flatten() {
            use std::os::unix::fs::MetadataExt;
            let mode = entry.metadata().unwrap().mode();
            assert_eq!(mode & 0o6000, 0, "{:?} {mode:o}", entry.path());
        }
        // The agent itself still resolves by the kernel, and outside walls nothing is refused.
        assert!(client.files().read(&common::path("f"), 0, 8).await.is_ok());
        let (_agent, client) = connected().await;
        let free = status(&client, &sh("echo x > f && chmod 4755 f")).await;
        assert_eq!(free, ExitStatus::Exited(0));
    });
}

#[test]
fn a_signal_is_reported_as_that_signal() {
    test(async {
        let (_agent, client) = connected().await;
        for number in [6, 9, 11, 13, 15] {
            let ended = status(&client, &sh(&format!("kill -{number} $$"))).await;
            assert_eq!(ended, ExitStatus::Signalled(Signal(number)));
        }
    });
}

#[test]
fn start_failures_are_told_apart() {
    test(async {
        let (agent, client) = connected().await;
        std::fs::write(agent.path("plain"), "x").unwrap();
        std::fs::write(agent.path("orphan"), "#!/nowhere/interpreter\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(agent.path("orphan"), mode).unwrap();
        let failed = |argv: Vec<&str>| Command::program(argv);
        let kinds = [
            (failed(vec!["no-such-program"]), "NotFound"),
            (failed(vec!["/no/such/program"]), "NotFound"),
            (failed(vec!["./plain"]), "NotExecutable"),
            (failed(vec!["/tmp"]), "NotExecutable"),
            (failed(vec!["./orphan"]), "NotExecutable"),
            (
                Command { dir: Some(common::path("missing")), ..failed(vec!["true"]) },
                "BadDirectory",
            ),
            (Command { dir: Some(common::path("plain")), ..failed(vec!["true"]) }, "BadDirectory"),
        ];
        for (command, expected) in kinds {
            let ExitStatus::StartFailed(failure) = status(&client, &command).await else {
                panic!("{command:?} started");
            };
            let kind = match &failure {
                StartFailure::NotFound(_) => "NotFound",
                StartFailure::NotExecutable(_) => "NotExecutable",
                StartFailure::BadDirectory(_) => "BadDirectory",
                StartFailure::NoResources(_) => "NoResources",
                StartFailure::NoSandbox(_) => "NoSandbox",
            };
            assert_eq!(kind, expected, "{command:?}: {failure:?}");
        }
    });
}

#[test]
fn arguments_that_no_program_can_be_given_are_a_lack_of_resources() {
    test(async {
        let (_agent, client) = connected().await;
        // One argument may have 128 KiB.
        let command = Command::program(["true".to_owned(), "x".repeat(200 * 1024)]);
        let failed = status(&client, &command).await;
        assert!(
            matches!(failed, ExitStatus::StartFailed(StartFailure::NoResources(_))),
            "{failed:?}"
        );
        let command = Command::program(["true".to_owned(), "x".repeat(300 * 1024)]);
        let error = client.spawn(&command, &[]).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::TooLarge);
        assert_eq!(status(&client, &sh("exit 3")).await, ExitStatus::Exited(3));
    });
}

#[test]
fn streams_stay_apart_and_in_order() {
    test(async {
        let (_agent, client) = connected().await;
        let line =
            "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done; printf '\\000\\377'";
        let done = run(&client, &sh(line)).await;
        let lines = |prefix| (1..=9).map(|i| format!("{prefix}{i}\n")).collect::<String>();
        assert_eq!(done.stdout, [lines("o").as_bytes(), &[0, 255]].concat());
        assert_eq!(String::from_utf8(done.stderr).unwrap(), lines("e"));
    });
}

#[test]
fn the_environment_is_what_was_given_and_the_directory_too() {
    test(async {
        let (agent, client) = connected().await;
        std::fs::create_dir(agent.path("inner")).unwrap();
        let mut command = Command::program(["/usr/bin/env"]);
        command.env.insert("ONLY".parse().unwrap(), "this".into());
        assert_eq!(run(&client, &command).await.stdout, b"ONLY=this\n");
        let command =
            Command { dir: Some(common::path("inner")), ..Command::program(["/bin/pwd"]) };
        let place = String::from_utf8(run(&client, &command).await.stdout).unwrap();
        assert_eq!(place.trim(), agent.path("inner").canonicalize().unwrap().to_str().unwrap());
    });
}

#[test]
fn a_program_has_no_descriptors_but_its_own() {
    test(async {
        let (_agent, client) = connected().await;
        let done = run(&client, &Command::program(["/bin/ls", "/proc/self/fd"])).await;
        // The fourth is the directory it reads.
        assert_eq!(done.stdout, b"0\n1\n2\n3\n");
        let signals = run(&client, &sh("grep -E '^Sig(Blk|Ign)' /proc/self/status")).await.stdout;
        let signals = String::from_utf8(signals).unwrap();
        assert!(signals.lines().all(|line| line.ends_with("0000000000000000")), "{signals}");
    });
}

#[test]
fn input_is_echoed_byte_for_byte() {
    test(async {
        let (_agent, client) = connected().await;
        let bytes: Vec<u8> =
            (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let command = Command { stdin: Stdin::Bytes(bytes.clone()), ..Command::program(["cat"]) };
        assert!(run(&client, &command).await.stdout == bytes);
        let command = Command { stdin: Stdin::Stream, ..Command::program(["cat"]) };
        let mut process = client.spawn(&command, &[]).await.unwrap();
        process.control.write_stdin(Bytes::from_static(b"one ")).await.unwrap();
        assert_eq!(read_until(&mut process, "one ").await, "one ");
        process.control.write_stdin(Bytes::from_static(b"two")).await.unwrap();
        process.control.close_stdin().await.unwrap();
        process.control.close_stdin().await.unwrap();
        let done = read_to_end(&mut process).await;
        assert_eq!(
            (done.stdout.as_slice(), done.exit.status),
            (&b"two"[..], ExitStatus::Exited(0))
        );
        process.control.write_stdin(Bytes::from_static(b"late")).await.unwrap();
    });
}

#[test]
fn input_nobody_reads_does_not_hold_up_the_writer_for_ever() {
    test(async {
        let (_agent, client) = connected().await;
        let command = Command { stdin: Stdin::Stream, ..sh("exec <&-; sleep 0.1; exit 7") };
        let mut process = client.spawn(&command, &[]).await.unwrap();
        process.control.write_stdin(Bytes::from(vec![7; 5_000_000])).await.unwrap();
        assert_eq!(read_to_end(&mut process).await.exit.status, ExitStatus::Exited(7));
    });
}

#[test]
fn a_terminal_has_the_size_asked_for_and_follows_a_resize() {
    test(async {
        let (_agent, client) = connected().await;
        let line = "test -t 0 && test -t 2 && stty size; trap 'stty size; exit 5' WINCH; echo ready; \
                    while :; do sleep 0.01; done";
        let terminal = Some(TerminalSize { rows: 11, cols: 22 });
        let command = Command { terminal, stdin: Stdin::Stream, ..sh(line) };
        let mut process = client.spawn(&command, &[]).await.unwrap();
        assert!(read_until(&mut process, "ready").await.contains("11 22"));
        process.control.resize(TerminalSize { rows: 33, cols: 44 }).await.unwrap();
        let done = read_to_end(&mut process).await;
        assert!(String::from_utf8_lossy(&done.stdout).contains("33 44"));
        assert!(done.stderr.is_empty());
        assert_eq!(done.exit.status, ExitStatus::Exited(5));
    });
}

#[test]
fn a_terminal_passes_input_and_its_end() {
    test(async {
        let (_agent, client) = connected().await;
        let terminal = Some(TerminalSize { rows: 24, cols: 80 });
        let stdin = Stdin::Bytes(b"hello\n".to_vec());
        let command = Command { terminal, stdin, ..sh("cat; tty; exit 4") };
        let done = run(&client, &command).await;
        assert!(String::from_utf8_lossy(&done.stdout).contains("/dev/pts/"));
        assert_eq!(done.exit.status, ExitStatus::Exited(4));
    });
}

#[test]
fn signals_reach_the_program_and_its_descendants() {
    test(async {
        let (_agent, client) = connected().await;
        let line = "sh -c 'trap \"echo inner; exit\" USR1; echo up; while :; do sleep 0.01; done' & \
                    trap 'wait; echo outer; exit 9' USR1; wait; wait";
        let mut process = client.spawn(&sh(line), &[]).await.unwrap();
        read_until(&mut process, "up").await;
        process.control.signal(Signal(10)).await.unwrap();
        let done = read_to_end(&mut process).await;
        assert_eq!(done.exit.status, ExitStatus::Exited(9));
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(text.contains("inner") && text.contains("outer"), "{text}");
        assert!(process.control.signal(Signal(65)).await.is_err());
    });
}

#[test]
fn limits_hold_for_the_program() {
    test(async {
        let (_agent, client) = connected().await;
        let limits = [(Limit::OpenFiles, 17), (Limit::CoreSize, 0), (Limit::CpuSeconds, 1)];
        let mut process = client.spawn(&sh("ulimit -n; ulimit -c"), &limits).await.unwrap();
        assert_eq!(read_to_end(&mut process).await.stdout, b"17\n0\n");
        let mut process = client.spawn(&sh("while :; do :; done"), &limits).await.unwrap();
        let done = read_to_end(&mut process).await;
        assert!(matches!(done.exit.status, ExitStatus::Signalled(Signal(9 | 24))));
        assert!(done.exit.cpu_time.unwrap().as_millis() > 0);
    });
}

#[test]
fn another_user_is_taken_where_that_is_possible_and_refused_where_not() {
    test(async {
        let (_agent, client) = connected().await;
        let command =
            Command { user: Some(User { uid: 12345, gid: 54321 }), ..sh("id -u; id -g; id -G") };
        let done = run(&client, &command).await;
        if rustix::process::geteuid().is_root() {
            assert_eq!(done.stdout, b"12345\n54321\n54321\n");
        } else {
            assert!(matches!(
                done.exit.status,
                ExitStatus::StartFailed(StartFailure::NotExecutable(_))
            ));
        }
    });
}

#[test]
fn many_processes_run_at_once() {
    test(async {
        let (_agent, client) = connected().await;
        let mut processes = Vec::new();
        for i in 0..100 {
            let command = sh(&format!("echo {i}; exit {i}"));
            processes.push(client.spawn(&command, &[]).await.unwrap());
        }
        for (i, process) in (0..).zip(&mut processes) {
            let done = read_to_end(process).await;
            assert_eq!(done.stdout, format!("{i}\n").into_bytes());
            assert_eq!(done.exit.status, ExitStatus::Exited(i));
        }
    });
}

#[test]
fn a_reader_that_does_not_read_holds_up_nobody_else() {
    test(async {
        let (_agent, client) = connected().await;
        let mut stalled = client.spawn(&Command::program(["yes"]), &[]).await.unwrap();
        let mut other =
            client.spawn(&sh("yes >&2 & head -c 3000000 /dev/zero"), &[]).await.unwrap();
        let mut seen = 0;
        while seen < 3_000_000 {
            match other.events.next().await.unwrap() {
                ProcessEvent::Output(StreamId::Stdout, data) => seen += data.len(),
                ProcessEvent::Output(StreamId::Stderr, _) => {}
                ProcessEvent::Exit(exit) => panic!("{exit:?} after {seen}"),
            }
        }
        assert_eq!(status(&client, &sh("exit 3")).await, ExitStatus::Exited(3));
        stalled.control.kill().await.unwrap();
        other.control.kill().await.unwrap();
        read_to_end(&mut stalled).await;
    });
}

#[test]
fn what_nobody_wants_is_counted_and_not_sent() {
    test(async {
        let (_agent, client) = connected().await;
        let script =
            "echo one; read go; head -c 3000000 /dev/zero; head -c 700000 /dev/zero >&2; exit 3";
        let command = Command { stdin: Stdin::Stream, ..sh(script) };
        let mut process = client.spawn(&command, &[]).await.unwrap();
        read_until(&mut process, "one\n").await;
        process.control.discard_output().await;
        process.control.write_stdin(Bytes::from_static(b"\n")).await.unwrap();
        let done = read_to_end(&mut process).await;
        assert_eq!((done.stdout.len(), done.stderr.len()), (0, 0));
        assert_eq!(done.exit.unsent, Unsent { stdout: 3_000_000, stderr: 700_000 });
        assert_eq!(done.exit.status, ExitStatus::Exited(3));
    });
}

mod needs_python {
    use super::*;

    #[test]
    fn a_flood_arrives_whole() {
        test(async {
            let (_agent, client) = connected().await;
            let script = "import os\nblock = bytes(range(256)) * 256\nfor _ in range(16384): os.write(1, block)";
            let mut process = client
                .spawn(&Command::program(["/usr/bin/env", "python3", "-c", script]), &[])
                .await
                .unwrap();
            let block: Vec<u8> = (0..=255).cycle().take(1 << 19).collect();
            let mut seen = 0usize;
            loop {
                match process.events.next().await.unwrap() {
                    ProcessEvent::Output(StreamId::Stdout, data) => {
                        assert!(
                            data == block[seen % 256..][..data.len()],
                            "wrong after {seen} bytes"
                        );
                        seen += data.len();
                    }
                    ProcessEvent::Output(StreamId::Stderr, data) => panic!("{data:?}"),
                    ProcessEvent::Exit(exit) => {
                        break assert_eq!(exit.status, ExitStatus::Exited(0));
                    }
                }
            }
            assert_eq!(seen, 1 << 30);
        });
    }
}
