//! The machine that all others are copies of: started once, waiting for its first word, and saved whole. One
//! for each kernel, program, root and size.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stockade_core::{
    Backend, Bytes, Capabilities, EffectiveLimits, Error, ErrorCode, Result, SandboxId,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::capture::MachineSource;
use super::driver::{Driver, MachineDisk, MachineSpec, Saved, Vm};
use super::image::RootSource;
use super::initramfs::Initramfs;
use super::kernel::HostKernel;
use super::private::Trial;
use super::store::{HeldEntry, MachineStore, Maker, StoreKind};
use super::{NAME, Progress, create, probe, system_error, tsc};
use crate::linux::fingerprint;
use crate::native::Native;
use crate::peer::far_program::{FAR_DIGEST, FAR_PROGRAM};
use crate::peer::guest::{MAX_LINE_BYTES, Ready};

/// Version of how a template is made; a change makes all of them anew.
const TEMPLATE_VERSION: u32 = 3;
/// Timeout for a template machine to boot, measure and wait.
pub(super) const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Timeout for a machine that has hung up to end, and to be heard to its end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Memory of a guest that its kernel and this program take.
const GUEST_OVERHEAD_BYTES: u64 = 256 << 20;
/// Minimum memory and disk of a machine: limits below are held inside, so that few sizes serve all.
const MIN_MEMORY_BYTES: u64 = 1 << 30;
const MIN_DISK_BYTES: u64 = 4 << 30;

/// What is to be prepared.
#[derive(Debug, Clone)]
pub(super) struct WantedMachine {
    pub root: RootSource,
    pub memory: Bytes,
    pub disk: Bytes,
    pub cpus: u32,
}

/// One that is prepared.
#[derive(Debug, Clone)]
pub(super) struct MachineTemplate {
    dir: HeldEntry,
    image: HeldEntry,
    wanted: WantedMachine,
    pub measured: Capabilities,
}

impl WantedMachine {
    /// The machine for these limits: the smallest that holds them.
    pub(super) fn from_limits(root: RootSource, limits: &EffectiveLimits) -> Self {
        let memory = limits
            .memory
            .map_or(MIN_MEMORY_BYTES, |most| most.0.saturating_add(GUEST_OVERHEAD_BYTES));
        let disk = limits.disk.map_or(MIN_DISK_BYTES, |most| most.0.saturating_mul(2));
        let size = |least: u64, most: u64| Bytes(most.max(least).next_power_of_two());
        Self {
            root,
            memory: size(MIN_MEMORY_BYTES, memory),
            disk: size(MIN_DISK_BYTES, disk),
            cpus: 1,
        }
    }

    /// What it depends on.
    pub(super) fn fingerprint(&self, runner: &str) -> Result<String> {
        Ok(self.cache_key(runner, &HostKernel::find_newest()?, &self.root.fingerprint()?))
    }

    fn cache_key(&self, runner: &str, kernel: &HostKernel, image: &str) -> String {
        let Self { memory, disk, cpus, .. } = self;
        let kernel = fingerprint::hash_file_state(&kernel.path).unwrap_or_default();
        let facts = format!(
            "{TEMPLATE_VERSION} {FAR_DIGEST} {runner} {kernel} {image} {memory:?} {disk:?} {cpus}"
        );
        fingerprint::hash_bytes(facts.as_bytes())
    }
}

/// What makes templates.
pub(super) struct TemplateWorkshop {
    pub store: MachineStore,
    pub native: Arc<Native>,
    pub driver: Arc<dyn Driver>,
    /// What tells that driver from others.
    pub runner: String,
    pub progress: Progress,
}

impl TemplateWorkshop {
    /// The template, if it is there.
    pub(super) fn find_template(&self, wanted: &WantedMachine) -> Result<Option<MachineTemplate>> {
        let key = wanted.root.fingerprint()?;
        let Some(image) = RootSource::find_image(&self.store, &key) else { return Ok(None) };
        let name = wanted.cache_key(&self.runner, &HostKernel::find_newest()?, &key);
        let Some(dir) = self.store.find_entry(StoreKind::Template, &name) else { return Ok(None) };
        let measured = fs::read(dir.path().join("measured")).map_err(unusable_error)?;
        let measured = serde_json::from_slice(&measured).map_err(|e| unusable_error(e.into()))?;
        Ok(Some(MachineTemplate { dir, image, wanted: wanted.clone(), measured }))
    }

