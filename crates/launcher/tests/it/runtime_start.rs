//! Runtimes of others that are started here: what they mount, and what they may only read.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use stockade_launcher::{ReadOnlyView, start_in};

fn shell(line: &str, directory: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn what_a_runtime_may_only_read_is_read_only_by_the_kernel() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir_all(at("source")).unwrap();
    fs::create_dir(at("target")).unwrap();
    fs::write(at("source/file"), "the host's").unwrap();
    fs::write(at("single"), "alone").unwrap();
    fs::write(at("point"), "").unwrap();
    let view = |source, target| ReadOnlyView { source: at(source), target: at(target) };
    let views = [view("source", "target"), view("single", "point")];
    let line = "cat target/file point; { true >target/file; } 2>/dev/null || echo , refused; \
                { true >point; } 2>/dev/null || echo refused; { true >target/new; } 2>/dev/null || echo refused; \
                echo through >source/file";
    let mut child = start_in(shell(line, place.path()), None, &views).unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!(said, "the host'salone, refused\nrefused\nrefused\n");
    assert_eq!(fs::read_to_string(at("source/file")).unwrap(), "through\n");
    assert_eq!(fs::read_to_string(at("single")).unwrap(), "alone");
    assert_eq!(fs::read_dir(at("target")).unwrap().count(), 0, "a view is seen outside");
}

mod needs_root {
    use super::*;

    #[test]
    fn what_a_runtime_mounts_is_not_mounted_for_the_host() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("point")).unwrap();
        let line = "mount -t tmpfs none point && echo mounted && read end";
        let mut child = start_in(shell(line, place.path()), None, &[]).unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(said, "mounted\n");
        assert!(!table.contains(place.path().to_str().unwrap()), "{table}");
    }
}
