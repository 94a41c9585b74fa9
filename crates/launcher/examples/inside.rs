//! A stand-in for the agent in the launcher's tests: answers one JSON request per line on its pipe
//! with what it sees and may do. Ends, and its sandbox with it, when the pipe closes.
#![allow(unsafe_code)] // the pipe's number, and the system calls under test

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;

use rustix::net::{AddressFamily, SocketType};
use serde_json::{Value, json};

fn main() -> std::io::Result<()> {
    // SAFETY: the launcher promises the pipe under this number, and nothing else here owns it.
    let pipe = unsafe { File::from_raw_fd(3) };
    let mut out = pipe.try_clone()?;
    for line in BufReader::new(pipe).lines() {
        let request: Value = serde_json::from_str(&line?)?;
        writeln!(out, "{}", answer(&request))?;
    }
    Ok(())
}

fn answer(request: &Value) -> Value {
    let Some((verb, argument)) = request.as_object().and_then(|verbs| verbs.iter().next()) else {
        return Value::Null;
    };
    let text = argument.as_str().unwrap_or_default();
    match verb.as_str() {
        "read" => json!(std::fs::read_to_string(text).ok()),
        "list" => list(text),
        "write" => errno(std::fs::write(text, b"written")),
        "link" => json!(std::fs::read_link(text).ok()),
        "args" => json!(std::env::args().collect::<Vec<_>>()),
        "env" => json!(std::env::vars().collect::<Vec<_>>()),
        "ids" => ids(),
        "run" => run(argument),
        "call" => call(argument),
        "connect" => errno(UnixStream::connect(text)),
        "send" => send(text),
        "listen" => errno(UnixListener::bind(text).map(std::mem::forget)),
        "pair" => pair(text),
        "queue" => queue(text),
        "tcp" => tcp(),
        "chdir" => errno(std::env::set_current_dir(text)),
        "mode" => mode(text),
        "inotify" => inotify(),
        _ => Value::Null,
    }
}

fn errno<T>(result: std::io::Result<T>) -> Value {
    json!(result.err().and_then(|error| error.raw_os_error()).unwrap_or(0))
}

fn list(path: &str) -> Value {
    let Ok(entries) = std::fs::read_dir(path) else { return Value::Null };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    json!(names.collect::<Vec<_>>())
}

fn ids() -> Value {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    json!({ "uid": uid, "gid": gid, "pid": std::process::id() })
}

fn run(argument: &Value) -> Value {
    let words: Vec<&str> =
        argument.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some((program, arguments)) = words.split_first() else { return Value::Null };
    match Command::new(program).args(arguments).output() {
        Err(error) => json!({ "error": error.to_string() }),
        Ok(output) => json!({
            "code": output.status.code(),
            "out": String::from_utf8_lossy(&output.stdout),
            "err": String::from_utf8_lossy(&output.stderr),
        }),
    }
}

/// Sends a datagram to a path, by every way there is.
fn send(path: &str) -> Value {
    errno(UnixDatagram::unbound().and_then(|socket| socket.send_to(b"x", path)))
}

/// Listens at a path and connects to it; says what went through and whom the peer was told to be.
fn pair(path: &str) -> Value {
    let chat = || {
        let listener = UnixListener::bind(path)?;
        let mut ours = UnixStream::connect(path)?;
        let (mut theirs, _) = listener.accept()?;
        ours.write_all(b"hello")?;
        let mut heard = [0; 5];
        theirs.read_exact(&mut heard)?;
        let uid = peer_uid(&theirs);
        let blocks = !rustix::fs::fcntl_getfl(&ours)?.contains(rustix::fs::OFlags::NONBLOCK);
        std::io::Result::Ok(
            json!({ "heard": String::from_utf8_lossy(&heard), "uid": uid, "blocks": blocks }),
        )
    };
    chat().unwrap_or_else(|error| json!(error.to_string()))
}

/// Whom the kernel says that the peer is. It has no process id where that process is outside.
fn peer_uid(socket: &UnixStream) -> u32 {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the struct has the length given, and both outlive the call.
    unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        );
    }
    peer.uid
}

