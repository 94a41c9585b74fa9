//! Machines that are captured with their memory: what runs in them goes on, in place, in copies, and under
//! another state directory.

use std::collections::BTreeSet;
use std::io::Seek;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machines;
use crate::ordinary;
use stockade_core::{
    Backend, Bytes, Command, Ending, ErrorCode, Limits, SandboxId, SandboxSpec, Signal,
    SnapshotKind, Span,
};
use stockade_engine::{Engine, EngineConfig, OutputEvent, Watcher};

/// Forks made of one machine.
const FORK_COUNT: usize = 20;
/// Commands that run in a machine when it is restored to a state before them.
const COMMAND_COUNT: usize = 20;
/// Timeout for output or the end of a command.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(60);

/// Shell script that starts two programs with state in memory alone: a counter, and one that takes commands.
const GUEST_PROGRAMS_SCRIPT: &str = r#"
    mkfifo /tmp/told
    setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/count; sleep 0.5; done' \
        > /dev/null 2>&1 < /dev/null &
    setsid sh -c 'known=secret; while :; do read line < /tmp/told; eval "$line"; done' \
        > /dev/null 2>&1 < /dev/null &
"#;

/// Shell script that prints the counter; retried, because the counter may be half written.
const READ_COUNT_SCRIPT: &str = "until read n < /tmp/count; do :; done; echo $n";
/// Shell script that asks the other program for the value it keeps.
const READ_KNOWN_SCRIPT: &str = r#"[ -p /tmp/said ] || mkfifo /tmp/said
    echo 'echo "$known" > /tmp/said' > /tmp/told; cat /tmp/said"#;

/// Shell script that prints what no two machines may share: name, ids, and the kernel's random numbers.
const IDENTITY_SCRIPT: &str = "hostname; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id; \
                   cat /proc/sys/kernel/random/uuid; dd if=/dev/urandom bs=16 count=1 2>/dev/null | sha256sum";

struct MachineBench {
    engine: Engine,
}

impl MachineBench {
    async fn open(state: &Path) -> Self {
        let backend: Arc<dyn Backend> = machines::make_backend();
        Self { engine: Engine::open(EngineConfig::at(state), vec![backend]).await.unwrap() }
    }

    /// A sandbox in which both programs run.
    async fn create_with_programs(&self) -> SandboxId {
        let id = self.engine.create(microvm_spec()).await.unwrap();
        self.run_shell(&id, GUEST_PROGRAMS_SCRIPT).await;
        id
    }

    async fn run_shell(&self, id: &SandboxId, script: &str) -> String {
        let command = Command::program(["sh", "-c", script]);
        let execution = self.engine.exec(id, command).await.unwrap();
        let mut reader = execution.subscribe();
        let mut text = Vec::new();
        while let Some(OutputEvent::Output { data, .. }) = reader.next().await {
            text.extend_from_slice(&data);
        }
        let text = String::from_utf8(text).unwrap();
        assert_eq!(execution.outcome().await.ending, Ending::Exited(0), "{script}: {text}");
        text.trim().to_owned()
    }

    async fn read_count(&self, id: &SandboxId) -> u64 {
        self.run_shell(id, READ_COUNT_SCRIPT).await.parse().unwrap()
    }

    /// Waits until it has come further.
    async fn counts_on(&self, id: &SandboxId, from: u64) -> u64 {
        let waiting = format!(
            "{READ_COUNT_SCRIPT}; while [ $n -le {from} ]; do sleep 0.2; {READ_COUNT_SCRIPT}; done"
        );
        let counted = tokio::time::timeout(OUTPUT_TIMEOUT, self.run_shell(id, &waiting)).await;
        counted.unwrap().lines().last().unwrap().parse().unwrap()
    }

    async fn read_known(&self, id: &SandboxId) -> String {
        self.run_shell(id, READ_KNOWN_SCRIPT).await
    }

