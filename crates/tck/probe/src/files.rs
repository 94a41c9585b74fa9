//! Verbs about files.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, mount_remount};
use serde_json::{Value, json};

use crate::limits::stay_if_told;
use crate::{Args, VerbOutcome, number_of, report_attempt};

/// Bytes that `read` gives back, at most.
const MAX_READ_BYTES: u64 = 1 << 20;

/// `fill PATH BYTES [MILLISECONDS]`: how much could be written; stays for a time if all of it was.
pub fn fill_file(args: &Args) -> io::Result<VerbOutcome> {
    let wanted = args.number(1)?;
    let piece = vec![0x5a; 64 << 10];
    let mut file = File::create(args.text(0))?;
    let mut done = 0;
    while done < wanted {
        let size = (wanted - done).min(piece.len() as u64) as usize;
        match file.write(&piece[..size]) {
            Ok(count) => done += count as u64,
            Err(error) => return Ok(write_facts(done, Some(&error))),
        }
    }
    // Some file systems find out about a full disk only now.
    let late = file.sync_all().err();
    if late.is_none() {
        stay_if_told(args, 2)?;
    }
    Ok(write_facts(done, late.as_ref()))
}

fn write_facts(bytes: u64, error: Option<&io::Error>) -> VerbOutcome {
    let errno = error.map(number_of);
    VerbOutcome::Facts(json!({ "ok": errno.is_none(), "bytes": bytes, "errno": errno }))
}

/// `read PATH`: its bytes as hexadecimal digits.
pub fn read_file(args: &Args) -> io::Result<VerbOutcome> {
    let whole = || -> io::Result<Value> {
        let mut data = Vec::new();
        File::open(args.text(0))?.take(MAX_READ_BYTES).read_to_end(&mut data)?;
        let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(json!({ "hex": hex }))
    };
    Ok(report_attempt(whole()))
}

/// `write PATH TEXT`.
pub fn write_file(args: &Args) -> io::Result<VerbOutcome> {
    Ok(report_attempt(fs::write(args.text(0), args.text(1)).map(|()| json!({}))))
}

/// `remove PATH`.
pub fn remove_path(args: &Args) -> io::Result<VerbOutcome> {
    Ok(report_attempt(fs::remove_file(args.text(0)).map(|()| json!({}))))
}

/// `make-link TARGET PATH`.
pub fn make_link(args: &Args) -> io::Result<VerbOutcome> {
    Ok(report_attempt(symlink(args.text(0), args.text(1)).map(|()| json!({}))))
}

/// `make-fifo PATH`.
pub fn make_fifo(args: &Args) -> io::Result<VerbOutcome> {
    let made = mknodat(CWD, args.text(0), FileType::Fifo, Mode::from_raw_mode(0o666), 0);
    Ok(report_attempt(made.map(|()| json!({})).map_err(Into::into)))
}

/// `list PATH`: the names in it.
pub fn list_directory(args: &Args) -> io::Result<VerbOutcome> {
    let names = || -> io::Result<Value> {
        let mut names = Vec::new();
        for entry in fs::read_dir(args.text(0))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(json!({ "names": names }))
    };
    Ok(report_attempt(names()))
}

/// `stat PATH`: what it is, without following it.
pub fn stat_file(args: &Args) -> io::Result<VerbOutcome> {
    let facts = |found: fs::Metadata| json!({ "size": found.len(), "mode": found.mode(), "uid": found.uid(), "gid": found.gid() });
    Ok(report_attempt(fs::symlink_metadata(args.text(0)).map(facts)))
}

/// `remount PATH`: tries to make a mount writable.
pub fn remount_writable(args: &Args) -> io::Result<VerbOutcome> {
    let made = mount_remount(args.text(0), MountFlags::BIND, "");
    Ok(report_attempt(made.map(|()| json!({})).map_err(Into::into)))
}

/// `set-id PATH`: tries to have files at and beside PATH that run as their owner.
pub fn set_id(args: &Args) -> io::Result<VerbOutcome> {
    let path = args.text(0);
    fs::write(path, "x")?;
    let changed = fs::set_permissions(path, fs::Permissions::from_mode(0o6755));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o4755);
    let made = options.open(format!("{path}-made")).map(drop);
    Ok(report_attempt(changed.or(made).map(|()| json!({}))))
}
