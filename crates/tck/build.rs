//! Builds the probe statically, so that the kit can carry it into any sandbox; and sees whether a
//! virtual machine and gVisor's runtime can be started here, so that a test that needs one is reported as
//! ignored if not.

use std::path::Path;

include!("../../build/static_bin.rs");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let probe = static_bin("stockade-probe", "stockade-probe", &[], &["crates/tck/probe"])?;
    println!("cargo::rustc-env=STOCKADE_PROBE={}", probe.display());
    println!("cargo::rustc-check-cfg=cfg(no_vm)");
    println!("cargo::rustc-check-cfg=cfg(no_runsc)");
    println!("cargo::rerun-if-env-changed=CI");
    println!("cargo::rerun-if-changed=/usr/bin");
    println!("cargo::rerun-if-changed=/boot");
    // Where every change is judged, nothing is left out for want of a package.
    let judged = std::env::var_os("CI").is_some();
    if !judged && !has_machine() {
        println!("cargo::rustc-cfg=no_vm");
    }
    if !judged && !Path::new("/usr/bin/runsc").exists() {
        println!("cargo::rustc-cfg=no_runsc");
    }
    Ok(())
}

fn has_machine() -> bool {
    let programs = ["/usr/bin/qemu-system-x86_64", "/usr/bin/busybox", "/usr/bin/cpio"];
    let boot = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let mut names = boot.filter_map(|entry| entry.file_name().into_string().ok());
    let kernel = names.any(|name| name.starts_with("vmlinuz-") && name.ends_with("-cloud-amd64"));
    kernel && programs.iter().all(|program| Path::new(program).exists())
}
