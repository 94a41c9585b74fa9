//! The driver against a program that stands in for Firecracker, and against Firecracker itself where
//! there is one. The program is started, asked and killed like the real one, inside native walls like
//! the real one; only what it does inside is made up.

mod fake;
mod live;
#[path = "../../../../../tck/tests/it/ordinary/mod.rs"]
mod ordinary;
mod schema;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use stockade_core::{Backend, Boundary, Bytes, Error, ErrorCode, Millicores, SandboxId};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::api::{Method, SocketDir, send_request};
use super::{Firecracker, FirecrackerSettings, Jailer, Patience, jail};
use crate::linux::find;
use crate::microvm::driver::{Driver, MachineDisk, MachineSpec, Saved, Vm};
use crate::native::Native;

const NEWEST_VERSION: &str = "1.16.1";
const MEMORY_SIZE: Bytes = Bytes::mib(4);

/// Timeouts of the tests: the defaults, except where a test waits for one to pass, which is then short,
/// but long enough for a loaded machine.
const TEST_TIMEOUTS: Patience = super::DEFAULT_TIMEOUTS;
const SHORT_TIMEOUT: Duration = Duration::from_secs(5);

/// A directory with a fake of its own in it.
struct Rig {
    dir: TempDir,
    /// Name prefix of all its machines, which no others on this host have.
    name: String,
    patience: Patience,
    jailed: bool,
}

impl Rig {
    fn new(mode: &str) -> Self {
        Self::with_version(NEWEST_VERSION, mode)
    }

    fn with_version(version: &str, mode: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rig = Self { dir, name: new_name(), patience: TEST_TIMEOUTS, jailed: false };
        for name in ["kernel", "initramfs", "root.img", "work.img"] {
            fs::write(rig.path(name), name).unwrap();
        }
        rig.write_program("firecracker", &become_fake(version, mode));
        rig
    }

