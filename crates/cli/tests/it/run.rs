//! `stockade run`: what comes out, what it ends with, and what the command finds inside.

use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::common;
use crate::common::{CliPlace, finish, wait};

#[test]
fn output_of_both_streams_arrives_byte_for_byte_with_the_exit_code() {
    let place = CliPlace::new();
    place.stockade(&["run", "--", "sh", "-c", "echo out; echo err >&2"]).is(0, "out\n", "err\n");
    place.stockade(&["run", "--", "sh", "-c", "printf a; exit 7"]).is(7, "a", "");
    place.stockade(&["run", "--shell", "printf '%s' \"$0\"; exit 2"]).is(2, "/bin/sh", "");
    place.assert_nothing_is_left();
}

#[test]
fn flags_end_where_the_command_begins() {
    let place = CliPlace::new();
    place.stockade(&["run", "echo", "--json", "-t"]).is(0, "--json -t\n", "");
    place.stockade(&["run", "--", "echo", "--", "--mem"]).is(0, "-- --mem\n", "");
}

#[test]
fn the_short_flags_of_container_engines_mean_the_same_here() {
    let place = CliPlace::new();
    std::fs::create_dir(place.path("more")).unwrap();
    std::fs::write(place.path("more/f"), "x").unwrap();
    let mount = format!("{}:/data:rw", place.path("more").display());
    let mut command = place.command(&[
        "run",
        "--rm",
        "-e",
        "A=1",
        "-eB",
        "-v",
        &mount,
        "-w",
        "/data",
        "-u",
        "7:8",
        "-m",
        "256m",
        "--without",
        "memory-limit",
        "-i",
        "--",
        "sh",
        "-c",
        "echo $A $B; pwd; cat f; id -u; cat",
    ]);
    command.env("B", "2");
    finish(command).is(0, "1 2\n/data\nx7\n", "");
}

#[test]
fn an_image_needs_no_prefix_where_it_has_a_name() {
    let place = CliPlace::new();
    for image in ["debian", "debian:12", "registry.example:5000/a/b"] {
        let run = ["run", "--pull", "never", "--image", image, "true"];
        place.stockade(&run).is_refused(&["no image", "stockade image ls"]);
    }
    place
        .stockade(&["run", "--image", "a/b@sha256:0", "true"])
        .is_refused(&["is no image's name", "digest"]);
    for image in ["./root", "/root", "dir:", ""] {
        place.stockade(&["run", "--image", image, "true"]).is_refused(&["is not an image"]);
    }
}

#[test]
fn a_command_that_does_not_start_says_why_and_ends_with_126_or_127() {
    let place = CliPlace::new();
    place.write("data", "no program");
    let missing = "stockade: cannot start: `no-such`: No such file or directory\n";
    place.stockade(&["run", "no-such"]).is(127, "", missing);
    let denied = "stockade: cannot start: `./data`: Permission denied\n";
    place.stockade(&["run", "./data"]).is(126, "", denied);
    let nowhere = "stockade: cannot start: cannot enter `nowhere`: No such file or directory\n";
    place.stockade(&["run", "--workdir", "nowhere", "true"]).is(126, "", nowhere);
    place.assert_nothing_is_left();
}

#[test]
fn a_signal_ends_it_with_128_and_its_number() {
    CliPlace::new().stockade(&["run", "--shell", "kill -SEGV $$"]).is(139, "", "");
}

#[test]
fn time_that_runs_out_ends_it_with_124() {
    let place = CliPlace::new();
    let reason =
        "stockade: timed out: the wall-time limit of 300ms ran out (raise it with --timeout)\n";
    place
        .stockade(&["run", "--timeout", "300ms", "--shell", "echo a; sleep 100"])
        .is(124, "a\n", reason);
    place.assert_nothing_is_left();
}

