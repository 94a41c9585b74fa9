//! The throw-away machine: 64-bit, in ring 0, with flat memory, and the instructions that it runs. They
//! are what a Linux kernel executes in its first second, and what emulators of kernel mode lack.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

/// One thing to try: as people write it, and as the processor reads it. `rdi` points at the data.
#[derive(Clone, Copy)]
pub(super) struct ProbeStep {
    name: &'static str,
    code: &'static [u8],
}

impl ProbeStep {
    pub(super) const fn new(name: &'static str, code: &'static [u8]) -> Self {
        Self { name, code }
    }
}

/// The bytes that `cmpxchg16b` swaps in, low half first.
const SWAPPED_BYTES: [u8; 16] =
    [0xad, 0xde, 0xef, 0xbe, 0, 0, 0, 0, 0x0d, 0xf0, 0xce, 0xfa, 0, 0, 0, 0];
const SWAP_STEP: &str = "lock cmpxchg16b";

pub(super) const LINUX_STEPS: &[ProbeStep] = &[
    ProbeStep::new("mov %cr3", &[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8]),
    // The register that says that this is long mode.
    ProbeStep::new("rdmsr, wrmsr", &[0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x0f, 0x30]),
    ProbeStep::new("swapgs", &[0x0f, 0x01, 0xf8, 0x0f, 0x01, 0xf8]),
    ProbeStep::new("invlpg", &[0x0f, 0x01, 0x3f]),
    ProbeStep::new(
        SWAP_STEP,
        &[
            0x31, 0xc0, 0x31, 0xd2, // rdx:rax is what is there: zero
            0xbb, 0xad, 0xde, 0xef, 0xbe, 0xb9, 0x0d, 0xf0, 0xce, 0xfa, // rcx:rbx
            0xf0, 0x48, 0x0f, 0xc7, 0x0f,
        ],
    ),
    ProbeStep::new("fxsave64", &[0x48, 0x0f, 0xae, 0x47, 0x40, 0x48, 0x0f, 0xae, 0x4f, 0x40]),
    ProbeStep::new("cpuid", &[0x31, 0xc0, 0x0f, 0xa2]),
    ProbeStep::new("sti, cli", &[0xfb, 0x90, 0xfa]),
    // To the handler, which comes back by `iretq`.
    ProbeStep::new("int3, iretq", &[0xcc]),
];

const PAGE_BYTES: usize = 0x1000;
const PRESENT_WRITABLE_FLAGS: u64 = 0x3;
const LARGE_PAGE_FLAG: u64 = 0x80;
const CODE_SELECTOR: u16 = 0x08;
const DATA_SELECTOR: u16 = 0x10;

/// Where everything lies in the machine's memory, which is mapped one to one.
pub(super) struct ProbeLayout {
    steps: &'static [ProbeStep],
}

impl ProbeLayout {
    pub(super) const MEMORY_BYTES: usize = 8 * PAGE_BYTES;
    const PAGE_TABLES_ADDRESS: usize = PAGE_BYTES;
    const GDT_ADDRESS: usize = 4 * PAGE_BYTES;
    const IDT_ADDRESS: usize = 4 * PAGE_BYTES + 0x100;
    pub(super) const DATA_ADDRESS: usize = 5 * PAGE_BYTES;
    /// The number of the step that is under way; none is zero.
    pub(super) const PROGRESS_ADDRESS: usize = 5 * PAGE_BYTES + 0x800;
    /// Grows downwards; the code is above it.
    const STACK_TOP: usize = 7 * PAGE_BYTES;
    const CODE_ADDRESS: usize = 7 * PAGE_BYTES;
    const IRETQ_ADDRESS: usize = 8 * PAGE_BYTES - 0x10;

    pub(super) const fn new(steps: &'static [ProbeStep]) -> Self {
        Self { steps }
    }

