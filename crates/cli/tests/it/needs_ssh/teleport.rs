//! Sandboxes that move to another host: a real server on loopback with a state directory of its own. What
//! fails on the way leaves the one here alive, and nothing there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::common;
use crate::common::CliDone;
use crate::common::lasting::{Lasting, eventually};
use crate::machines;
use crate::sshd::proxy::CuttableWire;
use crate::sshd::{Sshd, generate_key};

const STOCKADE_PROGRAM: &str = env!("CARGO_BIN_EXE_stockade");

/// Two hosts, one of which knows the way to the other.
struct TeleportRoute {
    here: Lasting,
    there: Lasting,
    sshd: Sshd,
}

impl TeleportRoute {
    fn new() -> Self {
        let (here, there) = (Lasting::new(), Lasting::new());
        let sshd = Sshd::with_env(&format!("STOCKADE_STATE_DIR={}", there.state().display()));
        let way = Self { here, there, sshd };
        way.by(&way.sshd.config());
        way
    }

    /// Has the other host found by this configuration of ssh.
    fn by(&self, config: &Path) {
        let dir = self.here.path("home/.config/stockade");
        fs::create_dir_all(&dir).unwrap();
        let text = format!("[[ssh.hosts]]\nname = \"far\"\nconfig = \"{}\"\n", config.display());
        fs::write(dir.join("config.toml"), text).unwrap();
    }

    /// A program for the peer that does this when it is called.
    fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.there.path(name);
        let script = script.replace("STOCKADE", STOCKADE_PROGRAM);
        let text = format!("#!/bin/sh\n[ \"$2\" = --speaks ] && exit 0\n{script}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn teleport(&self, id: &str, program: &Path, flags: &[&str]) -> CliDone {
        let program = program.to_str().unwrap();
        let args = ["teleport", id, "--to", "far", "--program", program];
        self.here.stockade(&[&args, flags].concat())
    }

    fn begin(&self, id: &str, program: &Path) -> Child {
        let program = program.to_str().unwrap();
        let args = ["teleport", id, "--to", "far", "--program", program];
        let mut command = self.here.command(&args);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// A sandbox with something in it that does not get smaller.
    fn sandbox(&self) -> String {
        let id = self.here.create(&["--no-workspace", "--env", "TOLD=hushhush"]);
        let fill = "echo kept > file; head -c 1000000 /dev/urandom > noise; echo tmp > /tmp/file";
        self.here.shell(&id, fill).is(0, "", "");
        id
    }

    /// The sandboxes there.
    fn arrived(&self) -> Vec<String> {
        let listed = self.there.stockade(&["ps", "-q"]).stdout;
        listed.lines().map(str::to_owned).collect()
    }

    fn nothing_there(&self) {
        eventually("nothing is there", || self.arrived().is_empty());
        stores_nothing(&self.there.state());
    }

    /// The one here goes on, nothing is there, and neither host stores anything.
    fn only_here(&self, id: &str) {
        self.here.shell(id, "cat file").is(0, "kept\n", "");
        self.nothing_there();
        stores_nothing(&self.here.state());
    }
}

/// Waits until no snapshot is stored or under way.
fn stores_nothing(state: &Path) {
    for part in ["objects", "named", "drafts"] {
        let dir = state.join("snapshots").join(part);
        eventually(&format!("{} is empty", dir.display()), || {
            fs::read_dir(&dir).into_iter().flatten().count() == 0
        });
    }
}

fn stockade() -> &'static Path {
    Path::new(STOCKADE_PROGRAM)
}

#[test]
fn a_sandbox_moves_with_its_files_and_its_environment() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let moved = way.teleport(&id, stockade(), &[]);
    assert_eq!((moved.code, &*moved.stderr), (0, ""), "{moved:?}");
    let arrived = moved.stdout.trim().to_owned();
    assert_ne!(arrived, id);
    // Its environment was never written down.
    let mut known = std::process::Command::new("grep");
    known.args(["-rl", "hushhush"]).args([way.here.state(), way.there.state()]);
    assert_eq!(String::from_utf8_lossy(&known.output().unwrap().stdout), "");
    let look = "cat file /tmp/file; stat -c %s noise; echo $TOLD";
    way.there.shell(&arrived, look).is(0, "kept\ntmp\n1000000\nhushhush\n", "");
    assert_eq!(way.arrived(), [arrived.as_str()]);
    way.here.assert_all_is_gone();
    for place in [&way.here, &way.there] {
        stores_nothing(&place.state());
    }
}

