//! A disk that is full in the middle, which only root can make.

use std::path::{Path, PathBuf};
use std::process::Command;

use stockade_images::{ImageStore, InProcess};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::TestImage;
use crate::support::pull_options;
use crate::support::server::Server;

/// A small disk. It ends with this.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path, size: &str) -> Self {
        std::fs::create_dir(path).unwrap();
        let options = format!("size={size},mode=0700");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).status();
        assert!(mounted.unwrap().success());
        Self(path.to_owned())
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let resized = Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(resized.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Half a megabyte on the wire and eight on disk.
fn image() -> TestImage {
    let text = "0123456789abcdef".repeat(1 << 14);
    let layer = |part: u8| {
        let files = (0..16).fold(ArchiveBuilder::new(), |archive, file| {
            archive.file(&format!("{part}-{file}"), &text)
        });
        files.finish()
    };
    TestImage::new(&[layer(0), layer(1)])
}

#[tokio::test]
async fn a_full_disk_publishes_nothing_and_the_next_pull_completes() {
    let place = tempfile::tempdir().unwrap();
    let server = Server::of_image(image(), |_| None).await;
    let reference = server.reference().parse().unwrap();
    for (number, size) in ["64k", "256k", "2m", "6m"].into_iter().enumerate() {
        let disk = SmallDisk::mount(&place.path().join(number.to_string()), size);
        let store = ImageStore::open(disk.0.join("store")).unwrap();
        let failed = store.pull(&reference, &pull_options(), &InProcess, &()).await;
        assert!(failed.is_err(), "{size} are enough");
        assert_eq!(store.list().unwrap(), []);
        for directory in ["trees", "drafts", "images", "names"] {
            let left = std::fs::read_dir(store.directory().join(directory)).unwrap().count();
            assert_eq!(left, 0, "{size}: {directory}");
        }
        disk.resize("64m");
        let pulled = store.pull(&reference, &pull_options(), &InProcess, &()).await.unwrap();
        assert_eq!(std::fs::read_dir(&pulled.root).unwrap().count(), 32);
    }
}
