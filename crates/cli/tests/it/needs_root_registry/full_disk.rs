//! A disk that is full while `stockade image pull` downloads or unpacks, which only root can make.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::Command;

use crate::common::CliPlace;
use crate::common::image_commands::{cat_release, json, pull};
use crate::common::registry::TestRegistry;

/// A small disk for the images of one place. It ends with this.
struct SmallStore(PathBuf);

impl SmallStore {
    fn mount(place: &CliPlace, size: &str) -> Self {
        let path = place.state().join("images");
        DirBuilder::new().recursive(true).mode(0o700).create(&path).unwrap();
        let options = format!("size={size},mode=0700");
        let arguments = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        assert!(Command::new("mount").args(arguments).arg(&path).status().unwrap().success());
        Self(path)
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let resized = Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(resized.unwrap().success());
    }
}

impl Drop for SmallStore {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// The image has about one megabyte on the wire and two on disk: the first disk is full while it is downloaded, the
/// second while it is unpacked.
#[test]
fn a_full_disk_publishes_nothing_and_the_next_pull_completes() {
    let registry = TestRegistry::start();
    let name = registry.name("1");
    for size in ["512k", "2m"] {
        let place = CliPlace::new();
        let disk = SmallStore::mount(&place, size);
        place.stockade(&["image", "pull", &name]).is_refused(&["No space left on device"]);
        let listed = json(&place, &["image", "ls"]);
        assert_eq!(listed["images"], serde_json::json!([]), "{size}");
        for left in ["trees", "drafts", "images", "names"] {
            assert_eq!(fs::read_dir(disk.0.join(left)).unwrap().count(), 0, "{size}: {left}");
        }
        assert_eq!(place.leases(), [""; 0], "{size}");
        disk.resize("64m");
        pull(&place, &name);
        cat_release(&place, &["--image", &name, "--pull", "never"]).is(0, "one\n", "");
        place.assert_nothing_is_left();
    }
}