    /// One whose machines are in Firecracker's own jail, which only root can build.
    fn jailed(version: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can run Firecracker's jailer");
            return None;
        }
        let rig = Self { jailed: true, ..Self::with_version(version, "") };
        rig.write_program("jailer", JAILER_SCRIPT);
        Some(rig)
    }

    /// The sandbox of the machine in this room.
    fn id(&self, room: &str) -> SandboxId {
        format!("{}{room}", self.name).parse().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_program(&self, name: &str, script: &str) {
        // Written by another process: one that this one happens to fork meanwhile would hold the file
        // open, and what is open for writing cannot be executed.
        let mut writer = Command::new("/bin/sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(self.path(name))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        write!(writer.stdin.take().unwrap(), "#!/bin/sh\n{script}\n").unwrap();
        assert!(writer.wait().unwrap().success());
    }

    fn settings(&self) -> FirecrackerSettings {
        let jailer = Jailer { binary: self.path("jailer"), uid: 12345, gid: 12346 };
        FirecrackerSettings {
            binary: self.path("firecracker"),
            kernel: None,
            cpu_template: None,
            jailer: self.jailed.then_some(jailer),
        }
    }

    async fn open(&self) -> Result<Firecracker, Error> {
        self.open_with(self.settings()).await
    }

    async fn open_with(&self, settings: FirecrackerSettings) -> Result<Firecracker, Error> {
        Firecracker::open_with_timeouts(settings, Arc::new(Native::new()), self.patience).await
    }

    fn build_machine(&self) -> MachineSpec {
        // Inside walls the fake is made of what is shown there anyway.
        let root = match self.jailed {
            true => self.path("root.img"),
            false => std::env::current_exe().unwrap(),
        };
        let disk = |path, read_only| MachineDisk { path, read_only };
        MachineSpec {
            kernel: self.path("kernel"),
            initramfs: self.path("initramfs"),
            command_line: "console=ttyS0 panic=1".into(),
            memory: MEMORY_SIZE,
            cpus: 2,
            cpu_rate: None,
            disks: vec![disk(root, true), disk(self.path("work.img"), false)],
        }
    }

    /// A new directory for a machine or a snapshot.
    fn make_room(&self, name: &str) -> PathBuf {
        fs::create_dir(self.path(name)).unwrap();
        self.path(name)
    }

    /// What the process of the machine in this room calls so.
    fn path_inside(&self, room: &str, name: &str) -> PathBuf {
        let room = self.path(room);
        let inner = if self.jailed { room } else { room.join(jail::ROOM_DIR) };
        inner.join(name)
    }

    async fn boot(&self, room: &str) -> Result<Box<dyn Vm>, Error> {
        self.boot_as(self.build_machine(), room).await
    }

    async fn boot_as(&self, machine: MachineSpec, room: &str) -> Result<Box<dyn Vm>, Error> {
        self.open().await.unwrap().boot(&self.id(room), &machine, &self.make_room(room)).await
    }

    async fn resume(&self, saved: &str, room: &str) -> Result<Box<dyn Vm>, Error> {
        let (saved, machine) = (Saved::within(&self.path(saved)), self.build_machine());
        self.open()
            .await
            .unwrap()
            .resume(&self.id(room), &machine, &saved, &self.make_room(room))
            .await
    }

    /// What a machine's process was asked, once it is certain that nothing of it was wrong.
    fn read_requests(&self, room: &str) -> Vec<(String, String, Value)> {
        let wrong =
            fs::read_to_string(self.path_inside(room, fake::VIOLATIONS_LOG)).unwrap_or_default();
        assert_eq!(wrong, "", "requests that the published API does not have");
        let asked =
            fs::read_to_string(self.path_inside(room, fake::REQUESTS_LOG)).unwrap_or_default();
        asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn request_paths(&self, room: &str) -> Vec<String> {
        self.read_requests(room)
            .into_iter()
            .map(|(method, path, _)| format!("{method} {path}"))
            .collect()
    }

    /// The kinds of all snapshots that were asked for.
    fn snapshot_kinds(&self, room: &str) -> Vec<String> {
        let saves =
            self.read_requests(room).into_iter().filter(|(_, path, _)| path == "/snapshot/create");
        saves.map(|(_, _, body)| body["snapshot_type"].as_str().unwrap().to_owned()).collect()
    }

    /// The process of the machine in this room.
    fn find_process(&self, room: &str) -> i32 {
        let id = self.id(room);
        let all: Vec<_> =
            find::list_pids().filter(|pid| jail::is_process_of_machine(*pid, &id)).collect();
        let [pid] = all[..] else { panic!("one process, and not {all:?}") };
        pid
    }

    /// What a machine's process found under a name in its directory: how it begins.
    fn found_file(&self, room: &str, name: &str) -> String {
        let found = fs::read_to_string(self.path_inside(room, fake::FOUND_FILES_LOG)).unwrap();
        let name = format!("{name} ");
        found.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned()
    }

    /// What there is of its machines on this host.
    async fn find_leftovers(&self) -> Vec<String> {
        find_leftovers_of(&self.name, self.dir.path()).await
    }

    async fn wait_until_gone(&self) {
        wait_until_gone(&self.name, self.dir.path()).await;
    }

    /// The pages of a saved memory that hold anything, with what they hold.
    fn saved_pages(&self, saved: &str) -> Vec<(u64, u8)> {
        let memory = fs::File::open(self.path(saved).join("memory")).unwrap();
        assert_eq!(memory.metadata().unwrap().len(), MEMORY_SIZE.0);
        fake::read_pages(&memory, MEMORY_SIZE.0).into_iter().collect()
    }
}

fn new_name() -> String {
    static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("fake{}x{number}y", std::process::id())
}

/// A script that is Firecracker to everybody who does not look inside.
fn become_fake(version: &str, mode: &str) -> String {
    let own = std::env::current_exe().unwrap();
    let test = "microvm::firecracker::tests::fake::becomes_the_fake";
    format!(
        "[ \"$1\" = --version ] && {{ echo 'Firecracker v{version}'; exit 0; }}\n\
         own=./disk0; [ -x $own ] || own='{}'\n\
         {}='{mode}' {}='{version}' exec \"$own\" --exact --ignored --nocapture {test} -- \"$@\"",
        own.display(),
        fake::MODE_VARIABLE,
        fake::VERSION_VARIABLE,
    )
}

/// What there is on this host of machines whose names begin so and that work below this directory: processes,
/// by their arguments or their mounts, walls and control groups.
async fn find_leftovers_of(name: &str, dir: &Path) -> Vec<String> {
    let dir = dir.file_name().unwrap().to_str().unwrap().to_owned();
    let read = |pid: i32, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let has = |text: Vec<u8>, part: &str| String::from_utf8_lossy(&text).contains(part);
    let processes = find::list_pids()
        .filter(|pid| has(read(*pid, "cmdline"), name) || has(read(*pid, "mountinfo"), &dir))
        .map(|pid| format!("process {pid}"));
    let listed = Native::new().list().await.unwrap().into_iter();
    let walls = listed.filter(|id| id.as_str().starts_with(name)).map(|id| format!("walls {id}"));
    processes.chain(walls).collect()
}

async fn wait_until_gone(name: &str, dir: &Path) {
    let began = Instant::now();
    loop {
        let left = find_leftovers_of(name, dir).await;
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "they stay: {left:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The leftovers of a machine that is gone: none.
const NO_LEFTOVERS: [String; 0] = [];

async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn assert_refused<T>(result: Result<T, Error>, code: ErrorCode, parts: &[&str]) -> String {
    let Err(error) = result else { panic!("it was granted, with {parts:?} expected") };
    let text = error.to_string();
    assert_eq!(error.code(), code, "{text}");
    assert!(error.hint().is_some(), "no remedy: {text}");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains('\u{1b}') && text.len() < 4096, "{text}");
    text
}

async fn assert_says_hello(vm: &dyn Vm) {
    let mut stream = vm.connect().await.unwrap();
    stream.write_all(b"you").await.unwrap();
    let mut said = [0; 9];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"hello you");
}

#[tokio::test]
async fn a_machine_is_configured_as_published_and_started_last() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    assert_says_hello(&*vm).await;
    let asked = rig.read_requests("a");
    let find = |path: &str| &asked.iter().find(|(_, asked, _)| asked == path).unwrap().2;
    assert_eq!(find("/machine-config")["mem_size_mib"], 4);
    assert_eq!(find("/machine-config")["vcpu_count"], 2);
    assert_eq!(find("/boot-source")["boot_args"], "console=ttyS0 panic=1");
    assert_eq!(find("/drives/disk0")["is_read_only"], true);
    assert_eq!(find("/drives/disk1")["is_read_only"], false);
    assert_eq!(rig.request_paths("a").last().unwrap(), "PUT /actions");
    // Nothing that a machine remembers may name this host's directories.
    let all = serde_json::to_string(&asked).unwrap();
    assert!(!all.contains(rig.dir.path().to_str().unwrap()), "{all}");
    vm.end().await.unwrap();
}

#[tokio::test]
async fn the_boundary_is_the_processors() {
    assert_eq!(Rig::new("").open().await.unwrap().boundary(), Boundary::Hardware);
}

#[tokio::test]
async fn the_settings_give_another_kernel_and_a_cpu_template() {
    let rig = Rig::new("");
    fs::write(rig.path("other"), "another kernel").unwrap();
    let text =
        r#"{"kvm_capabilities": ["!56"], "msr_modifiers": [{"addr": "0x10a", "bitmap": "0b0"}]}"#;
    fs::write(rig.path("cpu.json"), text).unwrap();
    let settings = FirecrackerSettings {
        kernel: Some(rig.path("other")),
        cpu_template: Some(rig.path("cpu.json")),
        ..rig.settings()
    };
    let driver = rig.open_with(settings).await.unwrap();
    let vm = driver.boot(&rig.id("a"), &rig.build_machine(), &rig.make_room("a")).await.unwrap();
    assert_eq!(rig.found_file("a", "kernel"), "another kernel");
    assert!(rig.request_paths("a").contains(&"PUT /cpu-config".to_owned()));
    vm.end().await.unwrap();
}

#[test]
fn another_binary_kernel_or_cpu_template_is_another_machine() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["binary", "kernel-1", "kernel-2", "cpu.json"] {
        fs::write(path(name), name).unwrap();
    }
    std::os::unix::fs::symlink("kernel-1", path("kernel")).unwrap();
    let settings = |kernel: Option<&str>, cpu_template: Option<&str>| FirecrackerSettings {
        binary: path("binary"),
        kernel: kernel.map(path),
        cpu_template: cpu_template.map(path),
        jailer: None,
    };
    let all = [
        settings(None, None),
        settings(Some("kernel"), None),
        settings(Some("kernel-2"), None),
        settings(None, Some("cpu.json")),
        settings(Some("kernel"), Some("cpu.json")),
    ];
    let told: std::collections::BTreeSet<_> =
        all.iter().map(FirecrackerSettings::fingerprint).collect();
    assert_eq!(told.len(), all.len(), "{told:?}");
    // The same name for another file.
    let linked = settings(Some("kernel"), None);
    let before = linked.fingerprint();
    assert_eq!(before, settings(Some("kernel-1"), None).fingerprint());
    fs::write(path("kernel-1"), "another kernel").unwrap();
    assert_ne!(linked.fingerprint(), before);
}

