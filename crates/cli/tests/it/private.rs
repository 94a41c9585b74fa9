//! What Stockade makes on the host is its user's alone from the first instant, under any umask (C-07), and
//! what it makes for the caller is as the caller's umask says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common;
use crate::common::lasting::Lasting;
use crate::common::{CliPlace, command_lines, finish, start, under, wait};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Everything below a directory that others have any right to.
fn open_to_others(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, seen) = (entry.path(), entry.metadata().unwrap());
        if seen.is_dir() {
            found.extend(open_to_others(&path));
        }
        if !seen.is_symlink() && seen.mode() & 0o077 != 0 {
            found.push(format!("{} {:o}", path.display(), seen.mode()));
        }
    }
    found
}

#[test]
fn state_is_closed_to_others_whatever_the_umask() {
    for umask in ["000", "022", "077"] {
        let place = CliPlace::new();
        let command = place.command(&["run", "--", "true"]);
        finish(under(umask, &command)).code_is(0);
        assert_eq!(mode(&place.state()), 0o700);
        assert_eq!(open_to_others(&place.state()), Vec::<String>::new(), "{umask}");
    }
}

#[test]
fn a_guests_files_have_the_modes_that_programs_expect() {
    for umask in ["000", "022", "077"] {
        let place = CliPlace::new();
        let line = "echo x > file; mkdir dir; umask";
        let command = place.command(&["run", "--shell", line]);
        finish(under(umask, &command)).is(0, "0022\n", "");
        let made = place.workspace();
        assert_eq!((mode(&made.join("file")), mode(&made.join("dir"))), (0o644, 0o755), "{umask}");
    }
}

#[test]
fn what_is_copied_out_has_the_modes_of_the_callers_umask() {
    let place = Lasting::new();
    let id = place.create(&["--no-workspace"]);
    place.stockade(&["exec", &id, "sh", "-c", "mkdir /tmp/d; echo x > /tmp/d/f"]).code_is(0);
    for (umask, dir, file) in [("022", 0o755, 0o644), ("027", 0o750, 0o640), ("077", 0o700, 0o600)]
    {
        let to = format!("to{umask}");
        let command = place.command(&["cp", &format!("{id}:/tmp/d"), &to]);
        finish(under(umask, &command)).is(0, "", "");
        let to = place.workspace().join(to);
        assert_eq!((mode(&to), mode(&to.join("f"))), (dir, file), "{umask}");
    }
}

#[test]
fn values_of_variables_do_not_stay_on_any_command_line() {
    let place = CliPlace::new();
    let secret = format!("hidden{}", std::process::id());
    for given in [vec!["--env", "KEY"], vec!["--env"]] {
        let words = match given[..] {
            [flag, name] => vec![flag.to_owned(), format!("{name}={secret}")],
            _ => vec![format!("--env=KEY={secret}")],
        };
        let mut args = vec!["run"];
        args.extend(words.iter().map(String::as_str));
        args.extend(["--shell", "echo \"$KEY\"; exec sleep 100"]);
        let (child, said) = start(place.command(&args));
        assert_eq!(said, secret, "the program has it");
        let lines = command_lines();
        common::signal(&child, rustix::process::Signal::TERM);
        wait(child).code_is(143);
        let seen: Vec<_> = lines.iter().filter(|line| line.contains(&secret)).collect();
        assert!(seen.is_empty(), "{seen:?}");
        assert!(lines.iter().any(|line| line.contains("KEY=***")), "it was covered, not lost");
    }
}
