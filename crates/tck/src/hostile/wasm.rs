//! WebAssembly that means harm: programs that use something up without a single call, and modules that
//! are harm before they run. Each ends in its outcome, and the host's memory stays bounded.

use stockade_core::{Bytes, Command, Ending, Feature, LimitKind, Signal, Span, StartFailure};

use super::check_engine_unharmed;
use super::output::{keeping_highest, read_resident_bytes};
use crate::case::{case, check};
use crate::{Case, Kit, Ran, Verdict};

const REQUIRED_FEATURES: &[Feature] = &[Feature::WasmImage, Feature::LocalWorkspace];

/// Memory growth allowed to this process with any module: its memory limit, and compilation.
const MAX_PROCESS_GROWTH_BYTES: u64 = 512 << 20;

pub(super) const HOSTILE_WASM_CASES: &[Case] = &[
    case!("an endless loop ends with its processor time", "C-16", check_endless_loop)
        .needs(REQUIRED_FEATURES),
    case!(
        "a loop before the program begins ends with its processor time",
        "C-16",
        check_start_function_loop
    )
    .needs(REQUIRED_FEATURES),
    case!("a storm of calls ends with its processor time", "C-16", check_call_storm)
        .needs(REQUIRED_FEATURES),
    case!("memory that grows and grows ends at its limit", "C-16", check_memory_growth)
        .needs(REQUIRED_FEATURES),
    case!("more memory to begin with than there may be is refused", "C-16", begins_large)
        .needs(REQUIRED_FEATURES),
    case!("deep recursion ends the program and nothing else", "C-10", check_deep_recursion)
        .needs(REQUIRED_FEATURES),
    case!("a giant table is refused", "C-16", check_giant_table).needs(REQUIRED_FEATURES),
    case!("tables that grow count as memory", "C-16", table_grows).needs(REQUIRED_FEATURES),
    case!(
        "many memories and tables are refused before they are compiled",
        "C-16",
        check_many_memories_and_tables
    )
    .needs(REQUIRED_FEATURES),
    case!("a million functions are refused before they are compiled", "C-16", check_many_functions)
        .needs(REQUIRED_FEATURES),
    case!("what is no module is a start failure", "C-10", check_malformed_module)
        .needs(REQUIRED_FEATURES),
    case!(
        "a module that asks for what is not offered is a start failure",
        "C-10",
        check_unknown_import
    )
    .needs(REQUIRED_FEATURES),
];

/// Runs a module from the workspace with small limits, and sees that the host's memory stays bounded.
async fn run_module(kit: &Kit, module: impl AsRef<[u8]>) -> Verdict<Ran> {
    std::fs::write(kit.workspace().join("harm"), module)?;
    let mut spec = kit.spec();
    spec.limits.memory = Some(Bytes::mib(64));
    spec.limits.cpu_time = Some(Span::secs(1));
    let command = Command { wall_time: Some(Span::secs(30)), ..Command::program(["./harm"]) };
    let before = read_resident_bytes()?;
    let (ran, highest) = keeping_highest(kit.run_with(spec, command)).await;
    let grown = highest.saturating_sub(before);
    check!(
        grown < MAX_PROCESS_GROWTH_BYTES,
        "expected this process to grow by less than {MAX_PROCESS_GROWTH_BYTES} bytes, saw {grown}"
    );
    ran
}

async fn check_ending(kit: Kit, module: impl AsRef<[u8]>, allowed: &[Ending]) -> Verdict {
    let ending = run_module(&kit, module).await?.outcome.ending;
    check!(allowed.contains(&ending), "expected one of {allowed:?}, saw {ending:?}");
    check_engine_unharmed(&kit).await
}

async fn check_start_refused(
    kit: Kit,
    module: impl AsRef<[u8]>,
    what: fn(&StartFailure) -> bool,
) -> Verdict {
    not_started(run_module(&kit, module).await?, what)?;
    check_engine_unharmed(&kit).await
}

fn not_started(ran: Ran, what: fn(&StartFailure) -> bool) -> Verdict {
    let ending = ran.outcome.ending;
    let fits = matches!(&ending, Ending::StartFailed(failure) if what(failure));
    check!(fits, "expected a start failure of another kind, saw {ending:?}");
    Ok(())
}

fn too_much(failure: &StartFailure) -> bool {
    matches!(failure, StartFailure::NoResources(_))
}

fn no_program(failure: &StartFailure) -> bool {
    matches!(failure, StartFailure::NotExecutable(_))
}

async fn check_endless_loop(kit: Kit) -> Verdict {
    let module = r#"(module (func (export "_start") (loop (br 0))))"#;
    check_ending(kit, module, &[Ending::LimitExceeded(LimitKind::CpuTime)]).await
}