    async fn set_known(&self, id: &SandboxId, known: &str) {
        self.run_shell(id, &format!("echo 'known={known}' > /tmp/told")).await;
    }
}

fn microvm_spec() -> SandboxSpec {
    SandboxSpec { backend: "microvm".parse().unwrap(), ..SandboxSpec::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_go_on_with_their_memory_and_share_none() {
    let state = tempfile::tempdir().unwrap();
    let place = MachineBench::open(state.path()).await;
    let parent = place.create_with_programs().await;
    let before = place.counts_on(&parent, 2).await;
    let begun = Instant::now();
    let copies = place.engine.fork(&parent, FORK_COUNT).await.unwrap();
    println!("{FORK_COUNT} copies in {:?}", begun.elapsed());
    let mut seen = BTreeSet::new();
    for (number, copy) in copies.iter().enumerate() {
        let own = format!("echo 'known=own{number}' > /tmp/told; echo {number} > /tmp/own");
        let told = place
            .run_shell(
                copy,
                &format!("{READ_COUNT_SCRIPT}\n{READ_KNOWN_SCRIPT}\n{own}\n{IDENTITY_SCRIPT}"),
            )
            .await;
        let mut lines = told.lines().map(str::to_owned);
        let count: u64 = lines.next().unwrap().parse().unwrap();
        assert!(count >= before, "it began anew: {count}, and it was {before}");
        assert_eq!(lines.next().unwrap(), "secret");
        seen.extend(lines.enumerate());
    }
    for (number, copy) in copies.iter().enumerate() {
        place.counts_on(copy, before).await;
        let told = place.run_shell(copy, &format!("{READ_KNOWN_SCRIPT}\ncat /tmp/own")).await;
        assert_eq!(told, format!("own{number}\n{number}"));
    }
    assert_eq!(place.read_known(&parent).await, "secret");
    assert_eq!(place.run_shell(&parent, "ls /tmp/own 2> /dev/null || echo none").await, "none");
    place.counts_on(&parent, before).await;
    seen.extend(
        place.run_shell(&parent, IDENTITY_SCRIPT).await.lines().map(str::to_owned).enumerate(),
    );
    assert_eq!(seen.len(), 5 * (FORK_COUNT + 1), "{seen:?}");
    for id in copies.into_iter().chain([parent]) {
        place.engine.destroy(&id).await.unwrap();
    }
}

/// What an execution has written, until it has written this.
async fn read_until(execution: &Watcher, expected: &str) -> String {
    let (mut reader, mut text) = (execution.subscribe(), String::new());
    while !text.ends_with(expected) {
        let next = tokio::time::timeout(OUTPUT_TIMEOUT, reader.next()).await.unwrap();
        let Some(OutputEvent::Output { data, .. }) = next else { panic!("{next:?} after {text}") };
        text += std::str::from_utf8(&data).unwrap();
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_goes_on_in_a_copy_is_an_execution_of_the_copys_own() {
    let state = tempfile::tempdir().unwrap();
    let place = MachineBench::open(state.path()).await;
    let id = place.engine.create(microvm_spec()).await.unwrap();
    let line = "echo begun; until [ -e /tmp/go ]; do sleep 0.1; done; echo ended; exit 7";
    let mut command = Command::program(["sh", "-c", line]);
    command.wall_time = Some(Span::secs(600));
    let first = place.engine.exec(&id, command).await.unwrap();
    read_until(&first, "begun\n").await;
    let copy = place.engine.fork(&id, 1).await.unwrap().remove(0);
    let carried = place.engine.executions(&copy).unwrap().remove(0);
    assert_eq!(carried.command(), ["sh", "-c", line]);
    assert_ne!(carried.job(), first.job());
    place.run_shell(&copy, ": > /tmp/go").await;
    let outcome = tokio::time::timeout(OUTPUT_TIMEOUT, carried.outcome()).await.unwrap();
    assert_eq!(outcome.ending, Ending::Exited(7));
    assert_eq!(read_until(&carried, "ended\n").await, "ended\n");
    let record = place.engine.journal().job(carried.job()).unwrap().unwrap();
    assert_eq!(record.stopped.unwrap().event.outcome(), Some(&outcome));
    assert_eq!(place.engine.executions(&id).unwrap().len(), 1, "the first one goes on");
    for id in [copy, id] {
        place.engine.destroy(&id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_taken_back_to_what_it_was() {
    let state = tempfile::tempdir().unwrap();
    let place = MachineBench::open(state.path()).await;
    let id = place.create_with_programs().await;
    place.counts_on(&id, 2).await;
    let who = place.run_shell(&id, "cat /proc/sys/kernel/random/boot_id").await;
    let snapshot = place.engine.snapshot(&id, SnapshotKind::Full).await.unwrap();
    place.set_known(&id, "later").await;
    assert_eq!(place.read_known(&id).await, "later");
    for _ in 0..2 {
        place.engine.restore(&id, &snapshot.id).await.unwrap();
        assert_eq!(place.read_known(&id).await, "secret");
        let now = place.read_count(&id).await;
        place.counts_on(&id, now).await;
        assert_ne!(place.run_shell(&id, "cat /proc/sys/kernel/random/boot_id").await, who);
        place.set_known(&id, "later").await;
    }
    // One of a copy: what was touched before it is in it.
    let copy = place.engine.create_from(&snapshot.id, microvm_spec()).await.unwrap();
    place.set_known(&copy, "copied").await;
    let second = place.engine.snapshot(&copy, SnapshotKind::Full).await.unwrap();
    let copy_of_copy = place.engine.create_from(&second.id, microvm_spec()).await.unwrap();
    assert_eq!(place.read_known(&copy_of_copy).await, "copied");
    // One that has had commands of its own takes it on as well, and they are gone.
    let other = place.engine.create(microvm_spec()).await.unwrap();
    let mut own = Vec::new();
    for _ in 0..COMMAND_COUNT {
        let sleeping = Command::program(["sleep", "600"]);
        own.push(place.engine.exec(&other, sleeping).await.unwrap());
    }
    place.engine.restore(&other, &second.id).await.unwrap();
    for gone in own {
        assert_eq!(gone.outcome().await.ending, Ending::Signalled(Signal::KILL));
    }
    assert_eq!(place.read_known(&other).await, "copied");
    place.engine.destroy(&other).await.unwrap();
    let other = Limits { memory: Some(Bytes(100 << 20)), ..Limits::default() };
    let other = SandboxSpec { limits: other, ..microvm_spec() };
    let refused = place.engine.create_from(&snapshot.id, other).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unsupported, "{refused}");
    for id in [id, copy, copy_of_copy] {
        place.engine.destroy(&id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_goes_on_under_another_state_directory() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) =
        (MachineBench::open(here.path()).await, MachineBench::open(there.path()).await);
    let id = here.create_with_programs().await;
    let before = here.counts_on(&id, 2).await;
    let snapshot = here.engine.snapshot(&id, SnapshotKind::Full).await.unwrap();
    here.engine.destroy(&id).await.unwrap();
    let mut parcel = tempfile::tempfile().unwrap();
    here.engine.snapshots().export(&snapshot, &mut parcel).unwrap();
    println!("{} bytes", parcel.stream_position().unwrap());
    parcel.rewind().unwrap();
    let snapshot = there.engine.snapshots().import(&mut parcel, Bytes(1 << 40)).unwrap();
    let id = there.engine.create_from(&snapshot.id, microvm_spec()).await.unwrap();
    assert_eq!(there.read_known(&id).await, "secret");
    let now = there.read_count(&id).await;
    assert!(now >= before, "it began anew: {now}, and it was {before}");
    there.counts_on(&id, now).await;
    there.engine.destroy(&id).await.unwrap();
}

#[test]
fn what_runs_goes_on_for_an_ordinary_user_too() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "what_runs_goes_on_under_another_state_directory",
    );
}
