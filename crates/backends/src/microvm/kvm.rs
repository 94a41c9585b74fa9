//! Whether KVM here really runs a Linux guest. That `/dev/kvm` can be opened proves nothing: some hosts
//! emulate kernel-mode code instruction by instruction and refuse a part of what every Linux kernel
//! executes. So a few such instructions are run in a throw-away machine of 32 KiB.
//!
//! Takes about a millisecond, has a limit of its own, and leaves nothing: no process, no file, no
//! signal handler.
#![allow(unsafe_code, reason = "a thread's signals have no safe form")]

mod code;
mod machine;
#[cfg(test)]
mod nested;

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvm_ioctls::Kvm as Device;

use code::{LINUX_STEPS, ProbeStep};

const KVM_DEVICE: &CStr = c"/dev/kvm";
/// Timeout of a run, and again of its end by the kernel: a thousand times what either takes, for a busy
/// host must not be taken for one that cannot.
const RUN_TIMEOUT: Duration = Duration::from_secs(3);
/// The signal that ends a run. Blocked in the thread that runs the machine, and so never delivered.
const KICK_SIGNAL: libc::c_int = libc::SIGURG;
/// What KVM is good for on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kvm {
    /// It runs what Linux is made of.
    Works,
    /// There is no such device.
    Absent,
    /// It is there, and not for this user.
    Denied,
    /// It is there and would fail a guest.
    CannotRunLinux { reason: String },
}

impl Kvm {
    /// What to do about it.
    pub(super) const fn remedy(&self) -> &'static str {
        match self {
            Self::Works => "nothing is to be done",
            Self::Absent => {
                "enable virtualisation in the firmware (or nested virtualisation, if this is a \
                 virtual machine) and load `kvm_intel` or `kvm_amd`"
            }
            Self::Denied => "add this user to the group `kvm` and log in again",
            Self::CannotRunLinux { .. } => {
                "use a host with hardware virtualisation, or software emulation by `qemu`"
            }
        }
    }
}

impl fmt::Display for Kvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("KVM runs Linux guests"),
            Self::Absent => f.write_str("KVM is absent: there is no /dev/kvm"),
            Self::Denied => f.write_str("KVM is present but this user may not use /dev/kvm"),
            Self::CannotRunLinux { reason } => {
                write!(f, "KVM is present but cannot run Linux guests: {reason}")
            }
        }
    }
}

/// A probe that was begun ahead of time, until it is asked for.
static PROBE_AHEAD: Mutex<Option<JoinHandle<Kvm>>> = Mutex::new(None);

/// Begins to find out in a thread of its own, while this one does something else.
pub(super) fn begin_probe() {
    let begun = thread::Builder::new().name("stockade-kvm".into()).spawn(probe_kvm);
    // Without a thread or the lock, the question is answered when it is asked.
    if let (Ok(begun), Ok(mut ahead)) = (begun, PROBE_AHEAD.lock()) {
        *ahead = Some(begun);
    }
}

/// What a probe has found that was begun ahead of time; nothing where there was none. Once: whoever asks
/// again wants to know how it is by then.
pub(super) fn finish_probe() -> Option<Kvm> {
    let begun = PROBE_AHEAD.lock().ok()?.take()?;
    begun.join().ok()
}

/// Finds out. Blocks for a millisecond, or for twice the limit at the most.
pub(super) fn probe_kvm() -> Kvm {
    probe_device(KVM_DEVICE)
}

fn probe_device(device: &CStr) -> Kvm {
    match Device::new_with_path(device) {
        Ok(device) => run_probe_steps(device, LINUX_STEPS),
        Err(error) => classify_open_error(error.errno()),
    }
}

fn classify_open_error(errno: i32) -> Kvm {
    match errno {
        // The node may be there without anything behind it.
        libc::ENOENT | libc::ENODEV | libc::ENXIO => Kvm::Absent,
        libc::EACCES | libc::EPERM => Kvm::Denied,
        other => {
            let error = io::Error::from_raw_os_error(other);
            Kvm::CannotRunLinux { reason: format!("/dev/kvm cannot be opened: {error}") }
        }
    }
}

/// Runs these steps and says how it went.
fn run_probe_steps(device: Device, steps: &'static [ProbeStep]) -> Kvm {
    match run_with_timeout(move || machine::run_steps(&device, steps)) {
        Ok(()) => Kvm::Works,
        Err(reason) => Kvm::CannotRunLinux { reason },
    }
}

type ProbeResult = Result<(), String>;

