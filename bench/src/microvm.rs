//! The microvm backend: the first machine, copies of it, commands in one, what a copy takes of memory, and
//! what capturing one with its memory takes; beside QEMU as one would start it by hand, without walls and
//! without anybody to talk to inside.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_backends::microvm::{Microvm, Options};
use stockade_core::{Backend, Bytes, Command, Limits, SandboxSpec, SnapshotKind};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::native::spawn;
use crate::report::BenchReport;
use crate::table::Row;

const ROUNDS: usize = 20;
/// How often a machine is started from nothing.
const BOOT_ROUNDS: usize = 3;
/// Commands in one sandbox for each that is made.
const COMMANDS_EACH: usize = 5;
/// Copies that live at once.
const COPIES: usize = 20;
/// How often that many are made.
const FORK_ROUNDS: usize = 3;
/// What is written to memory before a machine is captured.
const WRITTEN_MIB: [u64; 3] = [16, 128, 512];
const MACHINE_TIMEOUT: Duration = Duration::from_secs(60);
const MACHINE_TYPE: &str =
    "microvm,acpi=on,rtc=off,pit=off,pic=off,isa-serial=on,suppress-vmdesc=on,memory-backend=ram";
const RAM_OBJECT: &str = "memory-backend-file,id=ram,share=off";

pub fn measure(report: &mut BenchReport) -> Measured {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(compare(report, dir.path()))
}

async fn compare(report: &mut BenchReport, dir: &Path) -> Measured {
    let root = dir.join("root");
    fs::create_dir_all(root.join("bin"))?;
    fs::copy("/bin/busybox", root.join("bin/busybox"))?;
    for program in ["true", "sh", "dd", "sleep"] {
        symlink("busybox", root.join("bin").join(program))?;
    }
    let options = Options {
        root: Some(root),
        cache: Some(dir.join("store")),
        prepare: true,
        ..Options::default()
    };
    let backend: Arc<dyn Backend> = Arc::new(Microvm::new(options));
    let begun = Instant::now();
    if let Some((reason, _)) = backend.probe().await.unavailable {
        report.title(format!("microvm: skipped: {reason}"));
        return Ok(());
    }
    report.title(format!(
        "microvm: emulated, a root of one program; prepared in {:?}",
        begun.elapsed()
    ));
    let engine = Engine::open(EngineConfig::at(dir.join("state")), vec![backend]).await?;
    let spec = SandboxSpec { backend: "microvm".parse()?, ..SandboxSpec::default() };
    let mut rows = ["create", "second exec", "destroy"].map(Row::new);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let id = engine.create(spec.clone()).await?;
        rows[0].add(begun.elapsed());
        for _ in 0..COMMANDS_EACH {
            let begun = Instant::now();
            engine.exec(&id, Command::program(["true"])).await?.outcome().await;
            rows[1].add(begun.elapsed());
        }
        let begun = Instant::now();
        engine.destroy(&id).await?;
        rows[2].add(begun.elapsed());
    }
    report.timings(&mut rows);
    booted(report, dir).await?;
    many(report, &engine, &spec).await?;
    captured(report, &engine, &spec, &dir.join("store")).await?;
    for mib in WRITTEN_MIB {
        touched(report, &engine, &spec, mib).await?;
    }
    Ok(())
}

/// The first machine there ever was, which is packed, started, measured and saved; beside one that is
/// started by hand and says a word.
async fn booted(report: &mut BenchReport, dir: &Path) -> Measured {
    let first = dir.join("first");
    fs::create_dir_all(first.join("bin"))?;
    fs::copy("/bin/busybox", first.join("bin/busybox"))?;
    fs::write(first.join("init"), "#!/bin/busybox sh\necho up\nexec /bin/busybox reboot -f\n")?;
    spawn(Process::new("chmod").arg("755").arg(first.join("init")))?;
    let pack = "find . | busybox cpio -o -H newc > ../initramfs 2> /dev/null";
    spawn(Process::new("sh").args(["-c", pack]).current_dir(&first))?;
    let mut rows = ["QEMU, booted", "prepared"].map(Row::new);
    for round in 0..BOOT_ROUNDS {
        let begun = Instant::now();
        boot_by_hand(&dir.join("initramfs"))?;
        rows[0].add(begun.elapsed());
        let (root, cache) = (Some(dir.join("root")), Some(dir.join(format!("store-{round}"))));
        let options = Options { root, cache, prepare: true, ..Options::default() };
        let begun = Instant::now();
        let measured = Microvm::new(options).probe().await;
        rows[1].add(begun.elapsed());
        if let Some((reason, _)) = measured.unavailable {
            return Err(reason.into());
        }
    }
    report.timings(&mut rows);
    Ok(())
}