    /// The template, made if it is not there by a machine that has this long to boot.
    pub(super) async fn find_or_make_template(
        &self,
        wanted: &WantedMachine,
        boot_timeout: Duration,
    ) -> Result<MachineTemplate> {
        if let Some(found) = self.find_template(wanted)? {
            return Ok(found);
        }
        let maker = self.store.acquire_maker().await?;
        // The process that held the lock before may have made it.
        if let Some(found) = self.find_template(wanted)? {
            return Ok(found);
        }
        let key = wanted.root.fingerprint()?;
        let gone = || system_error("create", "the prepared machine is gone");
        if RootSource::find_image(&self.store, &key).is_none() {
            (self.progress)(wanted.root.progress_message());
            wanted.root.make_image(&self.native, &maker, &key).await?;
        }
        let image = RootSource::find_image(&self.store, &key).ok_or_else(gone)?;
        let kernel = HostKernel::find_newest()?;
        (self.progress)("preparing a machine: starting one that others are copies of …");
        let image_path = image.path();
        let measured =
            self.make_template(&maker, wanted, &kernel, &key, image_path, boot_timeout).await?;
        let name = wanted.cache_key(&self.runner, &kernel, &key);
        let dir = self.store.find_entry(StoreKind::Template, &name);
        let dir = dir.ok_or_else(gone)?;
        Ok(MachineTemplate { dir, image, wanted: wanted.clone(), measured })
    }

    async fn make_template(
        &self,
        maker: &Maker,
        wanted: &WantedMachine,
        kernel: &HostKernel,
        key: &str,
        image: &Path,
        boot_timeout: Duration,
    ) -> Result<Capabilities> {
        let draft = maker.create_draft("template")?;
        let machine = prepare_machine(wanted, kernel, image, draft.path()).await?;
        let trial = Trial::make()?;
        let private = trial.get();
        let (id, dir) = (private.id(), private.path());
        let made = self.boot_and_save(&machine, id, dir, draft.path(), boot_timeout).await;
        let ended = self.native.destroy(private.id()).await;
        private.remove()?;
        let measured = made.and_then(|measured| ended.map(|()| measured))?;
        self.try_resume_copy(&MachineSource::prepared(draft.path(), image, wanted)).await?;
        let spare = [&machine.kernel, &machine.initramfs];
        spare.into_iter().try_for_each(fs::remove_file).map_err(unusable_error)?;
        maker.publish_entry(
            StoreKind::Template,
            &wanted.cache_key(&self.runner, kernel, key),
            draft.path(),
        )?;
        Ok(measured)
    }

    /// Continues a copy once, up to its first word: what cannot be continued here is no template, and a backend
    /// without one is not available.
    async fn try_resume_copy(&self, source: &MachineSource) -> Result<()> {
        let trial = Trial::make()?;
        let private = trial.get();
        let disk = private.path().join("disk");
        create::copy_disk(source.disk.clone(), disk.clone()).await?;
        let (machine, dir) = (source.machine_with_disk(disk), private.path());
        let vm = self.driver.resume(private.id(), &machine, &source.saved, dir).await?;
        let greeted = match vm.connect().await {
            Ok(pipe) => create::handshake_with_guest(private.id(), pipe, &*vm).await.map(drop),
            Err(error) => Err(error),
        };
        let ended = vm.end().await;
        greeted.and(ended).and(self.native.destroy(private.id()).await)
    }

    async fn boot_and_save(
        &self,
        machine: &MachineSpec,
        id: &SandboxId,
        dir: &Path,
        draft: &Path,
        boot_timeout: Duration,
    ) -> Result<Capabilities> {
        let vm = self.driver.boot(id, machine, dir).await?;
        let pipe = vm.connect().await?;
        let mut pipe = BufReader::new(pipe);
        let measured = wait_until_ready(&*vm, &mut pipe, boot_timeout).await?;
        vm.save(draft).await?;
        let measured = probe::add_snapshot_support(measured, vm.can_be_captured());
        // Not before: a machine that is hung up on ends.
        drop(pipe);
        vm.end().await?;
        let written = serde_json::to_vec(&measured).map_err(io::Error::from);
        let written = written.and_then(|text| fs::write(draft.join("measured"), text));
        written.map_err(unusable_error)?;
        Ok(measured)
    }
}

