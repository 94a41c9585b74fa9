//! What the machines of tests are made of: one small root, and one store in which what was prepared is kept,
//! so that a machine is started once for all of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Programs of the root, all of them links to busybox.
const BUSYBOX_APPLETS: [&str; 15] = [
    "sh",
    "true",
    "cat",
    "ls",
    "sleep",
    "echo",
    "id",
    "hostname",
    "mount",
    "env",
    "dd",
    "sha256sum",
    "mkfifo",
    "mv",
    "setsid",
];

/// Where the tests of this user keep what they share.
fn shared_directory() -> PathBuf {
    match rustix::process::geteuid().is_root() {
        true => Path::new(env!("CARGO_TARGET_TMPDIR")).join("microvm"),
        false => PathBuf::from(std::env::var_os("HOME").unwrap()).join("microvm"),
    }
}

/// Where what was prepared is kept.
pub fn store_directory() -> PathBuf {
    shared_directory().join("store")
}

/// A root of one static program under many names. The first caller puts it in its place whole.
pub fn prepare_root() -> PathBuf {
    let root = shared_directory().join("root-4");
    if root.exists() {
        return root;
    }
    fs::create_dir_all(shared_directory()).unwrap();
    let draft = tempfile::tempdir_in(shared_directory()).unwrap();
    let made = draft.path().join("root");
    fs::create_dir_all(made.join("usr/bin")).unwrap();
    symlink("usr/bin", made.join("bin")).unwrap();
    fs::create_dir_all(made.join("etc")).unwrap();
    fs::copy("/bin/busybox", made.join("bin/busybox")).unwrap();
    for program in BUSYBOX_APPLETS {
        symlink("busybox", made.join("bin").join(program)).unwrap();
    }
    fs::write(made.join("etc/os-release"), "NAME=busybox\n").unwrap();
    fs::write(made.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
    fs::write(made.join("etc/machine-id"), format!("{}\n", "0".repeat(32))).unwrap();
    fs::set_permissions(&made, fs::Permissions::from_mode(0o755)).unwrap();
    // Another one who came first at the same time serves as well.
    let _ = fs::rename(&made, &root);
    root
}
