//! The probe in a machine that has KVM: an emulated one, with a processor that can itself run machines. So
//! it is shown anywhere that it says yes where it should, and what it says of what fails.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::microvm::initramfs::Initramfs;

const QEMU_PROGRAM: &str = "/usr/bin/qemu-system-x86_64";
const BUSYBOX_PROGRAM: &str = "/bin/busybox";
const LOADER_PATH: &str = "lib64/ld-linux-x86-64.so.2";
/// The modules of KVM, each after those that it needs.
const KVM_MODULES: [&str; 3] =
    ["virt/lib/irqbypass.ko", "arch/x86/kvm/kvm.ko", "arch/x86/kvm/kvm-amd.ko"];
const GUEST_TIMEOUT: Duration = Duration::from_secs(240);

const INIT_SCRIPT: &str = "#!/bin/busybox sh
run=/bin/busybox
$run mount -t proc proc /proc
$run mount -t sysfs sys /sys
$run mount -t devtmpfs dev /dev
for name in irqbypass kvm kvm-amd; do $run insmod /$name.ko; done
/test --nocapture --test-threads 1 --skip nested microvm::kvm
$run chmod 600 /dev/kvm
$run su nobody -s /test -- --nocapture it_answers_in_time
$run poweroff -f
";

/// A kernel with modules for KVM as they are, and where those are.
fn find_kernel() -> Option<(PathBuf, PathBuf)> {
    let versions = fs::read_dir("/lib/modules").ok()?.flatten();
    versions.map(|entry| (entry.file_name(), entry.path().join("kernel"))).find_map(
        |(version, at)| {
            let image = Path::new("/boot").join(format!("vmlinuz-{}", version.to_str()?));
            let whole = image.exists() && KVM_MODULES.iter().all(|module| at.join(module).exists());
            whole.then_some((image, at))
        },
    )
}

/// This very program with the libraries that it has loaded, and a first process that starts it.
fn build_initramfs(modules: &Path) -> Vec<u8> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let libraries: BTreeSet<&str> = mapped.filter(|path| path.contains(".so")).collect();
    let mut files = vec![
        ("init".to_owned(), INIT_SCRIPT.as_bytes().to_vec()),
        ("test".to_owned(), fs::read("/proc/self/exe").unwrap()),
        ("bin/busybox".to_owned(), fs::read(BUSYBOX_PROGRAM).unwrap()),
        (LOADER_PATH.to_owned(), fs::read(format!("/{LOADER_PATH}")).unwrap()),
        ("etc/passwd".to_owned(), b"nobody:x:1000:1000::/:/bin/busybox\n".to_vec()),
    ];
    for path in libraries {
        files.push((path.trim_start_matches('/').to_owned(), fs::read(path).unwrap()));
    }
    for module in KVM_MODULES {
        let path = modules.join(module);
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        files.push((name, fs::read(path).unwrap()));
    }
    let above =
        |name: &String| Path::new(name).ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>();
    let mut all: BTreeSet<PathBuf> = files.iter().map(|(name, _)| name).flat_map(above).collect();
    all.extend(["proc", "sys", "dev", "tmp"].map(PathBuf::from));
    all.remove(Path::new(""));
    let made = all
        .iter()
        .fold(Initramfs::default(), |made, dir| made.add_directory(dir.to_str().unwrap()));
    files.iter().fold(made, |made, (name, content)| made.add_file(name, content)).finish()
}

/// Ends it however this ends.
struct QemuChild(Child);

impl Drop for QemuChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_guest(kernel: &Path, initramfs: &Path) -> String {
    let mut machine = QemuChild(
        Command::new(QEMU_PROGRAM)
            .args(["-accel", "tcg", "-cpu", "max,+svm", "-m", "768", "-nographic", "-no-reboot"])
            .args(["-nic", "none", "-append", "console=ttyS0 panic=-1 quiet"])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initramfs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut output = machine.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        output.read_to_end(&mut said).unwrap();
        String::from_utf8_lossy(&said).into_owned()
    });
    let began = Instant::now();
    while machine.0.try_wait().unwrap().is_none() && began.elapsed() < GUEST_TIMEOUT {
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(machine);
    reader.join().unwrap()
}

#[test]
fn where_kvm_works_it_says_so_and_what_fails_there_is_named() {
    let Some((kernel, modules)) = find_kernel() else {
        return println!(
            "skipped: no kernel with modules for KVM; install linux-image-cloud-amd64"
        );
    };
    if !Path::new(QEMU_PROGRAM).exists() || !Path::new(BUSYBOX_PROGRAM).exists() {
        return println!("skipped: no QEMU or busybox; install qemu-system-x86 and busybox-static");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), build_initramfs(&modules)).unwrap();
    let said = run_guest(&kernel, file.path());
    println!("{said}");
    for line in [
        "KVM runs Linux guests",
        "cannot run Linux guests: it is emulated, and the emulator gave up at `popcnt`",
        "this user may not use /dev/kvm",
        " 0 failed;",
    ] {
        assert!(said.contains(line), "it does not say: {line}");
    }
    assert!(!said.contains("skipped:") && !said.contains("FAILED"), "see above");
}