/// Fills the queue of a listener, then connects once more while another thread makes room.
fn queue(path: &str) -> Value {
    let chat = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 0)?;
        let first = UnixStream::connect(path)?;
        std::thread::scope(|scope| {
            let second = scope.spawn(|| UnixStream::connect(path));
            // Both connections wait for `accept`, in either order.
            let taken: Vec<_> = (0..2).map(|_| rustix::net::accept(&socket)).collect();
            let second = second.join().unwrap_or_else(|_| Err(Error::other("panicked")))?;
            drop((first, second));
            Ok(json!(taken.iter().all(Result::is_ok)))
        })
    };
    chat().unwrap_or_else(|error: Error| json!(error.to_string()))
}

fn tcp() -> Value {
    let chat = || {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut ours = TcpStream::connect(listener.local_addr()?)?;
        let (mut theirs, _) = listener.accept()?;
        ours.write_all(b"hello")?;
        let mut heard = [0; 5];
        theirs.read_exact(&mut heard)?;
        let nobody = TcpStream::connect("127.0.0.1:1").err().and_then(|error| error.raw_os_error());
        std::io::Result::Ok(json!({ "heard": String::from_utf8_lossy(&heard), "nobody": nobody }))
    };
    chat().unwrap_or_else(|error| json!(error.to_string()))
}

/// Every way to get a file that runs as its owner; says the errno of each.
fn mode(dir: &str) -> Value {
    let file = CString::new(format!("{dir}/file")).unwrap_or_default();
    let other = CString::new(format!("{dir}/other")).unwrap_or_default();
    let _ = std::fs::write(format!("{dir}/file"), "x");
    let code = |ret: libc::c_long| {
        let code = Error::last_os_error().raw_os_error().unwrap_or(0);
        json!(if ret < 0 { code } else { 0 })
    };
    let at = libc::AT_FDCWD;
    let create = libc::O_CREAT | libc::O_WRONLY;
    // SAFETY: the paths are C strings that outlive the calls.
    unsafe {
        let fd = libc::open(file.as_ptr(), libc::O_RDONLY);
        json!({
            "plain": code(libc::chmod(file.as_ptr(), 0o755).into()),
            "sticky": code(libc::chmod(file.as_ptr(), 0o1755).into()),
            "fchmod": code(libc::fchmod(fd, 0o4755).into()),
            "chmod": code(libc::syscall(libc::SYS_chmod, file.as_ptr(), 0o4755)),
            "fchmodat": code(libc::syscall(libc::SYS_fchmodat, at, file.as_ptr(), 0o2755)),
            "fchmodat2": code(libc::syscall(libc::SYS_fchmodat2, at, file.as_ptr(), 0o4755, 0)),
            "open": code(libc::syscall(libc::SYS_open, other.as_ptr(), create, 0o4755)),
            "openat": code(libc::syscall(libc::SYS_openat, at, other.as_ptr(), create, 0o4755)),
            "creat": code(libc::syscall(libc::SYS_creat, other.as_ptr(), 0o6755)),
            "mknod": code(libc::syscall(libc::SYS_mknod, other.as_ptr(), 0o104_755, 0)),
            "mknodat": code(libc::syscall(libc::SYS_mknodat, at, other.as_ptr(), 0o104_755, 0)),
            "reads": code(libc::syscall(libc::SYS_open, file.as_ptr(), libc::O_RDONLY, 0o4755)),
        })
    }
}

/// How many instances there are to be had.
fn inotify() -> Value {
    // SAFETY: no pointers are passed.
    let made = (0..4096).take_while(|_| unsafe { libc::inotify_init1(0) } >= 0).count();
    json!(made)
}

/// Makes a system call with the numbers given and says its errno, or 0.
fn call(argument: &Value) -> Value {
    let word = |index: usize| argument.get(index).and_then(Value::as_i64).unwrap_or(0);
    // SAFETY: the tests pass numbers only: no call that they make can reach this process's memory.
    let ret =
        unsafe { libc::syscall(word(0), word(1), word(2), word(3), word(4), word(5), word(6)) };
    let code = Error::last_os_error().raw_os_error().unwrap_or(0);
    json!(if ret < 0 { code } else { 0 })
}
