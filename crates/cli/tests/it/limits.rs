//! Limits as people without root and without a control group of their own have them: applied, told, and the
//! matter of one command.

use std::os::unix::fs::PermissionsExt;

use super::common::lasting::Lasting;
use super::common::{CliDone, CliPlace};

/// Script whose shell needs about 200 MB, and keeps them until it is looked at.
const MEMORY_HOG_SCRIPT: &str =
    "a=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 600; echo ${#a}";

/// Whether nothing but the watch holds this limit here, as the outcome says.
fn is_watched(place: &CliPlace, limit: &str, flags: &[&str]) -> bool {
    let done = place.stockade(&[&["run", "--json"], flags, &["true"]].concat());
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let limits = json["outcome"]["limits"].as_array().unwrap();
    let found = limits.iter().find(|one| one["limit"] == limit).unwrap();
    found["enforced"] == "partly"
}

#[test]
fn a_limit_that_is_named_is_applied_and_told_where_it_is_watched() {
    let place = CliPlace::of_an_ordinary_user();
    for (limit, flags) in [
        ("memory", ["--mem", "256m"]),
        ("cpu-time", ["--cpu-time", "30s"]),
        ("processes", ["--pids", "64"]),
    ] {
        let run =
            |more: &[&str]| place.stockade(&[&["run"], &flags[..], more, &["echo", "hi"]].concat());
        if !is_watched(&place, limit, &flags) {
            run(&["--strict"]).is(0, "hi\n", "");
            continue;
        }
        let done = run(&[]);
        assert_eq!((done.code, done.stdout.as_str()), (0, "hi\n"), "{done:?}");
        let told = format!("the {limit} limit of {} is watched, not exact", flags[1]);
        assert!(done.stderr.lines().count() == 1 && done.stderr.contains(&told), "{done:?}");
        run(&["--strict"]).is_refused(&[limit, "--strict"]);
        let mut configured = place.command(&[&["run"], &flags[..], &["echo", "hi"]].concat());
        configured.env("STOCKADE_STRICT", "true");
        super::common::finish(configured).is_refused(&[limit]);
    }
    // A default limit that was not asked for is not reported.
    place.stockade(&["run", "echo", "hi"]).is(0, "hi\n", "");
    place.assert_nothing_is_left();
}

/// Makes a sandbox; notes about its limits are ignored.
fn create(place: &Lasting, flags: &[&str]) -> String {
    let done = place.stockade(&[&["create"], flags].concat());
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.trim_end().to_owned()
}

fn is_ended_for(done: &CliDone, limit: &str) {
    assert_eq!(done.code, 137, "{done:?}");
    assert!(done.stderr.contains(&format!("ended: the {limit} limit")), "{done:?}");
}

#[test]
fn a_sandbox_can_be_used_again_after_a_limit_and_what_else_runs_in_it_goes_on() {
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        let place = Lasting(place);
        let id = create(&place, &["--mem", "64m", "--cpu-time", "2s"]);
        place.stockade(&["exec", "--detach", &id, "sleep", "600"]).code_is(0);
        let job = place.running(&id);
        is_ended_for(&place.shell(&id, MEMORY_HOG_SCRIPT), "memory");
        place.shell(&id, "echo again").is(0, "again\n", "");
        let busy = place.shell(&id, "while :; do :; done");
        is_ended_for(&busy, "cpu-time");
        let remedy = "(raise it with --timeout, or --cpu-time if you set that)";
        assert!(busy.stderr.contains(remedy), "{busy:?}");
        place.shell(&id, "echo again").is(0, "again\n", "");
        assert_eq!(place.running(&id), job);
    }
}

#[test]
fn what_is_only_reserved_is_no_memory() {
    let place = CliPlace::of_an_ordinary_user();
    let done = place.stockade(&["run", "--mem", "256m", "--shell", "ulimit -d; ulimit -v"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "unlimited\nunlimited\n"), "{done:?}");
}

#[test]
fn a_default_number_of_open_files_may_be_raised_and_a_named_one_may_not() {
    let place = CliPlace::of_an_ordinary_user();
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let done = place.stockade(&["run", "--shell", "ulimit -Sn; ulimit -Hn"]);
    let told: Vec<u64> = done.stdout.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(told[0], 1024.min(hard.unwrap_or(u64::MAX)), "{done:?}");
    assert!(hard.is_some_and(|hard| hard <= 1024) || told[1] >= 4096, "{done:?}");
    let named = ["run", "--open-files", "64", "--shell", "ulimit -Sn; ulimit -Hn"];
    place.stockade(&named).is(0, "64\n64\n", "");
}