fn unusable_error(error: io::Error) -> Error {
    system_error("create", "the prepared machine cannot be used")
        .remedy("free it with `stockade clean` and try again")
        .source(error)
}

/// What the machine says when it is ready to be copied.
async fn wait_until_ready(
    vm: &dyn Vm,
    pipe: &mut BufReader<UnixStream>,
    boot_timeout: Duration,
) -> Result<Capabilities> {
    let mut line = String::new();
    let mut pipe = pipe.take(MAX_LINE_BYTES as u64);
    let Ok(read) = timeout(boot_timeout, pipe.read_line(&mut line)).await else {
        return Err(slow_boot_error(vm, boot_timeout));
    };
    let ready: Ready = match read.and_then(|_| Ok(serde_json::from_str(&line)?)) {
        Ok(ready) => ready,
        Err(error) => return Err(ended_early_error(vm, error).await),
    };
    let measured = ready.measured.from_a_peer();
    match &measured.unavailable {
        None => Ok(measured),
        Some((reason, _)) => {
            let message = format!("inside its machine: {reason}");
            Err(Error::new(ErrorCode::WallMissing, "create", message).backend(NAME))
        }
    }
}

/// Says what its console shows: it may tell why.
fn slow_boot_error(vm: &dyn Vm, boot_timeout: Duration) -> Error {
    let said = match vm.said() {
        said if said.is_empty() => "nothing".to_owned(),
        said => said,
    };
    let message = format!("its machine did not start within {boot_timeout:?}; it wrote: {said}");
    Error::new(ErrorCode::TooSlow, "create", message)
        .backend(NAME)
        .remedy("try again when the host is less busy")
}

async fn ended_early_error(vm: &dyn Vm, error: io::Error) -> Error {
    // One that speaks nonsense does not end by itself.
    let _ = timeout(EXIT_TIMEOUT, vm.wait_for_end()).await;
    let message = format!("its machine ended before it was ready: {}", vm.said());
    system_error("create", message).source(error)
}

/// What the machine is started with.
async fn prepare_machine(
    wanted: &WantedMachine,
    kernel: &HostKernel,
    image: &Path,
    draft: &Path,
) -> Result<MachineSpec> {
    let machine = MachineSpec {
        kernel: draft.join("kernel"),
        initramfs: draft.join("initramfs"),
        command_line: command_line(tsc::measure_tsc_khz()),
        memory: wanted.memory,
        cpus: wanted.cpus,
        cpu_rate: None,
        disks: vec![
            MachineDisk { path: image.to_owned(), read_only: true },
            MachineDisk { path: draft.join("disk"), read_only: false },
        ],
    };
    fs::write(&machine.kernel, kernel.read_unpacked()?).map_err(unusable_error)?;
    let mut first = Initramfs::default().add_directory("modules").add_directory("new");
    for (name, bytes) in kernel.load_modules()? {
        first = first.add_file(&format!("modules/{name}"), &bytes);
    }
    let first = first.add_file("init", FAR_PROGRAM).finish();
    fs::write(&machine.initramfs, first).map_err(unusable_error)?;
    let (disk, size) = (draft.join("disk"), wanted.disk);
    let formatted = tokio::task::spawn_blocking(move || format_disk(&disk, size)).await;
    formatted.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
        system_error("create", "its disk cannot be made")
            .remedy("install the package e2fsprogs")
            .source(error)
    })?;
    Ok(machine)
}

/// Without PIT and clock there is nothing to measure time by: it is said.
fn command_line(kilohertz: u64) -> String {
    let time = format!("tsc_early_khz={kilohertz} lpj={} no_timer_check", kilohertz * 4);
    format!("console=ttyS0 quiet loglevel=3 panic=-1 reboot=t {time}")
}

