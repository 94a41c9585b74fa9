//! A stand-in for the agent in the launcher's tests: answers one JSON request per line on its pipe
//! with what it sees and may do. Ends, and its sandbox with it, when the pipe closes.
#![allow(unsafe_code)] // the pipe's number, and the system calls under test

use std::fs::File;
use std::io::{BufRead, BufReader, Error, Write};
use std::os::fd::FromRawFd;
use std::process::Command;

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

/// Makes a system call with the numbers given and says its errno, or 0.
fn call(argument: &Value) -> Value {
    let word = |index: usize| argument.get(index).and_then(Value::as_i64).unwrap_or(0);
    // SAFETY: the tests pass numbers only: no call that they make can reach this process's memory.
    let ret =
        unsafe { libc::syscall(word(0), word(1), word(2), word(3), word(4), word(5), word(6)) };
    let code = Error::last_os_error().raw_os_error().unwrap_or(0);
    json!(if ret < 0 { code } else { 0 })
}