/// Script that counts in its memory alone.
const COUNTER_SCRIPT: &str = "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 0.2; done' \
                        > /dev/null 2>&1 < /dev/null &";

/// How far that has come, which may be writing just now.
fn count(place: &Lasting, id: &str) -> u64 {
    let told = place.shell(id, "until read n < /tmp/count; do :; done; echo $n");
    told.stdout.trim().parse().unwrap_or_else(|_| panic!("{told:?}"))
}

#[test]
fn one_that_is_kept_lives_on_and_each_copy_is_another() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let program = STOCKADE_PROGRAM;
    let told = way.here.json(&["teleport", &id, "--to", "far", "--program", program, "--keep"]);
    assert_eq!((&told["sandbox"], &told["host"]), (&id.as_str().into(), &"far".into()));
    assert_eq!((&told["kind"], &told["kept"]), (&"files".into(), &true.into()));
    way.teleport(&id, stockade(), &["--keep"]).code_is(0);
    assert_eq!(way.arrived().len(), 2);
    way.here.shell(&id, "cat file").is(0, "kept\n", "");
}

#[test]
fn a_host_without_the_program_is_given_this_one() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let moved = way.here.stockade(&["teleport", &id, "--to", "far"]);
    moved.code_is(0);
    let carried = way.sshd.cache().join("stockade/own");
    let versions: Vec<_> = fs::read_dir(&carried).unwrap().flatten().collect();
    assert_eq!(versions.len(), 1, "{versions:?}");
    let program = versions[0].path().join("stockade");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&program), mode(&carried)), (0o700, 0o700));
    way.there.shell(moved.stdout.trim(), "cat file").is(0, "kept\n", "");
    // One that was carried is found again.
    let made = fs::metadata(&program).unwrap().modified().unwrap();
    let id = way.sandbox();
    way.here.stockade(&["teleport", &id, "--to", "far"]).code_is(0);
    assert_eq!(fs::metadata(&program).unwrap().modified().unwrap(), made);
}

#[test]
fn what_does_not_belong_to_the_sandbox_alone_does_not_move() {
    let way = TeleportRoute::new();
    let mount = format!("{}:/data", way.here.workspace().display());
    for (flags, what) in [
        (&["--no-workspace", "--mount", &mount][..], "mount `/data`"),
        (&["--read-only"], "the read-only workspace"),
    ] {
        let id = way.here.create(flags);
        way.teleport(&id, stockade(), &[]).is_refused(&[what, "belongs to this host"]);
        way.here.shell(&id, "echo alive").is(0, "alive\n", "");
    }
    let image = way.here.path("image");
    fs::create_dir(&image).unwrap();
    let id = way.here.create(&["--no-workspace", "--image", &format!("dir:{}", image.display())]);
    way.teleport(&id, stockade(), &[]).is_refused(&["the image", "belongs to this host"]);
    let id = way.sandbox();
    way.here.stockade(&["exec", &id, "--detach", "--", "sleep", "600"]).code_is(0);
    way.teleport(&id, stockade(), &[]).is_refused(&["1 running", "--force"]);
    way.only_here(&id);
    way.teleport(&id, stockade(), &["--force"]).code_is(0);
    assert_eq!(way.arrived().len(), 1);
    let odd = way.here.stockade(&["teleport", &id, "--to", "-oProxyCommand=x"]);
    odd.code_is(125);
}