async fn check_start_function_loop(kit: Kit) -> Verdict {
    let module = r#"(module (func $f (loop (br 0))) (start $f) (func (export "_start")))"#;
    check_ending(kit, module, &[Ending::LimitExceeded(LimitKind::CpuTime)]).await
}

async fn check_call_storm(kit: Kit) -> Verdict {
    let module = r#"(module
        (import "wasi_snapshot_preview1" "clock_time_get"
            (func $call (param i32 i64 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "_start")
            (loop (drop (call $call (i32.const 1) (i64.const 1) (i32.const 8))) (br 0))))"#;
    check_ending(kit, module, &[Ending::LimitExceeded(LimitKind::CpuTime)]).await
}

async fn check_memory_growth(kit: Kit) -> Verdict {
    let module = r#"(module (memory 1) (func (export "_start") (local $at i32)
        (loop
            (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then (unreachable)))
            (i32.store (i32.shl (i32.sub (memory.size) (i32.const 1)) (i32.const 16)) (i32.const 1))
            (br 0))))"#;
    check_ending(kit, module, &[Ending::LimitExceeded(LimitKind::Memory)]).await
}

async fn begins_large(kit: Kit) -> Verdict {
    check_start_refused(kit, r#"(module (memory 4096) (func (export "_start")))"#, too_much).await
}

async fn check_deep_recursion(kit: Kit) -> Verdict {
    let module = r#"(module (func $f (param i64) (result i64)
            (i64.add (local.get 0) (call $f (i64.add (local.get 0) (i64.const 1)))))
        (func (export "_start") (drop (call $f (i64.const 0)))))"#;
    check_ending(kit, module, &[Ending::Signalled(Signal(11))]).await
}

async fn check_giant_table(kit: Kit) -> Verdict {
    check_start_refused(
        kit,
        r#"(module (table 50000000 funcref) (func (export "_start")))"#,
        too_much,
    )
    .await
}

async fn table_grows(kit: Kit) -> Verdict {
    let module = r#"(module (table 1 funcref) (func (export "_start")
        (loop
            (if (i32.eq (table.grow (ref.null func) (i32.const 10000)) (i32.const -1))
                (then (unreachable)))
            (br 0))))"#;
    check_ending(kit, module, &[Ending::LimitExceeded(LimitKind::Memory)]).await
}

async fn check_many_memories_and_tables(kit: Kit) -> Verdict {
    for part in ["(memory 1)", "(table 1 funcref)"] {
        let module = format!(r#"(module {} (func (export "_start")))"#, part.repeat(100));
        not_started(run_module(&kit, module).await?, too_much)?;
    }
    check_engine_unharmed(&kit).await
}

async fn check_many_functions(kit: Kit) -> Verdict {
    check_start_refused(kit, many_functions(1_000_000), too_much).await
}

async fn check_malformed_module(kit: Kit) -> Verdict {
    let whole = many_functions(10);
    let texts: [&[u8]; 6] = [
        b"",
        b"\0asm",
        b"\0asm\x01\0\0\0\x01\xff\xff\xff\xff\x0f",
        b"\x7fELF\x02\x01\x01",
        b"(module (func (export \"_start\") (i32.add)))",
        &whole[..whole.len() - 1],
    ];
    for text in texts {
        not_started(run_module(&kit, text).await?, no_program)?;
    }
    check_engine_unharmed(&kit).await
}

async fn check_unknown_import(kit: Kit) -> Verdict {
    let module = r#"(module (import "env" "system" (func)) (func (export "_start")))"#;
    check_start_refused(kit, module, no_program).await
}

/// A module of so many empty functions, in binary form.
fn many_functions(count: u32) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    write_section(&mut module, 1, &[1, 0x60, 0, 0]);
    let counted = |each: &[u8]| {
        let mut body = encode_leb128(count);
        (0..count).for_each(|_| body.extend_from_slice(each));
        body
    };
    write_section(&mut module, 3, &counted(&[0]));
    write_section(&mut module, 10, &counted(&[2, 0, 0x0b]));
    module
}

fn write_section(module: &mut Vec<u8>, id: u8, body: &[u8]) {
    module.push(id);
    module.extend(encode_leb128(u32::try_from(body.len()).unwrap_or(u32::MAX)));
    module.extend_from_slice(body);
}

/// A number as LEB128: in as few groups of seven bits as it takes.
fn encode_leb128(mut left: u32) -> Vec<u8> {
    let mut groups = Vec::new();
    loop {
        let group = (left & 0x7f) as u8;
        left >>= 7;
        if left == 0 {
            groups.push(group);
            return groups;
        }
        groups.push(group | 0x80);
    }
}
