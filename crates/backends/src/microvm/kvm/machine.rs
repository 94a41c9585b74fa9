//! The throw-away machine as the kernel is told of it: its memory, its one processor, its one run.
#![allow(unsafe_code, reason = "a machine's memory is handed to the kernel by its address")]

use std::cell::UnsafeCell;
use std::os::fd::AsRawFd;

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm as Device, VcpuExit, VcpuFd, VmFd};

use super::code::{ProbeLayout, ProbeStep};
use super::{KICK_SIGNAL, ProbeResult, RUN_TIMEOUT};

/// The KVM API version, the only one that there ever was.
const KVM_API_VERSION: i32 = 12;
/// `_IOW(KVMIO, 0x8b, struct kvm_signal_mask)`: not among the wrappers.
const KVM_SET_SIGNAL_MASK: libc::c_ulong = 0x4004_ae8b;

/// The memory of the throw-away machine. It and the kernel write to it at will.
#[repr(C, align(4096))]
struct ProbeMemory(UnsafeCell<[u8; ProbeLayout::MEMORY_BYTES]>);

impl ProbeMemory {
    fn from_image(image: [u8; ProbeLayout::MEMORY_BYTES]) -> Box<Self> {
        Box::new(Self(UnsafeCell::new(image)))
    }

    fn address(&self) -> u64 {
        self.0.get() as u64
    }

    /// What is in it now that nothing runs.
    fn read_bytes<const COUNT: usize>(&self, at: usize) -> [u8; COUNT] {
        let mut found = [0; COUNT];
        let from = self.0.get().cast::<u8>();
        for (offset, byte) in found.iter_mut().enumerate() {
            if at + offset < ProbeLayout::MEMORY_BYTES {
                // SAFETY: within the memory, as was just asked; volatile, for others have written it.
                *byte = unsafe { from.add(at + offset).read_volatile() };
            }
        }
        found
    }
}

/// Runs the steps to their end in a machine that ends here.
pub(super) fn run_steps(device: &Device, steps: &'static [ProbeStep]) -> ProbeResult {
    if device.get_api_version() != KVM_API_VERSION {
        return Err("/dev/kvm is no KVM device".into());
    }
    let layout = ProbeLayout::new(steps);
    let memory = ProbeMemory::from_image(layout.build_image());
    let vm = device.create_vm().map_err(|error| format!("no machine can be made: {error}"))?;
    let mut cpu = prepare_vcpu(device, &vm, &memory, &layout)
        .map_err(|error| format!("no virtual CPU can be created: {error}"))?;
    let ended = run_vcpu(&mut cpu);
    // Before the memory: it is theirs until then.
    drop((cpu, vm));
    ended.map_err(|what| {
        match layout.step_name(memory.read_bytes::<1>(ProbeLayout::PROGRESS_ADDRESS)[0]) {
            Some(step) => format!("{what} at `{step}`"),
            None => format!("{what} before the first instruction"),
        }
    })?;
    layout
        .check_data(memory.read_bytes(ProbeLayout::DATA_ADDRESS))
        .map_err(|step| format!("`{step}` has no effect"))
}

fn prepare_vcpu(
    device: &Device,
    vm: &VmFd,
    memory: &ProbeMemory,
    layout: &ProbeLayout,
) -> Result<VcpuFd, kvm_ioctls::Error> {
    let region = kvm_userspace_memory_region {
        memory_size: ProbeLayout::MEMORY_BYTES as u64,
        userspace_addr: memory.address(),
        ..kvm_userspace_memory_region::default()
    };
    // SAFETY: the memory is of that size and aligned to pages, and outlives the machine.
    unsafe { vm.set_user_memory_region(region)? };
    let cpu = vm.create_vcpu(0)?;
    let known: CpuId = device.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    cpu.set_cpuid2(&known)?;
    let mut special = cpu.get_sregs()?;
    layout.set_long_mode(&mut special);
    cpu.set_sregs(&special)?;
    cpu.set_regs(&layout.build_registers())?;
    set_signal_mask(&cpu, KICK_SIGNAL)?;
    Ok(cpu)
}

/// Lets this one signal end a run: it is pending then, and neither handled nor lost.
fn set_signal_mask(cpu: &VcpuFd, signal: libc::c_int) -> Result<(), kvm_ioctls::Error> {
    #[repr(C)]
    struct SignalMask {
        length: u32,
        blocked: [u8; 8],
    }
    let blocked = !(1_u64 << (signal - 1));
    let mask = SignalMask { length: 8, blocked: blocked.to_ne_bytes() };
    // SAFETY: the descriptor is a processor's, and the mask is as long as it says.
    let set = unsafe { libc::ioctl(cpu.as_raw_fd(), KVM_SET_SIGNAL_MASK as _, &raw const mask) };
    if set == 0 { Ok(()) } else { Err(kvm_ioctls::Error::last()) }
}

/// Anything but the last instruction is a failure.
fn run_vcpu(cpu: &mut VcpuFd) -> ProbeResult {
    let exit = match cpu.run() {
        Err(error) if error.errno() == libc::EINTR => {
            return Err(format!("the machine hung for {RUN_TIMEOUT:?}"));
        }
        Err(error) => return Err(format!("the machine cannot run ({error}),")),
        Ok(exit) => exit,
    };
    if matches!(exit, VcpuExit::Hlt) {
        Ok(())
    } else if matches!(exit, VcpuExit::InternalError) {
        Err("it is emulated, and the emulator gave up".into())
    } else if matches!(exit, VcpuExit::Shutdown) {
        Err("the machine crashed".into())
    } else {
        Err(format!("the machine stopped ({exit:?})"))
    }
}