    /// The name of a step by its number.
    pub(super) fn step_name(&self, number: u8) -> Option<&'static str> {
        let at = usize::from(number).checked_sub(1)?;
        self.steps.get(at).map(|step| step.name)
    }

    /// Whether what has an effect had it.
    pub(super) fn check_data(&self, data: [u8; 16]) -> Result<(), &'static str> {
        let swaps = self.steps.iter().any(|step| step.name == SWAP_STEP);
        if swaps && data != SWAPPED_BYTES { Err(SWAP_STEP) } else { Ok(()) }
    }

    /// The memory as it is to begin with.
    pub(super) fn build_image(&self) -> [u8; Self::MEMORY_BYTES] {
        let mut image = [0; Self::MEMORY_BYTES];
        let mut put = |at: usize, bytes: &[u8]| {
            for (to, from) in image.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        };
        for level in 0..2 {
            let at = Self::PAGE_TABLES_ADDRESS + level * PAGE_BYTES;
            put(at, &((at + PAGE_BYTES) as u64 | PRESENT_WRITABLE_FLAGS).to_le_bytes());
        }
        put(
            Self::PAGE_TABLES_ADDRESS + 2 * PAGE_BYTES,
            &(PRESENT_WRITABLE_FLAGS | LARGE_PAGE_FLAG).to_le_bytes(),
        );
        put(
            Self::GDT_ADDRESS + usize::from(CODE_SELECTOR),
            &0x00af_9b00_0000_ffff_u64.to_le_bytes(),
        );
        put(
            Self::GDT_ADDRESS + usize::from(DATA_SELECTOR),
            &0x00cf_9300_0000_ffff_u64.to_le_bytes(),
        );
        put(Self::IDT_ADDRESS + 3 * 16, &encode_interrupt_gate(Self::IRETQ_ADDRESS).to_le_bytes());
        put(Self::IRETQ_ADDRESS, &[0x48, 0xcf]);
        put(Self::CODE_ADDRESS, &self.assemble_code());
        image
    }

    /// Each step behind a note of its number, and a halt behind all.
    fn assemble_code(&self) -> Vec<u8> {
        let offset = (Self::PROGRESS_ADDRESS - Self::DATA_ADDRESS) as u32;
        let mut code = Vec::new();
        for (number, step) in (1_u8..).zip(self.steps) {
            code.extend([0xc6, 0x87]);
            code.extend(offset.to_le_bytes());
            code.push(number);
            code.extend(step.code);
        }
        code.push(0xf4);
        code
    }

    pub(super) fn build_registers(&self) -> kvm_regs {
        kvm_regs {
            rip: Self::CODE_ADDRESS as u64,
            rsp: Self::STACK_TOP as u64,
            rdi: Self::DATA_ADDRESS as u64,
            rflags: 2,
            ..kvm_regs::default()
        }
    }

    /// Makes it a 64-bit machine in ring 0.
    pub(super) fn set_long_mode(&self, special: &mut kvm_sregs) {
        let flat = kvm_segment {
            limit: u32::MAX,
            present: 1,
            s: 1,
            g: 1,
            type_: 3,
            selector: DATA_SELECTOR,
            db: 1,
            ..kvm_segment::default()
        };
        special.cs = kvm_segment { selector: CODE_SELECTOR, type_: 11, l: 1, db: 0, ..flat };
        for segment in
            [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss]
        {
            *segment = flat;
        }
        special.gdt.base = Self::GDT_ADDRESS as u64;
        special.gdt.limit = 0x17;
        special.idt.base = Self::IDT_ADDRESS as u64;
        special.idt.limit = 4 * 16 - 1;
        special.cr3 = Self::PAGE_TABLES_ADDRESS as u64;
        // Physical address extension, fast save of floating point.
        special.cr4 = 0x220;
        // Paging, write protection, numeric errors, the coprocessor, protection.
        special.cr0 = 0x8001_0033;
        // Long mode, enabled and active.
        special.efer = 0x500;
    }
}

/// An interrupt gate of ring 0 to a handler in the first 64 KiB: its first half, the other is zero.
const fn encode_interrupt_gate(handler: usize) -> u64 {
    (handler as u64 & 0xffff) | (CODE_SELECTOR as u64) << 16 | 0x8e00 << 32
}
