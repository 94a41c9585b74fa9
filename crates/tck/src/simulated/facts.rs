//! The verbs that ask what the guest may and can see, answered as good walls would.

use serde_json::{Value, json};
use stockade_backends::mock::Guest;

use super::verbs::{Played, number_argument};

// Linux error numbers: EAGAIN, ESRCH, EMFILE, ENETUNREACH, ECONNREFUSED.
const TRY_AGAIN: i32 = 11;
const NO_SUCH_PROCESS: i32 = 3;
const TOO_MANY_FILES: i32 = 24;
const NETWORK_UNREACHABLE: i32 = 101;
const CONNECTION_REFUSED: i32 = 111;

/// Plays the verb if it is one about what can be seen or used.
pub(super) fn run_facts_verb(verb: &str, guest: &Guest) -> Option<Played> {
    Some(match verb {
        "allocate" => allocate_memory(guest),
        "open-files" => Ok(open_files(guest)),
        "fork-many" => Ok(fork_many(guest)),
        "kill" => Ok(json!({ "ok": false, "errno": NO_SUCH_PROCESS })),
        // Answered by a filter, as everywhere.
        "contexts" => Ok(json!({ "ok": false, "errno": 38 })),
        "huge-pages" => Ok(json!({ "ok": false, "errno": 22 })),
        "find-process" => Ok(json!({ "ok": true, "found": 0 })),
        "connect" => Ok(json!({ "ok": false, "errno": NETWORK_UNREACHABLE })),
        "connect-unix" => Ok(json!({ "ok": false, "errno": CONNECTION_REFUSED })),
        "listen-and-connect" => Ok(json!({ "ok": true, "heard": "hello" })),
        "terminal" => Ok(report_terminal(guest)),
        "report" => Ok(report_guest(guest)),
        _ => return None,
    })
}

fn allocate_memory(guest: &Guest) -> Played {
    let bytes = number_argument(guest, 0);
    guest.allocate(bytes).map(|()| json!({ "ok": true, "bytes": bytes }))
}

/// Three are taken by the standard streams.
fn open_files(guest: &Guest) -> Value {
    let wanted = number_argument(guest, 0);
    let room = guest.limits.open_files.map_or(wanted, |most| u64::from(most.saturating_sub(3)));
    let errno = (wanted > room).then_some(TOO_MANY_FILES);
    json!({ "ok": errno.is_none(), "count": wanted.min(room), "errno": errno })
}

fn fork_many(guest: &Guest) -> Value {
    let wanted = u32::try_from(number_argument(guest, 0)).unwrap_or(u32::MAX);
    let count = guest.room_for_processes(wanted);
    let errno = (count < wanted).then_some(TRY_AGAIN);
    json!({ "ok": errno.is_none(), "count": count, "errno": errno })
}

pub(super) fn report_terminal(guest: &Guest) -> Value {
    let size = guest.terminal();
    json!({
        "ok": true,
        "terminals": vec![size.is_some(); 3],
        "rows": size.map(|size| size.rows),
        "cols": size.map(|size| size.cols),
    })
}

fn report_guest(guest: &Guest) -> Value {
    let (uid, gid) = guest.user.map_or((65534, 65534), |user| (user.uid, user.gid));
    let none = "0000000000000000";
    json!({
        "ok": true,
        "ids": { "uid": uid, "euid": uid, "gid": gid, "egid": gid, "groups": [gid] },
        "pid": 2,
        "parent": 1,
        "hostname": "mock",
        "capabilities": {
            "inheritable": none, "permitted": none, "effective": none, "bounding": none,
            "ambient": none,
        },
        "noNewPrivs": "1",
        "seccomp": "2",
        "environment": guest.env,
        "descriptors": { "0": "/dev/null", "1": "pipe:[1]", "2": "pipe:[2]" },
        "directory": guest.dir,
        "pids": [1, 2],
        "interfaces": [{ "name": "lo", "addresses": [] }],
        "arguments": guest.argv,
    })
}