#[tokio::test]
async fn a_cpu_template_that_is_none_is_refused_before_anything_starts() {
    let rig = Rig::new("");
    fs::write(rig.path("list"), "[]").unwrap();
    fs::write(rig.path("long"), vec![b' '; 60_000]).unwrap();
    for (name, reason) in [("list", "is not an object"), ("long", "has 60000 bytes")] {
        let settings = FirecrackerSettings { cpu_template: Some(rig.path(name)), ..rig.settings() };
        assert_refused(rig.open_with(settings).await, ErrorCode::Invalid, &[reason, name]);
    }
    let settings = FirecrackerSettings { cpu_template: Some(rig.path("none")), ..rig.settings() };
    assert_refused(
        rig.open_with(settings).await,
        ErrorCode::Unavailable,
        &["none", "cannot be read"],
    );
}

#[test]
fn settings_with_an_unknown_field_are_refused_by_its_name() {
    let error = serde_json::from_str::<FirecrackerSettings>(r#"{"binary": "/f", "jailor": {}}"#)
        .unwrap_err();
    assert!(error.to_string().contains("jailor"), "{error}");
    let read: FirecrackerSettings = serde_json::from_str(r#"{"binary": "/f"}"#).unwrap();
    assert_eq!((read.kernel, read.jailer), (None, None));
}

#[tokio::test]
async fn an_old_version_is_refused_by_number() {
    let error = Rig::with_version("1.9.4", "").open().await;
    assert_refused(error, ErrorCode::Unavailable, &["1.9.4", "1.10.0", "newer Firecracker"]);
}

#[tokio::test]
async fn what_is_not_firecracker_is_refused() {
    let rig = Rig::new("");
    rig.write_program("firecracker", "echo QEMU emulator version 7.2.0");
    assert_refused(
        rig.open().await,
        ErrorCode::Unavailable,
        &["does not answer as Firecracker does"],
    );
    rig.write_program("firecracker", "echo 'Firecracker v1.16.0'; exit 3");
    assert_refused(rig.open().await, ErrorCode::Unavailable, &["failed", "3"]);
    rig.write_program(
        "firecracker",
        "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
    );
    assert_refused(rig.open().await, ErrorCode::Unavailable, &["--version"]);
    let settings = FirecrackerSettings { binary: rig.path("missing"), ..rig.settings() };
    assert_refused(rig.open_with(settings).await, ErrorCode::Unavailable, &["missing", "started"]);
}

#[tokio::test]
async fn a_version_that_is_never_said_is_not_waited_for() {
    let mut rig = Rig::new("");
    rig.patience.soon = SHORT_TIMEOUT;
    rig.write_program("firecracker", "exec sleep 1000");
    assert_refused(rig.open().await, ErrorCode::Unavailable, &["did not answer within 5s"]);
}

#[tokio::test]
async fn too_many_processors_are_refused_before_anything_starts() {
    let rig = Rig::new("");
    for cpus in [0, 33] {
        let machine = MachineSpec { cpus, ..rig.build_machine() };
        let booted = rig.open().await.unwrap().boot(&rig.id("a"), &machine, &rig.path("a")).await;
        assert_refused(booted, ErrorCode::Invalid, &["1 to 32"]);
    }
}

/// Whether each thread of the machine in this room is stopped by the kernel.
fn threads_stopped(rig: &Rig, room: &str) -> Vec<bool> {
    let threads = fs::read_dir(format!("/proc/{}/task", rig.find_process(room))).unwrap();
    let stat = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat")).unwrap();
    threads.map(|thread| stat(thread.unwrap()).contains(") T ")).collect()
}

#[tokio::test]
async fn a_machine_that_is_paused_stands_still_and_is_spoken_to_again_when_it_goes_on() {
    for version in ["1.10.1", NEWEST_VERSION] {
        let rig = Rig::with_version(version, "");
        let vm = rig.boot("a").await.unwrap();
        let mut open = vm.connect().await.unwrap();
        let before = rig.request_paths("a").len();
        for _ in 0..2 {
            vm.unpause().await.unwrap();
            vm.pause().await.unwrap();
            vm.pause().await.unwrap();
            assert!(threads_stopped(&rig, "a").iter().all(|stopped| *stopped), "{version}");
        }
        vm.unpause().await.unwrap();
        assert!(threads_stopped(&rig, "a").iter().all(|stopped| !stopped), "{version}");
        // The connection that there was, and another one.
        open.write_all(b"you").await.unwrap();
        let mut said = [0; 9];
        let heard = tokio::time::timeout(4 * SHORT_TIMEOUT, open.read_exact(&mut said)).await;
        heard.unwrap_or_else(|_| panic!("{version}: nothing goes through")).unwrap();
        assert_eq!(&said, b"hello you");
        assert_says_hello(&*vm).await;
        // Firecracker's own pause would have cost the guest its connections.
        assert_eq!(rig.request_paths("a").len(), before);
        vm.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_machine_that_is_paused_is_saved_and_goes_on() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    vm.pause().await.unwrap();
    vm.save(&rig.make_room("saved")).await.unwrap();
    vm.pause().await.unwrap();
    vm.unpause().await.unwrap();
    assert_says_hello(&*vm).await;
    vm.end().await.unwrap();
}

#[tokio::test]
async fn a_machine_that_is_paused_is_ended_as_it_is() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    let before = rig.request_paths("a").len();
    vm.pause().await.unwrap();
    vm.end().await.unwrap();
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
    assert_eq!(rig.request_paths("a").len(), before, "it was asked for something");
    // Nor is one that has ended stopped.
    assert_refused(vm.unpause().await, ErrorCode::Gone, &["cannot be stopped or continued"]);
}

#[tokio::test]
async fn the_stand_in_holds_the_vsock_back_after_a_plain_pause_from_1_16_on() {
    for (version, answered) in [("1.15.0", true), (NEWEST_VERSION, false)] {
        let rig = Rig::with_version(version, "");
        let vm = rig.boot("a").await.unwrap();
        let sockets = SocketDir::open(&rig.path_inside("a", "")).unwrap();
        for state in ["Paused", "Resumed"] {
            let body = serde_json::json!({ "state": state });
            send_request(&sockets, &Method::PATCH, "/vm", &body, SHORT_TIMEOUT).await.unwrap();
        }
        let mut stream = sockets.connect("vsock").await.unwrap();
        stream.write_all(b"CONNECT 1024\n").await.unwrap();
        let connected = || fs::read_to_string(rig.path_inside("a", "connected")).is_ok();
        wait_until("it hears", connected).await;
        match answered {
            true => assert_eq!(stream.read_u8().await.unwrap(), b'O'),
            // It never is: a short look does.
            false => {
                let first = tokio::time::timeout(Duration::from_millis(100), stream.read_u8());
                assert!(first.await.is_err());
            }
        }
        vm.end().await.unwrap();
    }
}

#[tokio::test]
async fn every_snapshot_is_whole_though_only_what_changed_is_asked_for() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    vm.save(&rig.make_room("one")).await.unwrap();
    assert_eq!(rig.saved_pages("one"), [(0, 1)]);
    // It goes on, and writes another page.
    vm.unpause().await.unwrap();
    vm.save(&rig.make_room("two")).await.unwrap();
    assert_eq!(rig.saved_pages("two"), [(0, 1), (1, 2)]);
    assert_eq!(rig.snapshot_kinds("a"), ["Diff", "Diff"]);
    assert_eq!(rig.saved_pages("one"), [(0, 1)]);
    vm.end().await.unwrap();
    // A clone of the second, saved again, though its base has no name any more.
    let clone = rig.resume("two", "b").await.unwrap();
    fs::remove_file(rig.path("two/memory")).unwrap();
    clone.save(&rig.make_room("three")).await.unwrap();
    assert_eq!(rig.saved_pages("three"), [(0, 1), (1, 2), (2, 3)]);
    assert_eq!(rig.snapshot_kinds("b"), ["Diff"]);
    clone.end().await.unwrap();
}

#[tokio::test]
async fn a_machine_stands_still_from_its_snapshot_on() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    for saved in ["one", "two"] {
        vm.save(&rig.make_room(saved)).await.unwrap();
        assert_eq!(rig.request_paths("a").last().unwrap(), "PUT /snapshot/create");
    }
    assert_eq!((rig.saved_pages("one"), rig.saved_pages("two")), (vec![(0, 1)], vec![(0, 1)]));
    vm.unpause().await.unwrap();
    assert_eq!(rig.request_paths("a").last().unwrap(), "PATCH /vm");
    vm.end().await.unwrap();
}

