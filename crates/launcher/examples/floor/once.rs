//! One bare launch, as little as can be: eight namespaces, six mounts, an execution, a wait.

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::ptr;

/// Clones, builds, executes `program` and waits for it.
pub fn once(program: &File) -> Result<()> {
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWTIME;
    let mut args = [0_u64; 11];
    args[0] = flags as u64;
    args[4] = libc::SIGCHLD as u64;
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: a fork in all but name, from a process with one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
    match pid {
        0 => child(program, ids),
        pid if pid < 0 => Err(Error::last_os_error()),
        pid => wait(pid as libc::pid_t),
    }
}

fn wait(pid: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: the status outlives the call.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    match waited == pid && status == 0 {
        true => Ok(()),
        false => Err(Error::other(format!("the child ended with {status}"))),
    }
}

fn child(program: &File, ids: (u32, u32)) -> ! {
    let done = build(ids).and_then(|()| execute(program));
    let code = done.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
    // SAFETY: does not come back.
    unsafe { libc::_exit(code) }
}

fn build((uid, gid): (u32, u32)) -> Result<()> {
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    mount("", "/", "", libc::MS_REC | libc::MS_PRIVATE)?;
    mount("tmpfs", "/tmp", "tmpfs", 0)?;
    for name in ["usr", "lib64", "lib", "proc", "tmp", "dev"] {
        std::fs::create_dir(format!("/tmp/{name}"))?;
    }
    for name in ["usr", "lib", "lib64"] {
        mount(&format!("/{name}"), &format!("/tmp/{name}"), "", libc::MS_BIND | libc::MS_REC)?;
    }
    mount("proc", "/tmp/proc", "proc", 0)?;
    mount("tmpfs", "/tmp/tmp", "tmpfs", 0)?;
    std::env::set_current_dir("/tmp")?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH)?;
    Ok(())
}

fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong) -> Result<()> {
    let [source, target, kind] = [source, target, kind].map(CString::new);
    let (source, target, kind) = (source?, target?, kind?);
    // SAFETY: three C strings that outlive the call, and no data.
    let ret =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, ptr::null()) };
    if ret == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn execute(program: &File) -> Result<()> {
    let args = [c"true".as_ptr(), ptr::null()];
    // SAFETY: both lists end in a null pointer.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            args.as_ptr(),
            args.as_ptr().add(1),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(Error::last_os_error())
}
