//! The verbs about files, played over the virtual tree.

use serde_json::{Value, json};
use stockade_backends::mock::{Errno, Guest, MockNode};

use super::verbs::{Played, number_argument, text_argument};

/// Plays the verb if it is one about files.
pub(super) fn run_file_verb(verb: &str, guest: &Guest) -> Option<Played> {
    let attempt = match verb {
        "read" => read_file(guest),
        "write" => write_file(guest, text_argument(guest, 1).as_bytes()),
        "remove" => remove_file(guest),
        "make-link" => create_node(guest, 1, MockNode::Symlink(text_argument(guest, 0))),
        "make-fifo" => create_node(guest, 0, MockNode::Fifo),
        "list" => list_directory(guest),
        "stat" => stat_file(guest),
        "fill" => return Some(Ok(fill_file(guest))),
        _ => return None,
    };
    Some(Ok(facts_of(attempt)))
}

fn facts_of(attempt: Result<Value, Errno>) -> Value {
    match attempt {
        Ok(mut facts) => {
            facts["ok"] = json!(true);
            facts
        }
        Err(errno) => json!({ "ok": false, "errno": errno as i32 }),
    }
}

fn read_file(guest: &Guest) -> Result<Value, Errno> {
    let at = guest.resolve(&text_argument(guest, 0))?;
    let data = guest.files(|tree| tree.read(&at).map(<[u8]>::to_vec))?;
    let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(json!({ "hex": hex }))
}

fn write_file(guest: &Guest, data: &[u8]) -> Result<Value, Errno> {
    let at = guest.resolve(&text_argument(guest, 0))?;
    guest.files(|tree| tree.write(&at, data, false)).map(|()| json!({}))
}

fn remove_file(guest: &Guest) -> Result<Value, Errno> {
    let at = guest.resolve(&text_argument(guest, 0))?;
    let there = guest.files(|tree| tree.remove(&at))?;
    if there { Ok(json!({})) } else { Err(Errno::NoEntry) }
}

fn create_node(guest: &Guest, at: usize, node: MockNode) -> Result<Value, Errno> {
    let at = guest.resolve(&text_argument(guest, at))?;
    guest.files(|tree| tree.put(&at, node)).map(|()| json!({}))
}

fn list_directory(guest: &Guest) -> Result<Value, Errno> {
    let at = guest.resolve(&text_argument(guest, 0))?;
    let names = guest.files(|tree| tree.list(&at))?;
    Ok(json!({ "names": names.into_iter().map(|(name, _)| name).collect::<Vec<_>>() }))
}

fn stat_file(guest: &Guest) -> Result<Value, Errno> {
    let at = guest.resolve(&text_argument(guest, 0))?;
    let node = guest.files(|tree| tree.node(&at).cloned())?;
    let size = if let MockNode::File(data) = node { data.len() } else { 0 };
    Ok(json!({ "size": size }))
}

fn fill_file(guest: &Guest) -> Value {
    let wanted = usize::try_from(number_argument(guest, 1)).unwrap_or(usize::MAX);
    let failed = write_file(guest, &vec![0x5a; wanted]).err();
    let written = guest
        .resolve(&text_argument(guest, 0))
        .and_then(|at| guest.files(|tree| tree.read(&at).map(<[u8]>::len)));
    json!({
        "ok": failed.is_none(),
        "bytes": written.unwrap_or(0),
        "errno": failed.map(|errno| errno as i32),
    })
}
