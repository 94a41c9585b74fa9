//! The arguments of QEMU: a small machine without anything that a guest does not need, and everything that
//! belongs to the host given as a file that is open already.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use crate::across::guest::PORT;
use crate::across::vmm::FIRST;
use crate::microvm::driver::Machine;

/// What its compiled code may take.
const CODE: u32 = 64;

/// Arguments, and the files that they name.
pub(super) struct Order {
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

impl Order {
    /// What machines that are started and those that are continued have in common.
    pub(super) fn new(program: &str, machine: &Machine, ends: Ends<'_>) -> std::io::Result<Self> {
        let mut order = Self { words: vec![program.to_owned()], files: Vec::new() };
        let size = machine.memory.0;
        order.say(&["-nodefaults", "-no-user-config", "-no-reboot"]);
        order.pair("-display", "none");
        order.pair("-accel", format!("tcg,thread=single,tb-size={CODE}"));
        let parts =
            "acpi=on,rtc=off,pit=off,pic=off,isa-serial=on,suppress-vmdesc=on,memory-backend=ram";
        order.pair("-machine", format!("microvm,{parts}"));
        order.pair("-cpu", "max");
        order.pair("-smp", machine.cpus.to_string());
        order.pair("-m", format!("{size}B"));
        let memory = order.give(ends.memory.try_clone_to_owned()?);
        let share = if ends.shared { "on" } else { "off" };
        let path = format!("mem-path=/proc/self/fd/{memory},share={share}");
        order.pair("-object", format!("memory-backend-file,id=ram,size={size},{path}"));
        order.pair("-global", "virtio-mmio.force-legacy=false");
        // The state of the devices alone is saved and loaded, which comes without a head.
        order.pair("-global", "migration.send-configuration=off");
        let pipe = order.give(ends.pipe);
        order.pair("-chardev", format!("socket,id=pipe,fd={pipe}"));
        order.pair("-device", "virtio-serial-device");
        order.pair("-device", format!("virtserialport,chardev=pipe,name={PORT}"));
        let control = order.give(ends.control);
        order.pair("-chardev", format!("socket,id=control,fd={control}"));
        order.pair("-mon", "chardev=control,mode=control");
        Ok(order)
    }

    fn say(&mut self, words: &[&str]) {
        self.words.extend(words.iter().map(|word| (*word).to_owned()));
    }

    pub(super) fn pair(&mut self, name: &str, value: impl Into<String>) {
        self.words.extend([name.to_owned(), value.into()]);
    }

    /// The number that the file has inside.
    pub(super) fn give(&mut self, given: OwnedFd) -> RawFd {
        self.files.push(given);
        FIRST + self.files.len() as RawFd - 1
    }

    /// A disk, opened in each of the ways in which QEMU will.
    pub(super) fn disk(&mut self, number: usize, disk: Vec<OwnedFd>, read_only: bool) {
        for way in disk {
            let way = self.give(way);
            self.pair("-add-fd", format!("fd={way},set={number}"));
        }
        let access = if read_only { "on" } else { "off" };
        // Nobody else has it open; the two ways of its own would be in each other's way.
        let how = format!("format=raw,cache=unsafe,file.locking=off,readonly={access}");
        self.pair("-drive", format!("if=none,id=disk{number},file=/dev/fdset/{number},{how}"));
        self.pair("-device", format!("virtio-blk-device,drive=disk{number}"));
    }
}