#[tokio::test]
async fn after_a_snapshot_that_failed_the_next_is_a_full_one_and_the_machine_can_go_on() {
    let rig = Rig::new("refuse-once /snapshot/create");
    let vm = rig.boot("a").await.unwrap();
    let one = rig.make_room("one");
    let parts = ["snapshot on microvm", "`PUT /snapshot/create`", "answered 400: Invalid"];
    assert_refused(vm.save(&one).await, ErrorCode::WallMissing, &parts);
    assert_eq!(fs::read_dir(&one).unwrap().count(), 0);
    vm.unpause().await.unwrap();
    vm.save(&rig.make_room("two")).await.unwrap();
    assert_eq!(rig.snapshot_kinds("a"), ["Diff", "Full"]);
    assert_eq!(rig.saved_pages("two"), [(0, 1), (1, 2)]);
    let left = ["saved-state", "saved-memory"].map(|name| rig.path_inside("a", name).exists());
    assert_eq!(left, [false, false]);
    vm.end().await.unwrap();
}

#[tokio::test]
async fn a_save_that_was_given_up_half_way_spoils_neither_the_machine_nor_the_next() {
    let rig = Rig::new("silent-once /snapshot/create");
    let vm = rig.boot("a").await.unwrap();
    let one = rig.make_room("one");
    tokio::select! {
        _ = vm.save(&one) => panic!("it is silent"),
        () = wait_until("it is asked", || rig.snapshot_kinds("a").len() == 1) => {}
    }
    vm.unpause().await.unwrap();
    assert_eq!(rig.request_paths("a").last().unwrap(), "PATCH /vm");
    vm.save(&rig.make_room("two")).await.unwrap();
    assert_eq!(rig.snapshot_kinds("a"), ["Diff", "Full"]);
    assert_eq!(rig.saved_pages("two"), [(0, 1), (1, 2)]);
    vm.end().await.unwrap();
}