#[test]
fn what_arrives_names_nothing_of_the_host_it_arrives_on() {
    let place = Lasting::new();
    let mount = serde_json::json!({ "source": "/", "target": "/host", "readOnly": false });
    for (field, value) in [
        ("mounts", serde_json::json!([mount])),
        ("workspace", serde_json::json!({ "local": "/root" })),
        ("image", serde_json::json!({ "directory": "/" })),
        ("without", serde_json::json!(["memory-limit"])),
    ] {
        let passage = serde_json::json!({
            "spec": { field: value }, "idle": null, "lifetime": null, "of": null,
        });
        let mut command = place.command(&["arrive"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, format!("{passage}\n").as_bytes()).unwrap();
        drop(input);
        let done = common::wait(child);
        done.code_is(125);
        let named = format!("names things of the host it goes to: {field}");
        assert!(done.stdout.contains(&named), "{field}: {done:?}");
    }
    assert_eq!(place.stockade(&["ps", "-q"]).stdout, "");
}

#[test]
fn a_local_workspace_stays_and_its_content_moves() {
    let way = TeleportRoute::new();
    way.here.write("file", "kept\n");
    let id = way.here.create(&[]);
    let moved = way.teleport(&id, stockade(), &[]);
    moved.code_is(0);
    way.there.shell(moved.stdout.trim(), "cat file; rm file").is(0, "kept\n", "");
    assert_eq!(fs::read_to_string(way.here.workspace().join("file")).unwrap(), "kept\n");
}

#[test]
fn a_host_that_is_not_the_known_one_gets_nothing() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let other = way.sshd.cache().join("other");
    generate_key(&other);
    way.sshd.write_known_host("wrong", &other.with_extension("pub"));
    way.by(&way.sshd.write_client_config("wrong_key", way.sshd.port, "wrong"));
    way.teleport(&id, stockade(), &[]).is_refused(&["far", "not the one that is known"]);
    way.only_here(&id);
    assert!(!way.sshd.cache().join("stockade").exists(), "something was carried there");
}

#[test]
fn what_is_refused_changed_or_cut_off_on_the_way_leaves_nothing_there() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let refused = way.teleport(&id, stockade(), &["--backend", "nowhere"]);
    refused.is_refused(&["there is no backend `nowhere`"]);
    way.only_here(&id);
    let full = way.teleport(&id, stockade(), &["--kind", "full"]);
    full.is_refused(&["full-snapshot"]);
    way.only_here(&id);
    let changing = "{ head -c 200000; head -c 1 > /dev/null; printf x; cat; } | STOCKADE arrive";
    let changed = way.teleport(&id, &way.program("changing", changing), &[]);
    changed.is_refused(&["damaged"]);
    way.only_here(&id);
    let cutting = way.program("cutting", "head -c 200000 | STOCKADE arrive");
    way.teleport(&id, &cutting, &[]).is_refused(&["damaged", "cut off"]);
    way.only_here(&id);
    let dying = way.program("dying", "printf 'stockade-teleport 1\\n'; head -c 200000 > /dev/null");
    way.teleport(&id, &dying, &[]).is_refused(&["far", "the connection failed"]);
    way.only_here(&id);
    way.teleport(&id, stockade(), &[]).code_is(0);
}

#[test]
fn a_connection_that_is_cut_half_way_leaves_nothing_there() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let wire = CuttableWire::to(way.sshd.port);
    way.by(&way.sshd.write_client_config("wired", wire.port, "known_hosts"));
    wire.cut_after(300_000);
    let cut = way.teleport(&id, stockade(), &[]);
    cut.is_refused(&["far"]);
    way.only_here(&id);
    way.teleport(&id, stockade(), &[]).code_is(0);
    assert_eq!(way.arrived().len(), 1);
}

#[test]
fn one_that_is_killed_here_at_any_step_leaves_nothing_there() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let reached = way.there.path("reached");
    let mark = reached.display();
    let half = format!("{{ head -c 200000; touch {mark}; cat > /dev/null; }} | STOCKADE arrive");
    let made = format!("printf 'stockade-teleport 1\\n'; STOCKADE arrive > {mark}");
    for (script, sign) in [(half, ""), (made, "arrived")] {
        let client = way.begin(&id, &way.program("stopping", &script));
        eventually("it got this far", || {
            fs::read_to_string(&reached).is_ok_and(|text| text.contains(sign))
        });
        Lasting::slay(client);
        way.nothing_there();
        way.here.shell(&id, "cat file").is(0, "kept\n", "");
        // What the dead one held goes with the next that is removed.
        way.here.stockade(&["fork", &id]).code_is(0);
        stores_nothing(&way.here.state());
        fs::remove_file(&reached).unwrap();
    }
}

