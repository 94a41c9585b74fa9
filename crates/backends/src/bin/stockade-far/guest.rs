//! The first process of a virtual machine: makes its few file systems, loads what its kernel lacks, and has a
//! second process of this program serve. When that ends, for any reason, the machine does.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::mount::{MountFlags, mount};
use rustix::process::{WaitOptions, wait};
use rustix::system::{RebootCommand, finit_module, reboot};
use stockade_backends::native::Native;
use stockade_backends::peer::guest::{GUEST_PORT_NAME, Identity, MAX_LINE_BYTES, Ready};
use stockade_backends::peer::protocol::HELLO_LINE;
use tokio::sync::oneshot;

use crate::base::{FarBase, GUEST_IMAGE_DIR, GUEST_ROOT_DIR};
use crate::identity::{self, Papers};
use crate::measure;
use crate::serve::{self, PeerLiveness};
use crate::streams::{self, StreamPair};
use crate::vsock::Listener;

/// The directory of the kernel modules, named in the order in which they are loaded.
const MODULES_DIR: &str = "/modules";
/// The argument by which the second process is recognised.
const SECOND_PROCESS_ARGUMENT: &str = "guest";
/// How long a disk may take to appear.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);
const DEVICE_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The directory that is there if the kernel has read the ACPI tables.
const ACPI_DIR: &str = "/new/sys/firmware/acpi";
const VIRTIO_DEVICES_DIR: &str = "/new/sys/bus/virtio/devices";
/// The kernel's log, before and after the root is entered, and the level of what it always shows.
const KERNEL_LOGS: [&str; 2] = ["/new/dev/kmsg", "/dev/kmsg"];
const CRITICAL_LEVEL: &str = "<2>";
/// The cgroup controllers enabled below the root group.
const CGROUP_CONTROLLERS: &str = "+cpu +memory +pids";

/// Whether this is the first process of a machine.
pub fn is_first() -> bool {
    std::process::id() == 1
}

/// Whether this is the second, by its argument.
pub fn is_second(argument: Option<&str>) -> bool {
    argument == Some(SECOND_PROCESS_ARGUMENT)
        && rustix::process::getppid().is_some_and(|parent| parent.is_init())
}

/// The first process. Only comes back by ending the machine.
pub fn run_first_process() {
    if let Err(error) = prepare_root().and_then(|()| wait_for_second()) {
        report_failure(&error);
    }
    // Without anything that could turn it off, a reboot is the end: the monitor does not start it again.
    let _ = reboot(RebootCommand::Restart);
}

/// Says why the machine ends, by way of the kernel where that is possible: it writes to the console without
/// interrupts, which a machine that cannot start may lack.
fn report_failure(error: &io::Error) {
    let line = format!("{CRITICAL_LEVEL}stockade: {error}");
    let log = KERNEL_LOGS.iter().find_map(|path| File::options().write(true).open(path).ok());
    let logged = log.is_some_and(|mut log| log.write_all(line.as_bytes()).is_ok());
    if !logged {
        let _ = writeln!(io::stderr(), "stockade: {error}");
    }
}