#[tokio::test]
async fn after_a_save_that_was_given_up_at_its_pause_the_machine_can_go_on() {
    let rig = Rig::new("silent-once /vm");
    let vm = rig.boot("a").await.unwrap();
    let saved = rig.make_room("saved");
    tokio::select! {
        _ = vm.save(&saved) => panic!("it is silent"),
        () = wait_until("it is asked", || rig.request_paths("a").contains(&"PATCH /vm".into())) => {}
    }
    // Whether it was stopped is unknown: it has to be asked.
    vm.unpause().await.unwrap();
    assert_eq!(rig.read_requests("a").last().unwrap().2["state"], "Resumed");
    vm.end().await.unwrap();
}

#[tokio::test]
async fn many_clones_of_one_snapshot_live_at_once_each_with_its_own_disk() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    vm.save(&rig.make_room("saved")).await.unwrap();
    let driver = rig.open().await.unwrap();
    let mut clones = Vec::new();
    for room in ["c0", "c1", "c2"] {
        let mut machine = rig.build_machine();
        let disk = rig.path(&format!("work-{room}.img"));
        fs::write(&disk, format!("that of {room}")).unwrap();
        machine.disks[1].path.clone_from(&disk);
        let (saved, dir) = (Saved::within(&rig.path("saved")), rig.make_room(room));
        clones.push(driver.resume(&rig.id(room), &machine, &saved, &dir).await.unwrap());
        assert_eq!(rig.found_file(room, "disk1"), format!("that of {room}"));
        // It is open: removing the name makes it go with its machine.
        fs::remove_file(disk).unwrap();
    }
    for clone in &clones {
        assert_says_hello(&**clone).await;
    }
    assert_eq!(rig.request_paths("c0"), ["PUT /snapshot/load"]);
    for vm in clones.into_iter().chain([vm]) {
        vm.end().await.unwrap();
    }
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn older_versions_are_asked_in_their_own_words() {
    for (version, word) in [("1.10.1", "enable_diff_snapshots"), ("1.17.0", "track_dirty_pages")] {
        let rig = Rig::with_version(version, "");
        let vm = rig.boot("a").await.unwrap();
        vm.save(&rig.make_room("saved")).await.unwrap();
        let clone = rig.resume("saved", "b").await.unwrap();
        assert_eq!(rig.read_requests("b")[0].2[word], true, "{version}");
        clone.end().await.unwrap();
        vm.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_snapshot_that_is_not_there_is_told_by_its_path() {
    let rig = Rig::new("");
    rig.make_room("saved");
    assert_refused(rig.resume("saved", "b").await, ErrorCode::Unavailable, &["saved/memory"]);
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn a_snapshot_that_was_cut_is_refused_by_firecracker_and_nothing_stays() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    vm.save(&rig.make_room("saved")).await.unwrap();
    vm.end().await.unwrap();
    let memory = fs::File::options().write(true).open(rig.path("saved/memory")).unwrap();
    memory.set_len(4096).unwrap();
    let parts = ["`PUT /snapshot/load`", "400", "another size"];
    let (driver, saved) = (rig.open().await.unwrap(), Saved::within(&rig.path("saved")));
    let resumed =
        driver.resume(&rig.id("b"), &rig.build_machine(), &saved, &rig.make_room("b")).await;
    assert_refused(resumed, ErrorCode::WallMissing, &parts);
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn the_guest_is_waited_for_until_it_listens() {
    let rig = Rig::new("early");
    let vm = rig.boot("a").await.unwrap();
    assert_says_hello(&*vm).await;
    let tried = fs::read_to_string(rig.path_inside("a", "connected")).unwrap();
    assert_eq!(tried.lines().count(), 4, "{tried}");
    vm.end().await.unwrap();
}

#[tokio::test]
async fn a_restored_guest_that_loses_the_first_connections_is_connected_to_again() {
    let mut rig = Rig::new("withhold");
    rig.patience.attempt = Duration::from_millis(300);
    let vm = rig.boot("a").await.unwrap();
    assert_says_hello(&*vm).await;
    vm.save(&rig.make_room("saved")).await.unwrap();
    let clone = rig.resume("saved", "b").await.unwrap();
    assert_says_hello(&*clone).await;
    let tried = fs::read_to_string(rig.path_inside("b", "connected")).unwrap();
    // The third is answered, if it is waited for long enough.
    assert!(tried.lines().count() >= 3, "{tried}");
    clone.end().await.unwrap();
    vm.end().await.unwrap();
}

#[tokio::test]
async fn a_guest_that_never_answers_is_given_up_in_time() {
    let mut rig = Rig::new("mute");
    rig.patience.connect = SHORT_TIMEOUT;
    let vm = rig.boot("a").await.unwrap();
    let parts = ["`CONNECT 1024`", "no answer within 5s", "virtio-vsock"];
    assert_refused(vm.connect().await, ErrorCode::TooSlow, &parts);
    vm.end().await.unwrap();
}

#[tokio::test]
async fn an_answer_to_connect_that_is_none_is_a_broken_protocol() {
    for mode in ["nonsense", "endless"] {
        let rig = Rig::new(mode);
        let vm = rig.boot("a").await.unwrap();
        assert_refused(vm.connect().await, ErrorCode::Protocol, &["Firecracker answered `"]);
        vm.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_machine_whose_process_died_is_gone_and_not_waited_for() {
    let rig = Rig::new("mute");
    let vm = rig.boot("a").await.unwrap();
    let pid = rustix::process::Pid::from_raw(rig.find_process("a")).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_refused(vm.connect().await, ErrorCode::Gone, &["Firecracker ended"]);
    assert_refused(vm.pause().await, ErrorCode::Gone, &["cannot be stopped", "ended by signal"]);
    vm.end().await.unwrap();
}

#[tokio::test]
async fn a_refusal_says_what_was_asked_what_was_answered_and_what_to_do() {
    let rig = Rig::new("refuse /boot-source");
    let parts = [
        "create on microvm",
        "asked for `PUT /boot-source`",
        "answered 400: Invalid \u{fffd}[31mthing",
    ];
    let driver = rig.open().await.unwrap();
    let booted = driver.boot(&rig.id("a"), &rig.build_machine(), &rig.make_room("a")).await;
    let text = assert_refused(booted, ErrorCode::WallMissing, &parts);
    assert!(text.matches('z').count() < 1000, "{text}");
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn an_answer_that_breaks_every_rule_is_an_error_and_nothing_worse() {
    let broken = [
        ("half", ErrorCode::Unavailable, "broke off"),
        ("closed", ErrorCode::Unavailable, "broke off"),
        ("garbage", ErrorCode::Unavailable, "broke off"),
        ("headed", ErrorCode::Unavailable, "broke off"),
        ("large", ErrorCode::Protocol, "more than 16384 bytes"),
    ];
    for (mode, code, reason) in broken {
        let rig = Rig::new(&format!("{mode} /vsock"));
        assert_refused(rig.boot("a").await, code, &["`PUT /vsock`", reason]);
        assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
    }
}

#[tokio::test]
async fn silence_is_not_waited_out() {
    let mut rig = Rig::new("silent /actions");
    rig.patience.answer = SHORT_TIMEOUT;
    let parts = ["`PUT /actions`", "no answer within 5s"];
    assert_refused(rig.boot("a").await, ErrorCode::TooSlow, &parts);
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn a_process_that_dies_over_a_request_says_why() {
    let rig = Rig::new("die /actions");
    let parts = ["`PUT /actions`", "it wrote:", "guest memory is gone", "exited with code 7"];
    assert_refused(rig.boot("a").await, ErrorCode::Unavailable, &parts);
}

#[tokio::test]
async fn each_way_of_not_reaching_the_guest_has_a_remedy_of_its_own() {
    for mode in ["", "nonsense", "mute"] {
        let mut rig = Rig::new(mode);
        if mode == "mute" {
            rig.patience.connect = SHORT_TIMEOUT;
        }
        let vm = rig.boot("a").await.unwrap();
        let expected = match mode {
            "" => {
                // Killed from outside.
                let pid = rustix::process::Pid::from_raw(rig.find_process("a")).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                wait_until("it has ended", || vm.said().contains("signal")).await;
                "last output"
            }
            "nonsense" => "unchanged",
            _ => "virtio-vsock",
        };
        let error = vm.connect().await.unwrap_err();
        let hint = error.hint().unwrap().to_owned();
        assert!(hint.contains(expected), "{mode}: {hint}");
        assert_eq!(hint.contains("vsock"), mode == "mute", "{hint}");
        assert_eq!(error.to_string().contains("ended by signal"), mode.is_empty(), "{error}");
        vm.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_process_that_ends_at_once_says_why() {
    let rig = Rig::new("crash");
    let parts = ["ended before it listened", "no KVM, no machine"];
    assert_refused(rig.boot("a").await, ErrorCode::Unavailable, &parts);
}

#[tokio::test]
async fn a_process_that_never_listens_is_not_waited_for() {
    let mut rig = Rig::new("deaf");
    rig.patience.soon = SHORT_TIMEOUT;
    assert_refused(rig.boot("a").await, ErrorCode::Unavailable, &["did not listen within 5s"]);
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn much_output_neither_stops_the_machine_nor_fills_an_error() {
    let rig = Rig::new("chatty");
    let vm = rig.boot("a").await.unwrap();
    assert_says_hello(&*vm).await;
    wait_until("it is heard to its end", || vm.said().contains("the last words")).await;
    vm.end().await.unwrap();
    let text = assert_refused(vm.connect().await, ErrorCode::Gone, &["the last words"]);
    assert!(text.len() < 2000, "{}", text.len());
}

#[tokio::test]
async fn the_end_is_the_end_and_may_be_asked_for_twice() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    // Its process, and who started that: both are found.
    assert!(rig.find_leftovers().await.len() > 1);
    vm.end().await.unwrap();
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
    vm.end().await.unwrap();
}

#[tokio::test]
async fn a_machine_that_is_dropped_ends() {
    let rig = Rig::new("");
    drop(rig.boot("a").await.unwrap());
    rig.wait_until_gone().await;
}

#[tokio::test]
async fn a_machine_that_is_dropped_ends_before_its_driver_does() {
    let rig = Rig::new("");
    let driver = rig.open().await.unwrap();
    drop(driver.boot(&rig.id("a"), &rig.build_machine(), &rig.make_room("a")).await.unwrap());
    let runs = || find::list_pids().any(|pid| jail::is_process_of_machine(pid, &rig.id("a")));
    wait_until("its process is gone", || !runs()).await;
    // What is not a process is left to the sandbox's destroy.
    Native::new().destroy(&rig.id("a")).await.unwrap();
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_leaves_nothing() {
    let rig = Rig::new("silent /actions");
    tokio::select! {
        _ = rig.boot("a") => panic!("it is silent"),
        () = wait_until("it is asked", || rig.request_paths("a").iter().any(|path| path == "PUT /actions")) => {}
    }
    rig.wait_until_gone().await;
}

#[tokio::test]
async fn a_machine_is_found_and_ended_by_its_sandbox_whoever_started_it() {
    let rig = Rig::new("");
    let (one, another) = (rig.boot("a").await.unwrap(), rig.boot("b").await.unwrap());
    let somebody = Native::new();
    for _ in 0..2 {
        somebody.destroy(&rig.id("a")).await.unwrap();
        assert!(find::list_pids().all(|pid| !jail::is_process_of_machine(pid, &rig.id("a"))));
    }
    assert_says_hello(&*another).await;
    one.end().await.unwrap();
    another.end().await.unwrap();
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

/// What the kernel says of a process.
fn read_status_field(pid: i32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
    found.unwrap_or_else(|| panic!("no {field} in {status}")).to_owned()
}

#[tokio::test]
async fn the_process_is_without_rights_and_behind_a_filter_in_namespaces_of_its_own() {
    let rig = Rig::new("");
    let vm = rig.boot("a").await.unwrap();
    let pid = rig.find_process("a");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(read_status_field(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(
        (read_status_field(pid, "Seccomp"), read_status_field(pid, "NoNewPrivs")),
        ("2".into(), "1".into())
    );
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).unwrap();
        assert_ne!(of(&pid.to_string()), of("self"), "{kind}");
    }
    vm.end().await.unwrap();
}

#[tokio::test]
async fn the_process_sees_nothing_of_the_host_but_what_its_machine_needs() {
    let rig = Rig::new("look");
    fs::write(rig.path("marker"), "of the host").unwrap();
    let (dir, room) = (rig.make_room("a"), rig.make_room("a/room"));
    let (marker, own) = (rig.path("marker"), std::env::current_exe().unwrap());
    let (marker, own) = (marker.to_str().unwrap(), own.to_str().unwrap());
    fs::write(
        room.join(fake::PROBE_PATHS_FILE),
        [marker, "../marker", own, "/etc/shadow"].join("\n"),
    )
    .unwrap();
    let driver = rig.open().await.unwrap();
    let vm = driver.boot(&rig.id("a"), &rig.build_machine(), &dir).await.unwrap();
    // Nor does anybody else see what it leaves.
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o077, 0);
    let seen: Value =
        serde_json::from_slice(&fs::read(room.join(fake::PROBE_RESULT_FILE)).unwrap()).unwrap();
    assert_eq!(seen["files"], serde_json::json!([false, false, false, false]));
    assert_eq!(seen["interfaces"], serde_json::json!(["lo"]));
    assert_eq!(seen["written"], serde_json::json!(["disk1", fake::REQUESTS_LOG]));
    assert_eq!(
        seen["shown"],
        serde_json::json!(["disk0", "disk1", "firecracker", "initramfs", "kernel"])
    );
    vm.end().await.unwrap();
}

/// What a file of the control group of this sandbox says, wherever on this host the group is.
fn read_cgroup_file(id: &SandboxId, file: &str) -> Option<String> {
    let mut todo = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = todo.pop() {
        let told = fs::read_to_string(directory.join(file));
        if directory.ends_with(id.as_str()) && told.is_ok() {
            return told.ok();
        }
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        todo.extend(directories.map(|entry| entry.path()));
    }
    None
}

#[tokio::test]
async fn a_share_of_processor_time_is_held_by_the_walls_or_refused() {
    let rig = Rig::new("");
    let machine = MachineSpec { cpu_rate: Some(Millicores(500)), ..rig.build_machine() };
    let booted = rig.boot_as(machine, "a").await;
    if !Native::new().holds_cpu_rate() {
        let reason = "nothing here holds it to a share of processor time";
        assert_refused(booted, ErrorCode::Unavailable, &[reason, "delegated"]);
        return assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
    }
    let vm = booted.unwrap();
    let of = |file: &str| read_cgroup_file(&rig.id("a"), file);
    let held = of("cpu.max").or_else(|| of("cpu.cfs_quota_us")).unwrap();
    // Half of a period, which is a tenth of a second.
    assert_eq!(held.split_whitespace().next(), Some("50000"));
    vm.end().await.unwrap();
    assert_eq!(of("cgroup.procs"), None);
}

#[tokio::test]
async fn what_a_process_puts_in_the_place_of_a_snapshot_is_not_followed() {
    let rig = Rig::new("lure");
    fs::write(rig.path("precious"), "of the host").unwrap();
    fs::set_permissions(rig.path("precious"), fs::Permissions::from_mode(0o644)).unwrap();
    let (dir, room) = (rig.make_room("a"), rig.make_room("a/room"));
    fs::write(room.join(fake::SYMLINK_TARGET_FILE), rig.path("precious").to_str().unwrap())
        .unwrap();
    let driver = rig.open().await.unwrap();
    let vm = driver.boot(&rig.id("a"), &rig.build_machine(), &dir).await.unwrap();
    let saved = rig.make_room("saved");
    assert_refused(vm.save(&saved).await, ErrorCode::System, &["saved/memory"]);
    assert_eq!(fs::read_dir(&saved).unwrap().count(), 0);
    assert_eq!(fs::metadata(rig.path("precious")).unwrap().mode() & 0o777, 0o644);
    vm.end().await.unwrap();
}

#[tokio::test]
async fn what_a_process_puts_in_the_place_of_its_socket_is_not_followed() {
    let mut rig = Rig::new("divert");
    rig.patience.connect = SHORT_TIMEOUT;
    let other = UnixListener::bind(rig.path("other")).unwrap();
    other.set_nonblocking(true).unwrap();
    let (dir, room) = (rig.make_room("a"), rig.make_room("a/room"));
    fs::write(room.join(fake::SYMLINK_TARGET_FILE), rig.path("other").to_str().unwrap()).unwrap();
    let driver = rig.open().await.unwrap();
    let vm = driver.boot(&rig.id("a"), &rig.build_machine(), &dir).await.unwrap();
    assert_refused(vm.connect().await, ErrorCode::TooSlow, &["no answer within 5s"]);
    assert_eq!(other.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    vm.end().await.unwrap();
}

#[tokio::test]
async fn a_binary_that_cannot_be_executed_there_says_so() {
    let rig = Rig::new("");
    let driver = rig.open().await.unwrap();
    fs::set_permissions(rig.path("firecracker"), fs::Permissions::from_mode(0o644)).unwrap();
    let booted = driver.boot(&rig.id("a"), &rig.build_machine(), &rig.make_room("a")).await;
    assert_refused(
        booted,
        ErrorCode::Unavailable,
        &["ended before it listened", "it did not start"],
    );
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[test]
fn an_ordinary_user_has_the_same() {
    let all = [
        "every_snapshot_is_whole_though_only_what_changed_is_asked_for",
        "the_process_is_without_rights_and_behind_a_filter_in_namespaces_of_its_own",
        "the_process_sees_nothing_of_the_host_but_what_its_machine_needs",
        "a_share_of_processor_time_is_held_by_the_walls_or_refused",
        "the_end_is_the_end_and_may_be_asked_for_twice",
        "a_machine_that_is_dropped_ends",
        "a_machine_that_is_paused_stands_still_and_is_spoken_to_again_when_it_goes_on",
    ];
    for test in all {
        ordinary::run_as_ordinary_user(module_path!(), test);
    }
}

/// The environment variable that tells a child process its room.
const ROOM_VARIABLE: &str = "OWNER_ROOM";

#[tokio::test]
#[ignore = "not a test: the process that another one kills"]
async fn becomes_an_owner() {
    let Some(room) = std::env::var_os(ROOM_VARIABLE) else { return };
    let rig = Rig::new("");
    let dir = PathBuf::from(room);
    let _vm =
        rig.open().await.unwrap().boot(&rig.id("a"), &rig.build_machine(), &dir).await.unwrap();
    // Whole from the moment it can be seen.
    let told = format!("{}\n{}", rig.name, rig.dir.path().display());
    fs::write(dir.join("draft"), told).unwrap();
    fs::rename(dir.join("draft"), dir.join("ready")).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_machine_dies_with_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "microvm::firecracker::tests::becomes_an_owner"])
        .env(ROOM_VARIABLE, dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is ready", || dir.path().join("ready").exists()).await;
    let told = fs::read_to_string(dir.path().join("ready")).unwrap();
    let (name, rig) = told.split_once('\n').unwrap();
    assert_ne!(find_leftovers_of(name, dir.path()).await, NO_LEFTOVERS);
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until_gone(name, dir.path()).await;
    fs::remove_dir_all(rig).unwrap();
}

/// A fake jailer, without the walls of the real one: it goes to the root of the jail and starts it there.
const JAILER_SCRIPT: &str = r#"
[ "$1" = --version ] && { echo "Jailer v1.16.1"; exit 0; }
[ "$1 $3 $5 $7 $9" = "--exec-file --chroot-base-dir --uid --gid --id" ] || exit 2
[ "$6 $8" = "12345 12346" ] || exit 3
shift 9
[ "$2" = -- ] || exit 4
id=$1
shift 2
exec ../../../../firecracker --id "$id" "$@"
"#;

#[tokio::test]
async fn with_the_jailer_everything_lies_in_the_jail_and_belongs_to_its_user() {
    let Some(rig) = Rig::jailed(NEWEST_VERSION) else { return };
    fs::set_permissions(rig.path("initramfs"), fs::Permissions::from_mode(0o600)).unwrap();
    let vm = rig.boot("a").await.unwrap();
    assert_says_hello(&*vm).await;
    let jail = &format!("a/firecracker/{}/root", rig.id("a"));
    assert_eq!(rig.request_paths(jail).last().unwrap(), "PUT /actions");
    let of = |name: &str| fs::metadata(rig.path(name)).unwrap();
    // The same file, and now its: else what is written would be lost, or could not be.
    assert_eq!(of("work.img").ino(), of(&format!("{jail}/disk1")).ino());
    assert_eq!(of("work.img").uid(), 12345);
    // A copy, for the original is not everybody's to read.
    assert_ne!(of("initramfs").ino(), of(&format!("{jail}/initramfs")).ino());
    assert_eq!(of(&format!("{jail}/initramfs")).uid(), 12345);
    assert_eq!(of("initramfs").uid(), 0);
    vm.save(&rig.make_room("saved")).await.unwrap();
    assert_eq!((of("saved/memory").uid(), of("saved/memory").mode() & 0o777), (0, 0o600));
    fs::set_permissions(rig.path("root.img"), fs::Permissions::from_mode(0o600)).unwrap();
    let clone = rig.resume("saved", "b").await.unwrap();
    // What was prepared for many machines is the same file in each jail, for its group to read.
    let jail = &format!("b/firecracker/{}/root", rig.id("b"));
    for (prepared, shown) in
        [("saved/memory", "memory"), ("saved/state", "state"), ("root.img", "disk0")]
    {
        let found = of(prepared);
        assert_eq!(found.ino(), of(&format!("{jail}/{shown}")).ino(), "{prepared} was copied");
        let access = (found.uid(), found.gid(), found.mode() & 0o777);
        assert_eq!(access, (0, 12346, 0o640), "{prepared}");
    }
    clone.save(&rig.make_room("again")).await.unwrap();
    assert_eq!(rig.saved_pages("again"), [(0, 1), (1, 2)]);
    clone.end().await.unwrap();
    vm.end().await.unwrap();
    // Its disk belongs to this user alone again.
    assert_eq!((of("work.img").uid(), of("work.img").mode() & 0o777), (0, 0o600));
}

#[tokio::test]
async fn a_machine_in_a_jail_is_found_by_its_sandbox_and_held_to_no_share_of_processor_time() {
    let Some(rig) = Rig::jailed(NEWEST_VERSION) else { return };
    let machine = MachineSpec { cpu_rate: Some(Millicores(500)), ..rig.build_machine() };
    let reason = "nothing here holds it to a share of processor time";
    assert_refused(rig.boot_as(machine, "r").await, ErrorCode::Unavailable, &[reason, "`jailer`"]);
    let (one, another) = (rig.boot("a").await.unwrap(), rig.boot("b").await.unwrap());
    for _ in 0..2 {
        super::end_jailed_machine(&rig.id("a")).await.unwrap();
        assert!(find::list_pids().all(|pid| !jail::is_process_of_machine(pid, &rig.id("a"))));
    }
    assert_says_hello(&*another).await;
    one.end().await.unwrap();
    another.end().await.unwrap();
    assert_eq!(rig.find_leftovers().await, NO_LEFTOVERS);
}

#[tokio::test]
async fn a_jailer_of_another_release_is_refused() {
    let Some(rig) = Rig::jailed("1.15.0") else { return };
    assert_refused(rig.open().await, ErrorCode::Unavailable, &["1.16.1", "1.15.0", "one release"]);
}