/// Returns when the first program has said a word.
fn boot_by_hand(initramfs: &Path) -> Measured {
    let kernels = fs::read_dir("/boot")?.flatten().map(|entry| entry.path());
    let is_for_machines = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("vmlinuz-") && name.contains("-cloud-")
    };
    let kernel = kernels.filter(is_for_machines).max().ok_or("no kernel for machines")?;
    // It has no clock to measure its own speed by: that is said.
    let line = "console=ttyS0 quiet tsc_early_khz=2000000 lpj=8000000 no_timer_check reboot=t";
    let mut qemu = Process::new("qemu-system-x86_64")
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-cpu", "max"])
        .args(["-accel", "tcg,thread=single", "-m", "1G", "-serial", "stdio"])
        .args(["-machine", "microvm,acpi=on,rtc=off,pit=off,pic=off,isa-serial=on"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", line])
        .stdout(Stdio::piped())
        .spawn()?;
    let said = BufReader::new(qemu.stdout.take().ok_or("it says nothing")?);
    let up = said.lines().map_while(Result::ok).any(|line| line.trim() == "up");
    qemu.kill()?;
    qemu.wait()?;
    if up { Ok(()) } else { Err("it ended without a word".into()) }
}

/// Capturing an idle machine and continuing it, taking turns with the same by hand.
async fn captured(
    report: &mut BenchReport,
    engine: &Engine,
    spec: &SandboxSpec,
    store: &Path,
) -> Measured {
    let id = engine.create(spec.clone()).await?;
    let names = ["QEMU, restored", "QEMU, saved", "restored", "saved", "fork x20"];
    let mut rows = names.map(Row::new);
    for round in 0..ROUNDS {
        let begun = Instant::now();
        let mut hand = ByHand::restored(store)?;
        rows[0].add(begun.elapsed());
        let begun = Instant::now();
        hand.save()?;
        rows[1].add(begun.elapsed());
        drop(hand);
        let begun = Instant::now();
        let snapshot = engine.snapshot(&id, SnapshotKind::Full).await?.id;
        rows[3].add(begun.elapsed());
        let begun = Instant::now();
        let copy = engine.create_from(&snapshot, spec.clone()).await?;
        rows[2].add(begun.elapsed());
        engine.destroy(&copy).await?;
        engine.snapshots().remove(&snapshot)?;
        if round < FORK_ROUNDS {
            let begun = Instant::now();
            let copies = engine.fork(&id, COPIES).await?;
            rows[4].add(begun.elapsed());
            for copy in copies {
                engine.destroy(&copy).await?;
            }
        }
    }
    report.title(format!("an idle machine of 1 GiB, {ROUNDS} rounds, taking turns"));
    report.timings(&mut rows);
    Ok(engine.destroy(&id).await?)
}

/// Capturing a machine in which so much was written to memory.
async fn touched(
    report: &mut BenchReport,
    engine: &Engine,
    spec: &SandboxSpec,
    mib: u64,
) -> Measured {
    let limits = Limits { memory: Some(Bytes(768 << 20)), ..Limits::default() };
    let spec = SandboxSpec { limits, ..spec.clone() };
    let id = engine.create(spec).await?;
    let fill = format!("dd if=/dev/zero of=/dev/shm/filled bs=1M count={mib} 2> /dev/null");
    let filled = engine.exec(&id, Command::program(["sh", "-c", &fill])).await?.outcome().await;
    let mut row = [Row::new("saved")];
    for _ in 0..ROUNDS / 2 {
        let begun = Instant::now();
        let snapshot = engine.snapshot(&id, SnapshotKind::Full).await?.id;
        row[0].add(begun.elapsed());
        engine.snapshots().remove(&snapshot)?;
    }
    report.title(format!("{mib} MiB touched ({:?})", filled.ending));
    report.timings(&mut row);
    Ok(engine.destroy(&id).await?)
}

/// A machine of the store, continued by QEMU alone.
struct ByHand {
    qemu: Child,
    talk: BufReader<UnixStream>,
    /// The guest's own: it ends when this is closed.
    _pipe: UnixStream,
    dir: tempfile::TempDir,
}

impl ByHand {
    /// Returns when it runs.
    fn restored(store: &Path) -> Result<Self, Box<dyn Error>> {
        let template = only(&store.join("templates"))?;
        let image = only(&store.join("images"))?;
        let dir = tempfile::tempdir_in("/var/tmp")?;
        let [disk, pipe, socket] = ["disk", "pipe", "qmp"].map(|name| dir.path().join(name));
        spawn(Process::new("cp").arg("--sparse=always").arg(template.join("disk")).arg(&disk))?;
        let size = fs::metadata(template.join("memory"))?.len();
        let memory = template.join("memory");
        let qemu = Process::new("qemu-system-x86_64")
            .args([
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
                "-cpu",
                "max",
            ])
            .args(["-accel", "tcg,thread=single,tb-size=64", "-smp", "1", "-serial", "null"])
            .args(["-machine", MACHINE_TYPE, "-m", &format!("{size}B")])
            .args(["-object", &format!("{RAM_OBJECT},size={size},mem-path={}", memory.display())])
            .args(["-global", "virtio-mmio.force-legacy=false"])
            .args(["-global", "migration.send-configuration=off"])
            .args(["-chardev", &format!("socket,id=pipe,server=on,path={}", pipe.display())])
            .args(["-device", "virtio-serial-device"])
            .args(["-device", "virtserialport,chardev=pipe,name=stockade.pipe"])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", socket.display())])
            .args(drive(0, &file_of(&image)?, "on"))
            .args(drive(1, &disk, "off"))
            .args(["-incoming", &format!("exec:cat {}", template.join("state").display())])
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        let (_pipe, stream) = (connected(&pipe), connected(&socket));
        stream.set_read_timeout(Some(MACHINE_TIMEOUT))?;
        let mut hand = Self { qemu, talk: BufReader::new(stream), _pipe, dir };
        hand.ask("qmp_capabilities", "")?;
        while !hand.ask("query-status", "")?.contains("\"running\": true") {}
        Ok(hand)
    }

    /// As QEMU saves a machine to a file.
    fn save(&mut self) -> Measured {
        let path = self.dir.path().join("saved");
        let uri = format!(", \"arguments\": {{\"uri\": \"exec:cat > {}\"}}", path.display());
        self.ask("migrate", &uri)?;
        while !self.ask("query-migrate", "")?.contains("completed") {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn ask(&mut self, command: &str, arguments: &str) -> Result<String, Box<dyn Error>> {
        writeln!(self.talk.get_mut(), "{{\"execute\": \"{command}\"{arguments}}}")?;
        loop {
            let mut line = String::new();
            self.talk.read_line(&mut line)?;
            if line.contains("\"error\"") || line.is_empty() {
                return Err(line.into());
            }
            if line.contains("\"return\"") {
                return Ok(line);
            }
        }
    }
}

fn connected(socket: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn drive(number: u32, path: &Path, read_only: &str) -> [String; 4] {
    let how = format!("if=none,id=disk{number},format=raw,cache=unsafe,readonly={read_only}");
    let drive = format!("{how},file={}", path.display());
    ["-drive".into(), drive, "-device".into(), format!("virtio-blk-device,drive=disk{number}")]
}

/// The first thing in a directory: one with the smallest memory.
fn only(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut all: Vec<_> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    all.sort_by_key(|path| fs::metadata(path.join("memory")).map_or(0, |found| found.len()));
    Ok(all.into_iter().next().ok_or("nothing is there")?)
}

/// The thing itself, or what is in it.
fn file_of(path: &Path) -> Result<PathBuf, Box<dyn Error>> {
    if path.is_dir() { only(path) } else { Ok(path.to_owned()) }
}

/// Copies that live at once, and what each has of its own.
async fn many(report: &mut BenchReport, engine: &Engine, spec: &SandboxSpec) -> Measured {
    let begun = Instant::now();
    let mut ids = Vec::new();
    for _ in 0..COPIES {
        ids.push(engine.create(spec.clone()).await?);
    }
    let took = begun.elapsed();
    let own: u64 = own_memory().iter().sum::<u64>() / COPIES as u64;
    report.note(format!("{COPIES} copies in {took:?}; each has {own} KiB of its own"));
    for id in ids {
        engine.destroy(&id).await?;
    }
    Ok(())
}

/// The private memory of every emulator there is, in KiB.
fn own_memory() -> Vec<u64> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let told = entries.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let emulators = told.filter(|text| text.starts_with("Name:\tqemu-system"));
    let field = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    emulators.filter_map(field).collect()
}