#[test]
fn a_limit_that_is_exceeded_is_named_and_ends_it_with_137() {
    let place = CliPlace::new();
    let eat = "a=$(head -c 200000000 /dev/zero | tr '\\0' x); echo $a | wc -c";
    // An ordinary user may have no control group; the default limit then holds as far as it goes.
    let done =
        place.stockade(&["run", "--mem", "24m", "--without", "memory-limit", "--shell", eat]);
    let reason = "stockade: ended: the memory limit of 24m was exceeded (raise it with --mem)\n";
    assert_eq!((done.code, done.stderr.as_str()), (137, reason));
}

#[test]
fn output_beyond_its_cap_is_dropped_and_counted() {
    let reason = "stockade: truncated: 6 bytes of stdout dropped beyond the output limit of 10b (raise it \
                  with --max-output)\n";
    let args = ["run", "--max-output", "10", "--shell", "echo 123456789012345; exit 3"];
    CliPlace::new().stockade(&args).is(3, "1234567890", reason);
}

#[test]
fn much_binary_output_passes_through_unchanged() {
    let place = CliPlace::new();
    let line = "head -c 8000000 /dev/zero | tr '\\0' '\\377' | tee /dev/stderr | cat";
    let mut command = place.command(&["run", "--shell", line]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    for stream in [output.stdout, output.stderr] {
        assert_eq!(stream.len(), 8_000_000);
        assert!(stream.iter().all(|byte| *byte == 0xff));
    }
}

#[test]
fn the_workspace_is_the_current_directory_and_can_be_changed() {
    let place = CliPlace::new();
    place.write("a", "1");
    place.stockade(&["run", "--shell", "pwd; cat a; echo 2 > b"]).is(0, "/workspace\n1", "");
    assert_eq!(std::fs::read_to_string(place.workspace().join("b")).unwrap(), "2\n");
    place.stockade(&["run", "--no-workspace", "ls"]).is(0, "", "");
}

#[test]
fn a_read_only_workspace_stays_as_it_is() {
    let place = CliPlace::new();
    place.write("a", "1");
    let done = place.stockade(&["run", "--read-only", "--shell", "cat a; echo 2 > a"]);
    assert_eq!(done.stdout, "1");
    assert!(done.code != 0 && done.stderr.contains("Read-only file system"), "{done:?}");
    assert_eq!(std::fs::read_to_string(place.workspace().join("a")).unwrap(), "1");
}

#[test]
fn mounts_are_read_only_unless_told_otherwise() {
    let place = CliPlace::new();
    let more = place.path("more");
    std::fs::create_dir(&more).unwrap();
    std::fs::write(more.join("f"), "x").unwrap();
    let source = more.display();
    let mount = format!("{source}:/data");
    let done =
        place.stockade(&["run", "--mount", &mount, "--shell", "cat /data/f; echo y > /data/f"]);
    assert!(done.code != 0 && done.stdout == "x", "{done:?}");
    let mount = format!("{source}:/data:rw");
    place.stockade(&["run", "--mount", &mount, "--shell", "echo y > /data/f"]).is(0, "", "");
    assert_eq!(std::fs::read_to_string(more.join("f")).unwrap(), "y\n");
}

#[test]
fn only_variables_that_were_named_are_inside() {
    let place = CliPlace::new();
    std::fs::write(place.path("vars"), "# a comment\n\nA=file\nexport B=two words\n").unwrap();
    let file = place.path("vars").display().to_string();
    let mut command = place.command(&[
        "run",
        "--env-file",
        &file,
        "--env",
        "A=flag",
        "--env",
        "PASSED",
        "--shell",
        "echo \"$A $B $PASSED ${SECRET-none}\"",
    ]);
    command.env("PASSED", "on").env("SECRET", "hunter2");
    finish(command).is(0, "flag two words on none\n", "");
}

#[test]
fn the_network_is_the_sandboxs_own_loopback_unless_it_is_none() {
    let place = CliPlace::new();
    // No server listens: an interface that is up refuses the connection.
    let line = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9"];
    let refused = |flags: &[&str]| {
        let done = place.stockade(&[&["run"], flags, &["--"], &line[..]].concat());
        assert_eq!(done.code, 1, "{done:?}");
        done.stderr.contains("Connection refused")
    };
    assert!(refused(&[]) && refused(&["--net", "loopback"]));
    assert!(!refused(&["--net", "none"]));
}

#[test]
fn who_fails_for_want_of_a_network_is_told_the_flag() {
    let place = CliPlace::new();
    let hint = "the network, and the sandbox has none";
    let reach = "exec 3<>/dev/tcp/192.0.2.1/80";
    for network in [&[][..], &["--net", "none"]] {
        for (command, told) in [
            (reach, true),
            ("getent hosts name.example", true),
            ("false", false),
            // It did without.
            ("getent hosts name.example || true", false),
        ] {
            let run = [&["run"], network, &["--", "bash", "-c", command]].concat();
            let ran = place.stockade(&run);
            assert_eq!(ran.stderr.contains(hint), told, "{run:?}: {ran:?}");
        }
    }
    let done = place.stockade(&["run", "--json", "--", "bash", "-c", reach]);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["outcome"]["networkUnreachable"], true, "{json}");
}