#[test]
fn a_lost_last_answer_leaves_both_and_a_second_try_replaces_the_one_there() {
    let way = TeleportRoute::new();
    let id = way.sandbox();
    let losing = "STOCKADE arrive | while read -r line; do case $line in *kept*) exit 1 ;; \
                  *) printf '%s\\n' \"$line\" ;; esac; done";
    let losing = way.program("losing", losing);
    let lost = way.teleport(&id, &losing, &[]);
    lost.is_refused(&["the last answer was lost", "the sandbox here is kept", "try again"]);
    let [first] = &way.arrived()[..] else { panic!("{:?}", way.arrived()) };
    assert!(lost.stderr.contains(first.as_str()), "{}", lost.stderr);
    way.here.shell(&id, "cat file; echo newer > file").is(0, "kept\n", "");
    let moved = way.teleport(&id, stockade(), &[]);
    moved.code_is(0);
    let second = moved.stdout.trim();
    assert_eq!(way.arrived(), [second], "instead of {first}");
    way.there.shell(second, "cat file").is(0, "newer\n", "");
    way.here.assert_all_is_gone();
    // A copy of it has not taken the place of another sandbox.
    let copy = way.there.stockade(&["fork", second]);
    copy.code_is(0);
    let label = |id: &str| way.there.listed(id).unwrap()["labels"]["teleported-from"].clone();
    assert_eq!(label(second), id.as_str());
    assert_eq!(label(copy.stdout.trim()), serde_json::Value::Null);
}

#[test]
fn a_host_may_be_this_one() {
    let here = Lasting::new();
    let sshd = Sshd::with_env(&format!("STOCKADE_STATE_DIR={}", here.state().display()));
    let way = TeleportRoute { there: Lasting::new(), here, sshd };
    way.by(&way.sshd.config());
    let id = way.sandbox();
    let moved = way.teleport(&id, stockade(), &[]);
    moved.code_is(0);
    let arrived = moved.stdout.trim();
    way.here.stockade(&["ps", "-q"]).is(0, &format!("{arrived}\n"), "");
    way.here.shell(arrived, "cat file").is(0, "kept\n", "");
    stores_nothing(&way.here.state());
}

mod needs_root {
    use super::*;

    #[test]
    fn a_host_that_can_run_no_program_is_refused_by_name() {
        let way = TeleportRoute { sshd: Sshd::with_disk("2g,noexec"), ..TeleportRoute::new() };
        way.by(&way.sshd.config());
        let id = way.sandbox();
        let refused = way.here.stockade(&["teleport", &id, "--to", "far"]);
        refused.is_refused(&["far", "this program cannot be run there", "install `stockade`"]);
        way.only_here(&id);
    }

    #[test]
    fn a_full_disk_there_is_told_and_leaves_nothing() {
        let way = TeleportRoute { sshd: Sshd::with_disk("1m"), ..TeleportRoute::new() };
        way.by(&way.sshd.config());
        let id = way.sandbox();
        way.here.shell(&id, "head -c 4000000 /dev/urandom > more").is(0, "", "");
        way.teleport(&id, stockade(), &[]).is_refused(&["No space left"]);
        let state = way.sshd.seen_there(&way.sshd.cache().join("state/stockade"));
        stores_nothing(&state);
        way.only_here(&id);
    }
}

mod needs_vm {
    use super::*;

    #[test]
    fn a_machine_moves_with_what_runs_in_it() {
        let way = TeleportRoute::new();
        let (root, store) = (machines::prepare_root(), machines::store_directory());
        let settings = format!("[microvm]\nroot = {root:?}\ncache = {store:?}\n");
        for place in [&way.here, &way.there] {
            let config = place.path("home/.config/stockade/config.toml");
            fs::create_dir_all(config.parent().unwrap()).unwrap();
            let before = fs::read_to_string(&config).unwrap_or_default();
            fs::write(&config, before + &settings).unwrap();
        }
        let home = way.there.path("home");
        let script = format!("HOME={} exec STOCKADE \"$@\"", home.display());
        let there = way.program("stockade", &script);
        let id = way.here.create(&["--backend", "microvm", "--no-workspace"]);
        way.here.shell(&id, COUNTER_SCRIPT).is(0, "", "");
        eventually("it counts", || count(&way.here, &id) > 3);
        let before = count(&way.here, &id);
        let moved = way.teleport(&id, &there, &[]);
        assert_eq!((moved.code, &*moved.stderr), (0, ""), "{moved:?}");
        let arrived = moved.stdout.trim();
        let after = count(&way.there, arrived);
        assert!(after >= before, "it began anew: {after}, and it was {before}");
        eventually("it counts on", || count(&way.there, arrived) > after);
        way.there.shell(arrived, "hostname").is(0, &format!("{arrived}\n"), "");
        way.here.assert_all_is_gone();
        for place in [&way.here, &way.there] {
            stores_nothing(&place.state());
        }
    }
}
