//! The arguments of QEMU: a small machine without anything that a guest does not need, and everything that
//! belongs to the host given as a file that is open already.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use crate::microvm::driver::MachineSpec;
use crate::peer::guest::GUEST_PORT_NAME;
use crate::peer::vmm::FIRST_FILE_FD;

/// Size of the cache of translated code, in MiB.
const CODE_CACHE_MIB: u32 = 64;

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::microvm) enum Power {
    /// The host's processor, by KVM.
    Processor,
    /// QEMU itself.
    Software,
}

/// Arguments, and the files that they name.
pub(super) struct QemuArguments {
    pub words: Vec<String>,
    pub files: Vec<OwnedFd>,
}

/// What the process speaks to this side by, and its memory.
pub(super) struct Ends<'a> {
    pub pipe: OwnedFd,
    pub control: OwnedFd,
    pub memory: BorrowedFd<'a>,
    /// Whether what the guest writes to its memory shows in the file.
    pub shared: bool,
}

impl QemuArguments {
    /// What machines that are started and those that are continued have in common.
    pub(super) fn new(
        program: &str,
        power: Power,
        machine: &MachineSpec,
        ends: Ends<'_>,
    ) -> std::io::Result<Self> {
        let mut order = Self { words: vec![program.to_owned()], files: Vec::new() };
        let size = machine.memory.0;
        order.add_flags(&["-nodefaults", "-no-user-config", "-no-reboot"]);
        order.add_option("-display", "none");
        let (accelerator, processor) = match power {
            Power::Processor => ("kvm".into(), "host"),
            Power::Software => (format!("tcg,thread=single,tb-size={CODE_CACHE_MIB}"), "max"),
        };
        order.add_option("-accel", accelerator);
        let parts =
            "acpi=on,rtc=off,pit=off,pic=off,isa-serial=on,suppress-vmdesc=on,memory-backend=ram";
        order.add_option("-machine", format!("microvm,{parts}"));
        order.add_option("-cpu", processor);
        order.add_option("-smp", machine.cpus.to_string());
        order.add_option("-m", format!("{size}B"));
        let memory = order.add_file(ends.memory.try_clone_to_owned()?);
        let share = if ends.shared { "on" } else { "off" };
        let path = format!("mem-path=/proc/self/fd/{memory},share={share}");
        order.add_option("-object", format!("memory-backend-file,id=ram,size={size},{path}"));
        order.add_option("-global", "virtio-mmio.force-legacy=false");
        // The state of the devices alone is saved and loaded, which comes without a head.
        order.add_option("-global", "migration.send-configuration=off");
        let pipe = order.add_file(ends.pipe);
        order.add_option("-chardev", format!("socket,id=pipe,fd={pipe}"));
        order.add_option("-device", "virtio-serial-device");
        order.add_option("-device", format!("virtserialport,chardev=pipe,name={GUEST_PORT_NAME}"));
        let control = order.add_file(ends.control);
        order.add_option("-chardev", format!("socket,id=control,fd={control}"));
        // As old ones and new ones take it; `-mon` is deprecated.
        order.add_option("-qmp", "chardev:control");
        Ok(order)
    }

    fn add_flags(&mut self, words: &[&str]) {
        self.words.extend(words.iter().map(|word| (*word).to_owned()));
    }

    pub(super) fn add_option(&mut self, name: &str, value: impl Into<String>) {
        self.words.extend([name.to_owned(), value.into()]);
    }

    /// The number that the file has inside.
    pub(super) fn add_file(&mut self, given: OwnedFd) -> RawFd {
        self.files.push(given);
        FIRST_FILE_FD + self.files.len() as RawFd - 1
    }

    /// The name by which QEMU opens a file that it is given.
    pub(super) fn add_fdset(&mut self, file: OwnedFd, set: usize) -> String {
        let number = self.add_file(file);
        self.add_option("-add-fd", format!("fd={number},set={set}"));
        format!("/dev/fdset/{set}")
    }

    /// A disk, opened in each of the ways in which QEMU will.
    pub(super) fn add_disk(&mut self, number: usize, disk: Vec<OwnedFd>, read_only: bool) {
        for way in disk {
            self.add_fdset(way, number);
        }
        let access = if read_only { "on" } else { "off" };
        // No other process has the disk open; QEMU's own two descriptors would lock each other out.
        let how = format!("format=raw,cache=unsafe,file.locking=off,readonly={access}");
        self.add_option(
            "-drive",
            format!("if=none,id=disk{number},file=/dev/fdset/{number},{how}"),
        );
        self.add_option("-device", format!("virtio-blk-device,drive=disk{number}"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use stockade_core::Bytes;

    use super::*;

    fn build_words(power: Power) -> Vec<String> {
        let machine = MachineSpec {
            kernel: "/kernel".into(),
            initramfs: "/initramfs".into(),
            command_line: String::new(),
            memory: Bytes::mib(64),
            cpus: 1,
            cpu_rate: None,
            disks: Vec::new(),
        };
        let file = || OwnedFd::from(tempfile::tempfile().unwrap());
        let memory = file();
        let ends = Ends { pipe: file(), control: file(), memory: memory.as_fd(), shared: true };
        QemuArguments::new("qemu", power, &machine, ends).unwrap().words
    }

    #[test]
    fn the_processor_is_used_where_it_can_be_and_nothing_else_is_different() {
        let (hard, soft) = (build_words(Power::Processor), build_words(Power::Software));
        let different: Vec<_> =
            hard.iter().zip(&soft).filter(|(one, other)| one != other).collect();
        let soft = format!("tcg,thread=single,tb-size={CODE_CACHE_MIB}");
        assert_eq!(
            different,
            [(&"kvm".to_owned(), &soft), (&"host".to_owned(), &"max".to_owned())]
        );
    }
}