fn wait_for_second() -> io::Result<()> {
    let second = Command::new("/proc/self/exe").arg(SECOND_PROCESS_ARGUMENT).spawn()?;
    loop {
        // Also reaps orphans.
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, _))) if ended.as_raw_pid() as u32 == second.id() => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn with_context(what: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Everything in the order in which each needs what is before it.
fn prepare_root() -> io::Result<()> {
    let plain = MountFlags::NOSUID | MountFlags::NOEXEC;
    // The first root cannot be left: everything lives in one that can.
    mount_filesystem("tmpfs", "tmpfs", "/new", MountFlags::NOSUID | MountFlags::NODEV, "mode=755")?;
    mount_filesystem("dev", "devtmpfs", "/new/dev", MountFlags::NOSUID, "mode=755")?;
    mount_filesystem("pts", "devpts", "/new/dev/pts", plain, "ptmxmode=666")?;
    mount_filesystem("shm", "tmpfs", "/new/dev/shm", plain, "mode=1777")?;
    mount_filesystem("proc", "proc", "/new/proc", plain, "")?;
    mount_filesystem("sys", "sysfs", "/new/sys", plain, "")?;
    mount_filesystem("groups", "cgroup2", "/new/sys/fs/cgroup", plain, "")?;
    fs::write("/new/sys/fs/cgroup/cgroup.subtree_control", CGROUP_CONTROLLERS)
        .map_err(|error| with_context("control groups", error))?;
    load_modules()?;
    require_known_devices()?;
    for device in ["/new/dev/vda", "/new/dev/vdb"] {
        wait_for_device(device)?;
    }
    let disk = format!("/new{GUEST_ROOT_DIR}");
    mount_filesystem(
        "/new/dev/vda",
        "erofs",
        &format!("/new{GUEST_IMAGE_DIR}"),
        MountFlags::RDONLY,
        "",
    )?;
    mount_filesystem(
        "/new/dev/vdb",
        "ext4",
        &disk,
        MountFlags::NODEV | MountFlags::NOSUID,
        "noinit_itable",
    )?;
    rustix::fs::chmod(&disk, Mode::from_raw_mode(0o755))?;
    fs::create_dir_all(format!("{disk}/tmp"))?;
    fs::set_permissions(format!("{disk}/tmp"), Permissions::from_mode(0o1777))?;
    fs::create_dir_all("/new/tmp")?;
    mount(format!("{disk}/tmp"), "/new/tmp", "", MountFlags::BIND, None)?;
    enter_root("/new")
}

fn mount_filesystem(
    source: &str,
    kind: &str,
    target: &str,
    flags: MountFlags,
    data: &str,
) -> io::Result<()> {
    let failed = |error: io::Error| with_context(&format!("mounting {kind} at {target}"), error);
    fs::create_dir_all(target).map_err(failed)?;
    let data = std::ffi::CString::new(data)?;
    mount(source, target, kind, flags, data.as_c_str()).map_err(|error| failed(error.into()))
}

/// Fails where the kernel was told of no device, by ACPI or on its command line. Waiting would be in vain, and without
/// ACPI there may be no timer that ends a wait.
fn require_known_devices() -> io::Result<()> {
    if Path::new(ACPI_DIR).exists() || count_virtio_devices() > 0 {
        return Ok(());
    }
    let message = "its kernel found no ACPI tables, and so no devices";
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

fn count_virtio_devices() -> usize {
    fs::read_dir(VIRTIO_DEVICES_DIR).map_or(0, Iterator::count)
}

/// Drivers may find their devices after they were loaded: newer kernels do not wait for that.
fn wait_for_device(path: &str) -> io::Result<()> {
    let deadline = Instant::now() + DEVICE_TIMEOUT;
    while !Path::new(path).exists() {
        if Instant::now() >= deadline {
            let devices = count_virtio_devices();
            let message = format!("{path} does not appear; the bus has {devices} devices");
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        std::thread::sleep(DEVICE_POLL_INTERVAL);
    }
    Ok(())
}

fn load_modules() -> io::Result<()> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(MODULES_DIR)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    all.sort();
    for module in all {
        let loaded = File::open(&module).and_then(|file| Ok(finit_module(file, c"", 0)?));
        loaded.map_err(|error| with_context(&module.display().to_string(), error))?;
        fs::remove_file(&module)?;
    }
    Ok(())
}

/// Makes this the root.
fn enter_root(root: &str) -> io::Result<()> {
    rustix::process::chdir(root)?;
    rustix::mount::mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    Ok(rustix::process::chdir("/")?)
}

/// The second process: measures, waits to be copied, and serves under the identity of the copy.
pub async fn run_second_process(native: Native) -> io::Result<()> {
    let base = FarBase::for_guest();
    let measured = Box::new(measure::measure_anew(&native, &base).await);
    let mut ready = serde_json::to_vec(&Ready { measured })?;
    ready.push(b'\n');
    let papers = Papers::prepare()?;
    // In here the machine is copied: what follows happens once in each copy.
    let (copied, streams) = match open_port()? {
        Some(port) => wait_at_port(port, ready, papers)?,
        None => wait_for_connection(&ready, papers)?,
    };
    let gone = |_| io::Error::other("the thread that waits for the port is gone");
    let (identity, papers) = copied.await.map_err(gone)??;
    native.call_machine(identity::sandbox_identity(&identity));
    serve::serve_connection(native, Ok(base), streams, PeerLiveness::InACopy(papers)).await
}

/// Who a copy is, once it is one.
type IdentityReceiver = oneshot::Receiver<io::Result<(Identity, Papers)>>;

/// Says that it is ready, by the thread that waits for what the port brings: it is there before the machine
/// is copied, and does in the copy what has to be done before anybody is answered.
fn wait_at_port(
    port: File,
    ready: Vec<u8>,
    papers: Papers,
) -> io::Result<(IdentityReceiver, StreamPair)> {
    let (tell, copied) = oneshot::channel();
    let greet = move |mut port: &File| {
        let told = port.write_all(&ready).and_then(|()| read_line(port));
        // The receiver may be gone: then the machine is about to end.
        let _ = tell.send(told.and_then(|told| assume_identity(&told, port, papers)));
    };
    Ok((copied, streams::spawn_port_streams(port, greet)?))
}

/// The same by a socket. A connection does not survive the copying: the next one is the copy's own.
fn wait_for_connection(ready: &[u8], papers: Papers) -> io::Result<(IdentityReceiver, StreamPair)> {
    let listener = Listener::open()
        .map_err(|error| with_context("it cannot listen for connections", error))?;
    let mut pipe = listener.accept()?;
    pipe.write_all(ready)?;
    let told = loop {
        match read_line(&pipe) {
            Ok(told) => break told,
            Err(_) => pipe = listener.accept()?,
        }
    };
    let (tell, copied) = oneshot::channel();
    let _ = tell.send(assume_identity(&told, &pipe, papers));
    Ok((copied, streams::spawn_port_streams(pipe, |_| {})?))
}

/// Becomes who it is told to be, and says the first word.
fn assume_identity(told: &[u8], mut pipe: &File, papers: Papers) -> io::Result<(Identity, Papers)> {
    let identity = serde_json::from_slice(told)?;
    papers.apply_identity(&identity)?;
    pipe.write_all(HELLO_LINE)?;
    Ok((identity, papers))
}

/// Opens the port of our name, by any number that the kernel gave it.
fn open_port() -> io::Result<Option<File>> {
    for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == GUEST_PORT_NAME {
            let device = Path::new("/dev").join(entry.file_name());
            return File::options().read(true).write(true).open(device).map(Some);
        }
    }
    Ok(None)
}

/// One line, after which nothing comes until it is answered.
fn read_line(mut port: &File) -> io::Result<Vec<u8>> {
    let (mut line, mut piece) = (Vec::new(), [0; 1024]);
    while line.len() < MAX_LINE_BYTES {
        let read = port.read(&mut piece)?;
        line.extend_from_slice(&piece[..read]);
        match line.last() {
            Some(b'\n') => return Ok(line),
            _ if read == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}
