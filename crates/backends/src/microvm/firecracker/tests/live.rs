//! The driver with Firecracker itself, where there is one: `STOCKADE_FIRECRACKER` names the binary and
//! `STOCKADE_FIRECRACKER_KERNEL` an uncompressed kernel. No package registry ships the binary, so that this
//! is skipped where it is not installed, and says so.

use std::fs;
use std::path::{Path, PathBuf};

use stockade_core::{Bytes, SandboxId};

use super::super::{Firecracker, FirecrackerSettings};
use super::new_name;
use crate::microvm::driver::{Driver, MachineSpec, Saved};
use crate::microvm::initramfs::Initramfs;
use crate::microvm::kvm::{self, Kvm};
use crate::microvm::native_with_kvm;

/// Any static program that stays will do as the guest's first process.
const INIT_PROGRAM: &str = "/bin/busybox";

fn find_settings() -> Result<FirecrackerSettings, String> {
    let named = |name: &str| {
        let path = std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        path.ok_or_else(|| format!("{name} names nothing"))
    };
    let (binary, kernel) = (named("STOCKADE_FIRECRACKER")?, named("STOCKADE_FIRECRACKER_KERNEL")?);
    match kvm::probe_kvm() {
        Kvm::Works if Path::new(INIT_PROGRAM).exists() => Ok(FirecrackerSettings {
            binary,
            kernel: Some(kernel),
            cpu_template: None,
            jailer: None,
        }),
        Kvm::Works => Err(format!("there is no {INIT_PROGRAM} for the guest")),
        found @ (Kvm::Absent | Kvm::Denied | Kvm::CannotRunLinux { .. }) => Err(found.to_string()),
    }
}

#[tokio::test]
async fn a_machine_boots_stops_is_saved_and_goes_on_elsewhere() {
    let settings = match find_settings() {
        Ok(settings) => settings,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let room = |name: &str| {
        fs::create_dir(dir.path().join(name)).unwrap();
        dir.path().join(name)
    };
    let initramfs = dir.path().join("initramfs");
    fs::write(
        &initramfs,
        Initramfs::default().add_file("init", &fs::read(INIT_PROGRAM).unwrap()).finish(),
    )
    .unwrap();
    let machine = MachineSpec {
        kernel: settings.kernel.clone().unwrap(),
        initramfs,
        command_line: "console=ttyS0 reboot=k panic=1 rdinit=/init -- sleep 1000".into(),
        memory: Bytes::mib(256),
        cpus: 1,
        cpu_rate: None,
        disks: Vec::new(),
    };
    let driver = Firecracker::open(settings, native_with_kvm()).await.unwrap();
    let [id, another]: [SandboxId; 2] = [new_name(), new_name()].map(|id| id.parse().unwrap());
    let vm = driver.boot(&id, &machine, &room("a")).await.unwrap();
    vm.pause().await.unwrap();
    vm.unpause().await.unwrap();
    let into = room("saved");
    vm.save(&into).await.unwrap();
    let saved = Saved::within(&into);
    let clone = driver.resume(&another, &machine, &saved, &room("b")).await.unwrap();
    clone.save(&room("again")).await.unwrap();
    for vm in [vm, clone] {
        vm.pause().await.unwrap();
        vm.end().await.unwrap();
    }
}