/// Runs it in a thread that can be called back. One that the kernel never lets go of is given up,
/// with the machine that it owns.
fn run_with_timeout(run: impl FnOnce() -> ProbeResult + Send + 'static) -> ProbeResult {
    let (done, answers) = mpsc::channel();
    let body = move || {
        block_every_signal();
        let _ = done.send(run());
    };
    let started = thread::Builder::new().name("stockade-kvm".into()).spawn(body);
    let runner = started.map_err(|error| format!("no thread for it: {error}"))?;
    match answers.recv_timeout(RUN_TIMEOUT) {
        Err(RecvTimeoutError::Timeout) => kick_thread(&runner),
        Ok(answer) => return join_runner(runner, answer),
        Err(RecvTimeoutError::Disconnected) => return Err("the attempt broke off".into()),
    }
    match answers.recv_timeout(RUN_TIMEOUT) {
        Ok(answer) => join_runner(runner, answer),
        Err(_) => Err(format!("a machine did not stop within {:?}", 2 * RUN_TIMEOUT)),
    }
}

/// The answer, once everything that was made for it is gone.
fn join_runner(runner: JoinHandle<()>, answer: ProbeResult) -> ProbeResult {
    let _ = runner.join();
    answer
}

fn block_every_signal() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: the set is filled before it is read, and only this thread's mask changes.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

fn kick_thread(runner: &JoinHandle<()>) {
    // SAFETY: the thread was not joined, so that its name is still its own; the signal is blocked there.
    unsafe { libc::pthread_kill(runner.as_pthread_t(), KICK_SIGNAL) };
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::time::Instant;

    use super::*;

    fn open_device() -> Option<Device> {
        match Device::new() {
            Ok(device) => Some(device),
            Err(error) => {
                println!("skipped: {}", classify_open_error(error.errno()));
                None
            }
        }
    }

    #[test]
    fn it_answers_in_time_wherever_it_is() {
        let began = Instant::now();
        let found = probe_kvm();
        println!("in {:?}: {found} (remedy: {})", began.elapsed(), found.remedy());
        assert!(began.elapsed() < 3 * RUN_TIMEOUT, "{:?}", began.elapsed());
    }

    #[test]
    fn a_missing_device_is_absent() {
        assert_eq!(probe_device(c"/proc/self/no-such-device"), Kvm::Absent);
    }

    #[test]
    fn a_device_that_may_not_be_opened_is_denied_and_the_remedy_names_the_group() {
        assert_eq!(classify_open_error(libc::EACCES), Kvm::Denied);
        assert!(Kvm::Denied.remedy().contains("group `kvm`"));
    }

    #[test]
    fn something_else_in_its_place_is_told_by_what_it_lacks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = CString::new(file.path().to_str().unwrap()).unwrap();
        let reason = "/dev/kvm is no KVM device".to_owned();
        assert_eq!(probe_device(&path), Kvm::CannotRunLinux { reason });
    }

    #[test]
    fn a_machine_that_hangs_is_ended_and_its_step_is_named() {
        const HANGING_STEPS: &[ProbeStep] =
            &[ProbeStep::new("nop", &[0x90]), ProbeStep::new("jmp .", &[0xeb, 0xfe])];
        let Some(device) = open_device() else { return };
        let reason = format!("the machine hung for {RUN_TIMEOUT:?} at `jmp .`");
        assert_eq!(run_probe_steps(device, HANGING_STEPS), Kvm::CannotRunLinux { reason });
    }

    #[test]
    fn an_instruction_that_fails_is_named() {
        // There is no handler for an undefined instruction.
        const CRASHING_STEPS: &[ProbeStep] =
            &[ProbeStep::new("nop", &[0x90]), ProbeStep::new("ud2", &[0x0f, 0x0b])];
        let Some(device) = open_device() else { return };
        let Kvm::CannotRunLinux { reason } = run_probe_steps(device, CRASHING_STEPS) else {
            panic!("it ran what does not exist")
        };
        assert!(reason.ends_with("at `ud2`"), "{reason}");
    }

    #[test]
    fn an_emulator_that_refuses_is_told_with_the_instruction() {
        // What reads memory that is not there is emulated, on any host; and this cannot be.
        const REFUSED_STEPS: &[ProbeStep] = &[
            ProbeStep::new("nop", &[0x90]),
            ProbeStep::new("popcnt", &[0xbf, 0x00, 0x00, 0x10, 0x00, 0xf3, 0x48, 0x0f, 0xb8, 0x07]),
        ];
        let Some(device) = open_device() else { return };
        let found = run_probe_steps(device, REFUSED_STEPS);
        println!("{found}");
        let reason = "it is emulated, and the emulator gave up at `popcnt`".to_owned();
        assert_eq!(found, Kvm::CannotRunLinux { reason });
    }

    #[test]
    fn a_run_that_never_answers_is_given_up_without_a_trace_in_the_answer() {
        let never = || -> ProbeResult {
            thread::sleep(Duration::from_secs(3600));
            Ok(())
        };
        let began = Instant::now();
        assert!(run_with_timeout(never).unwrap_err().contains("did not stop"));
        assert!(began.elapsed() < 4 * RUN_TIMEOUT);
    }
}