/// A file system on a sparse file. No journal: it never outlives its machine.
fn format_disk(path: &Path, size: Bytes) -> io::Result<()> {
    File::create_new(path)?.set_len(size.0)?;
    let made = Command::new("/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0"])
        .args(["-E", "lazy_itable_init=1,nodiscard"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if made.success() { Ok(()) } else { Err(io::Error::other(format!("mke2fs: {made}"))) }
}

impl MachineTemplate {
    /// What a copy of it is continued from.
    pub(super) fn machine_source(&self) -> MachineSource {
        let held = vec![self.dir.clone(), self.image.clone()];
        let source = MachineSource::prepared(self.dir.path(), self.image.path(), &self.wanted);
        MachineSource { held, ..source }
    }
}

impl MachineSource {
    /// A machine that was prepared in this directory.
    fn prepared(dir: &Path, image: &Path, wanted: &WantedMachine) -> Self {
        Self {
            saved: Saved { touched: None, ..Saved::within(dir) },
            disk: dir.join("disk"),
            root: image.to_owned(),
            memory: wanted.memory,
            cpus: wanted.cpus,
            held: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use async_trait::async_trait;
    use stockade_core::Limits;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::microvm::identity;
    use crate::microvm::qemu::{Power, Qemu};
    use crate::peer::protocol::HELLO_LINE;

    fn make_root(place: &Path) -> RootSource {
        let root = place.join("root");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        symlink("busybox", root.join("bin/sh")).unwrap();
        RootSource::Directory(root)
    }

    #[tokio::test]
    async fn a_copy_of_a_machine_answers_and_is_somebody_else() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = MachineStore::open(Some(place.path().join("store"))).unwrap();
        let native = Arc::new(Native::new());
        let helper = store.ensure_program_file().unwrap();
        let driver = Qemu::open(Arc::clone(&native), Power::Software, helper).unwrap();
        let (driver, runner) = (Arc::new(driver), "software".into());
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let progress: Progress = Arc::new(move |line| heard.lock().unwrap().push(line.to_owned()));
        let workshop =
            TemplateWorkshop { store, native, driver: Arc::clone(&driver) as _, runner, progress };
        let limits = Limits::default();
        let wanted = WantedMachine::from_limits(make_root(place.path()), &limits);
        let begun = Instant::now();
        let template = workshop.find_or_make_template(&wanted, BOOT_TIMEOUT).await.unwrap();
        println!("template: {:?} {:?}", begun.elapsed(), template.measured);
        // Once, before each step that takes a while.
        workshop.find_or_make_template(&wanted, BOOT_TIMEOUT).await.unwrap();
        let said = said.lock().unwrap().clone();
        assert!(said.len() == 2 && said[0].contains("packing"), "{said:?}");
        for _ in 0..3 {
            let begun = Instant::now();
            let trial = Trial::make().unwrap();
            let private = trial.get();
            let (disk, source) = (private.path().join("disk"), template.machine_source());
            stockade_fs::copy_sparse(
                &File::open(&source.disk).unwrap(),
                File::create(&disk).unwrap(),
            )
            .unwrap();
            let machine = source.machine_with_disk(disk);
            let vm =
                driver.resume(private.id(), &machine, &source.saved, private.path()).await.unwrap();
            let mut pipe = vm.connect().await.unwrap();
            let identity = identity::generate_identity(private.id()).unwrap();
            let mut line = serde_json::to_vec(&identity).unwrap();
            line.push(b'\n');
            pipe.write_all(&line).await.unwrap();
            let mut hello = vec![0; HELLO_LINE.len()];
            let read = pipe.read_exact(&mut hello).await;
            assert!(read.is_ok(), "{read:?} {}", vm.said());
            assert_eq!(hello, HELLO_LINE);
            println!("copy: {:?}", begun.elapsed());
            vm.end().await.unwrap();
        }
    }

    /// A machine that never says that it is ready. The last words on its console are there when it has ended.
    #[derive(Default)]
    struct SilentVm {
        ended: AtomicBool,
    }

    #[async_trait]
    impl Vm for SilentVm {
        async fn connect(&self) -> Result<UnixStream> {
            pending().await
        }

        async fn pause(&self) -> Result<()> {
            Ok(())
        }

        async fn unpause(&self) -> Result<()> {
            Ok(())
        }

        async fn save(&self, _: &Path) -> Result<()> {
            pending().await
        }

        fn can_be_captured(&self) -> bool {
            false
        }

        fn said(&self) -> String {
            let ended = self.ended.load(Ordering::SeqCst);
            if ended { "no disk was found".into() } else { "looking for a disk".into() }
        }

        async fn wait_for_end(&self) {
            self.ended.store(true, Ordering::SeqCst);
        }

        async fn end(&self) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_machine_that_does_not_start_is_refused_with_what_its_console_shows() {
        let (vm, (pipe, theirs)) = (SilentVm::default(), UnixStream::pair().unwrap());
        let mut pipe = BufReader::new(pipe);
        let slow = wait_until_ready(&vm, &mut pipe, Duration::ZERO).await.unwrap_err();
        assert_eq!(slow.code(), ErrorCode::TooSlow);
        let slow = slow.to_string();
        assert!(slow.contains("did not start within 0ns; it wrote: looking for a disk"), "{slow}");
        drop(theirs);
        let ended = wait_until_ready(&vm, &mut pipe, BOOT_TIMEOUT).await.unwrap_err().to_string();
        assert!(ended.contains("ended before it was ready: no disk was found"), "{ended}");
    }

    mod needs_vm {

        use stockade_core::Boundary;
        use tokio::sync::Notify;

        use super::*;
        use crate::microvm::private;

        /// A driver that never gets a machine started, and the sandbox that it was asked for.
        #[derive(Default)]
        struct Never {
            asked: Notify,
            id: Mutex<Option<SandboxId>>,
        }

        #[async_trait]
        impl Driver for Never {
            fn boundary(&self) -> Boundary {
                Boundary::Emulated
            }

            async fn version(&self) -> Result<String> {
                Ok("never".into())
            }

            async fn boot(&self, id: &SandboxId, _: &MachineSpec, _: &Path) -> Result<Box<dyn Vm>> {
                *self.id.lock().unwrap() = Some(id.clone());
                self.asked.notify_one();
                pending().await
            }

            async fn resume(
                &self,
                _: &SandboxId,
                _: &MachineSpec,
                _: &Saved,
                _: &Path,
            ) -> Result<Box<dyn Vm>> {
                pending().await
            }
        }

        #[tokio::test]
        async fn a_preparation_that_is_given_up_leaves_no_directory() {
            let place = tempfile::tempdir_in("/var/tmp").unwrap();
            let store = MachineStore::open(Some(place.path().join("store"))).unwrap();
            let driver = Arc::new(Never::default());
            let workshop = TemplateWorkshop {
                store,
                native: Arc::new(Native::new()),
                driver: Arc::clone(&driver) as _,
                runner: "never".into(),
                progress: Arc::new(|_| {}),
            };
            let wanted = WantedMachine::from_limits(make_root(place.path()), &Limits::default());
            tokio::select! {
                _ = workshop.find_or_make_template(&wanted, BOOT_TIMEOUT) => panic!("it never starts"),
                () = driver.asked.notified() => {}
            }
            let id = driver.id.lock().unwrap().clone().unwrap();
            assert!(!private::PRIVATE_DIRS.list().contains(&id), "its private directory is left");
            let entries = fs::read_dir(place.path().join("store")).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let drafts: Vec<_> = names.filter(|name| name.starts_with("new-")).collect();
            assert_eq!(drafts, Vec::<String>::new());
        }

        /// What a kernel does whose ACPI tables were overwritten.
        #[tokio::test]
        async fn a_kernel_that_is_told_of_no_devices_says_so() {
            let place = tempfile::tempdir_in("/var/tmp").unwrap();
            let store = MachineStore::open(Some(place.path().join("store"))).unwrap();
            let (native, helper) = (Arc::new(Native::new()), store.ensure_program_file().unwrap());
            let driver = Qemu::open(Arc::clone(&native), Power::Software, helper).unwrap();
            let (driver, runner, progress) = (Arc::new(driver), "".into(), Arc::new(|_: &str| {}));
            let workshop = TemplateWorkshop { store, native, driver, runner, progress };
            let wanted = WantedMachine::from_limits(RootSource::Empty, &Limits::default());
            let (kernel, image) = (HostKernel::find_newest().unwrap(), place.path().join("image"));
            File::create(&image).unwrap().set_len(4096).unwrap();
            let machine = prepare_machine(&wanted, &kernel, &image, place.path()).await.unwrap();
            let command_line = format!("{} acpi=off", machine.command_line);
            let machine = MachineSpec { command_line, ..machine };
            let (trial, draft) = (Trial::make().unwrap(), place.path());
            let (id, dir) = (trial.get().id(), trial.get().path());
            let made = workshop.boot_and_save(&machine, id, dir, draft, BOOT_TIMEOUT).await;
            workshop.native.destroy(id).await.unwrap();
            let error = made.unwrap_err().to_string();
            assert!(error.contains("its kernel found no ACPI tables"), "{error}");
        }
    }
}