#[test]
fn the_time_that_ran_out_is_the_commands_own() {
    let place = Lasting::new();
    let id = place.create(&[]);
    let done = place.stockade(&["exec", "--timeout", "300ms", &id, "sleep", "100"]);
    let reason =
        "stockade: timed out: the wall-time limit of 300ms ran out (raise it with --timeout)\n";
    done.is(124, "", reason);
}

#[test]
fn a_closed_directory_is_no_offence_but_hides_nothing() {
    let place = CliPlace::of_an_ordinary_user();
    // Long enough to be looked at several times.
    let closed = "mkdir closed && chmod 0 closed && sleep 1 && echo done";
    let done = place.stockade(&["run", "--disk", "64m", "--shell", closed]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "done\n"), "{done:?}");
    let hide = "mkdir hidden && chmod 300 hidden && \
                for i in 1 2 3 4 5 6; do head -c 40000000 /dev/urandom >hidden/$i; done; sleep 600";
    let hidden = ["run", "--disk", "64m", "--timeout", "10m", "--shell", hide];
    is_ended_for(&place.stockade(&hidden), "disk");
    for name in ["closed", "hidden"] {
        let path = place.workspace().join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
}

mod needs_python {
    use super::*;

    /// Reads a byte in each part of reserved memory that has a page table of its own. What is read is never
    /// resident: it is one page of zeros for all.
    const PAGE_TABLE_HOG: &str = "\
import mmap, time
reserved = mmap.mmap(-1, 1 << 38, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
for at in range(0, len(reserved), 2 << 20):
    reserved[at]
time.sleep(600)
";

    #[test]
    fn page_tables_are_memory() {
        for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
            let hog = ["run", "--mem", "64m", "--timeout", "10m", "python3", "-c", PAGE_TABLE_HOG];
            is_ended_for(&place.stockade(&hog), "memory");
        }
    }
}

/// As root another user can be taken, whose counts are no other program's.
mod needs_root_python {
    use super::super::common::lasting::eventually;
    use super::*;

    /// Passes descriptors that are never received until the kernel refuses more.
    const DESCRIPTOR_HOG_USER: u32 = 50_177;
    const DESCRIPTOR_HOG: &str = "\
import array, resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
pairs = []
try:
    while True:
        pairs.append(socket.socketpair())
        sender = pairs[-1][0]
        passed = array.array('i', [sender.fileno()] * 250)
        for _ in range(4):
            sender.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
except OSError as error:
    print(error.strerror, flush=True)
time.sleep(600)
";

    #[test]
    fn descriptors_that_a_guest_keeps_on_their_way_hold_up_no_other_sandbox() {
        // A user of its own: programs of the same user that pass descriptors would be refused meanwhile.
        let place = Lasting(CliPlace::of_user(DESCRIPTOR_HOG_USER));
        let id = create(&place, &["--no-workspace"]);
        place.stockade(&["exec", "--detach", &id, "python3", "-c", DESCRIPTOR_HOG]).code_is(0);
        eventually("the guest is refused more", || {
            place.stockade(&["logs", &id]).stdout.contains("Too many references")
        });
        place.stockade(&["run", "--no-workspace", "echo", "served"]).is(0, "served\n", "");
        place.stockade(&["kill", &id]).code_is(0);
    }
}

/// Root has control groups, and those count what they refuse.
mod needs_root {
    use super::*;

    #[test]
    fn a_process_that_was_refused_is_told() {
        let place = CliPlace::new();
        let fork = "i=0; while [ $i -lt 20 ]; do sleep 600 & i=$((i+1)); done";
        let done = place.stockade(&["run", "--pids", "8", "--shell", fork]);
        let told = "note: the processes limit of 8 was reached (raise it with --pids)";
        assert!(done.stderr.contains(told), "{done:?}");
        let done = place.stockade(&["run", "--json", "--pids", "8", "--shell", fork]);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(json["outcome"]["limitsReached"], serde_json::json!(["processes"]));
    }
}