#[test]
fn language_time_zone_and_gits_identity_are_the_callers() {
    let place = CliPlace::new();
    std::fs::create_dir(place.path("home")).unwrap();
    let config = "[user]\n\tname = Ada B\n\temail = ada@example.org\n\tsigningkey = secret\n";
    std::fs::write(place.path("home/.gitconfig"), config).unwrap();
    let line = "echo $LANG $LC_TIME $TZ; echo \"$GIT_AUTHOR_NAME <$GIT_COMMITTER_EMAIL>\"; \
                env | grep -c secret";
    let mut command = place.command(&["run", "--env", "LC_TIME=C", "--shell", line]);
    command.env("LANG", "de_DE.UTF-8").env("LC_TIME", "fr_FR.UTF-8").env("TZ", "Asia/Tokyo");
    command.env("GIT_COMMITTER_EMAIL", "work@example.org");
    let expected = "de_DE.UTF-8 C Asia/Tokyo\nAda B <work@example.org>\n0\n";
    finish(command).is(1, expected, "");
}

#[test]
fn json_is_one_object_with_everything() {
    let place = CliPlace::new();
    let done = place.stockade(&["run", "--json", "--shell", "echo hi; printf '\\377' >&2; exit 4"]);
    assert_eq!((done.code, done.stderr.as_str()), (4, ""));
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(json["outcome"]["exitCode"], 4);
    assert_eq!(json["outcome"]["timedOut"], false);
    assert_eq!(json["backend"], "native");
    assert_eq!(json["boundary"], "shared-kernel");
    assert_eq!(json["stdout"], "hi\n");
    assert!(json.get("stdoutBase64").is_none());
    assert_eq!((&json["stderr"], &json["stderrBase64"]), (&"\u{fffd}".into(), &"/w==".into()));
    let job = json["job"].as_str().unwrap();
    assert!(place.stockade(&["audit", "show", job]).stdout.contains("exit 4"));
}

#[test]
fn two_at_once_do_not_see_each_other() {
    let place = CliPlace::new();
    let line = ["run", "--no-workspace", "--shell", "echo started; cat; ls; touch mine; ls"];
    let mut command = place.command(&[&line[..1], &["-i"], &line[1..]].concat());
    let (mut one, first) = common::start({
        command.stdin(Stdio::piped());
        command
    });
    assert_eq!(first, "started");
    place.stockade(&line).is(0, "started\nmine\n", "");
    drop(one.stdin.take());
    wait(one).is(0, "mine\n", "");
    place.assert_nothing_is_left();
}

#[test]
fn it_works_as_an_ordinary_user_and_without_a_home() {
    let place = CliPlace::of_an_ordinary_user();
    let mut command = place.command(&["run", "--shell", "echo 1 > a; cat a; id -u"]);
    command.env_remove("HOME");
    finish(command).is(0, "1\n1000\n", "");
    place.assert_nothing_is_left();
}

/// How the disk limit was enforced, as the outcome says.
fn disk_limit(place: &CliPlace, flags: &[&str]) -> serde_json::Value {
    let done = place.stockade(&[&["run", "--json"], flags, &["true"]].concat());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let limits = json["outcome"]["limits"].as_array().unwrap();
    limits.iter().find(|one| one["limit"] == "disk").unwrap()["enforced"].clone()
}

#[test]
fn a_disk_limit_that_is_named_is_exact_where_it_can_be_and_else_told_to_be_watched() {
    let place = CliPlace::new();
    for private in [&["--read-only"][..], &["--no-workspace"]] {
        let flags = [&["--disk", "64m", "--strict"], private].concat();
        place.stockade(&[&["run"], &flags[..], &["true"]].concat()).is(0, "", "");
        assert_eq!(disk_limit(&place, &flags), "fully");
    }
    let done = place.stockade(&["run", "--disk", "64m", "true"]);
    assert_eq!((done.code, done.stderr.lines().count()), (0, 1), "{done:?}");
    assert!(done.stderr.contains("the disk limit of 64m is watched, not exact"), "{done:?}");
    assert_eq!(disk_limit(&place, &["--disk", "64m"]), "partly");
    // A default limit that was not asked for is not reported.
    place.stockade(&["run", "true"]).is(0, "", "");
}

#[test]
fn strict_refuses_a_limit_that_is_only_watched_and_never_names_what_was_said() {
    let place = CliPlace::new();
    let strict = ["run", "--strict", "--disk", "64m"];
    place.stockade(&[&strict[..], &["true"]].concat()).is_refused(&["disk", "--read-only"]);
    let said = ["--read-only", "--writable-root", "true"];
    let done = place.stockade(&[&strict[..], &said].concat());
    done.is_refused(&["disk", "leave --writable-root out"]);
    assert!(!done.stderr.contains("--read-only"), "{done:?}");
}

#[test]
fn private_places_share_one_disk_limit() {
    let place = CliPlace::new();
    let line = "head -c 700000 /dev/zero >/tmp/a && head -c 700000 /dev/zero >b && echo both fit";
    let done = place.stockade(&["run", "--no-workspace", "--disk", "1m", "--shell", line]);
    assert_eq!((done.code != 0, done.stdout.as_str()), (true, ""), "{done:?}");
    assert!(done.stderr.contains("No space left"), "{done:?}");
    let line =
        "head -c 700000 /dev/zero >b && rm b && head -c 700000 /dev/zero >/tmp/a && stat -c %a .";
    place.stockade(&["run", "--no-workspace", "--disk", "1m", "--shell", line]).is(0, "755\n", "");
}

mod needs_root {
    use super::*;

    #[test]
    fn root_works_on_another_users_workspace_as_that_user() {
        let place = CliPlace::new();
        place.write("theirs", "before");
        for path in [place.workspace(), place.workspace().join("theirs")] {
            std::os::unix::fs::chown(path, Some(50_321), Some(50_322)).unwrap();
        }
        place
            .stockade(&["run", "--shell", "id -u; echo after >theirs; : >new"])
            .is(0, "1000\n", "");
        let new = std::fs::metadata(place.workspace().join("new")).unwrap();
        assert_eq!((new.uid(), new.gid()), (50_321, 50_322));
        assert_eq!(std::fs::read_to_string(place.workspace().join("theirs")).unwrap(), "after\n");
        place.assert_nothing_is_left();
    }

    #[test]
    fn a_file_system_of_the_kernel_is_not_shown_wherever_it_is_mounted() {
        let place = CliPlace::new();
        std::fs::create_dir_all(place.workspace().join("chroot/proc")).unwrap();
        for options in
            ["", "--read-only", "--workspace chroot", "--no-workspace --mount chroot:/shown"]
        {
            // The mount ends with its namespace.
            let line = format!(
                "mount -t proc proc chroot/proc; exec stockade run {options} -- cat /proc/1/comm"
            );
            let done = finish(place.script(&format!("exec unshare --mount sh -ec '{line}'")));
            done.is_refused(&["chroot/proc", "the host's kernel"]);
        }
    }
}
