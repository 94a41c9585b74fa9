//! WebAssembly on the command line: modules that are run, functions that are called, and an interpreter that
//! runs a script of the workspace.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::common::{CliDone, CliPlace, finish};

const PRINTING_MODULE: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\03\00\00\00")
    (data (i32.const 16) "hi\0a")
    (func (export "_start")
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
        (call $exit (i32.const 5))))"#;

const SPINNING_MODULE: &str = r#"(module (func (export "_start") (loop (br 0))))"#;

const ADDING_MODULE: &str = r#"(module (func (export "add") (param i32 i32) (result i32)
    (i32.add (local.get 0) (local.get 1))))"#;

/// The command, which is free to choose its backend.
fn command(place: &CliPlace, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command.env_remove("STOCKADE_BACKEND");
    command
}

fn stockade(place: &CliPlace, args: &[&str]) -> CliDone {
    finish(command(place, args))
}

#[test]
fn a_module_needs_no_flag_and_its_exit_code_is_its_own() {
    let place = CliPlace::new();
    place.write("prog.wat", PRINTING_MODULE);
    for flags in [&[][..], &["--isolate"], &["--no-isolate"], &["--backend", "wasm"]] {
        let args = [&["run"], flags, &["--", "prog.wat"]].concat();
        stockade(&place, &args).is(5, "hi\n", "");
    }
    place.assert_nothing_is_left();
}

#[test]
fn a_module_of_the_workspace_is_named_by_its_path_inside() {
    let place = CliPlace::new();
    place.write("prog.wat", PRINTING_MODULE);
    for program in ["/workspace/prog.wat", "./prog.wat"] {
        for backend in [&[][..], &["--backend", "wasm"]] {
            let flags = [&["run", "--without", "host-image"], backend].concat();
            stockade(&place, &[&flags[..], &["--", program]].concat()).is(5, "hi\n", "");
        }
    }
    place.assert_nothing_is_left();
}

#[test]
fn what_a_loader_acts_on_is_for_the_program_and_not_for_its_worker() {
    let place = CliPlace::new();
    place.write("prog.wat", PRINTING_MODULE);
    let args = ["run", "--isolate", "--env", "LD_DEBUG=all", "--env", "LD_PRELOAD=/none.so"];
    stockade(&place, &[&args[..], &["--", "prog.wat"]].concat()).is(5, "hi\n", "");
}

#[test]
fn an_ordinary_command_never_gets_a_virtual_machine_by_itself() {
    let place = CliPlace::new();
    let done = stockade(&place, &["explain", "--json", "--", "true"]);
    let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_ne!(told["chosen"], "wasm", "{told}");
    place.write("prog.wat", PRINTING_MODULE);
    let done = stockade(&place, &["explain", "--json", "--", "prog.wat"]);
    let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(told["chosen"], "wasm", "{told}");
    let done = stockade(&place, &["run", "--backend", "wasm", "--", "true"]);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.stderr.contains("--image wasm:PATH"), "{done:?}");
}

#[test]
fn fuel_ends_a_loop_by_name_and_is_told() {
    let place = CliPlace::new();
    place.write("spin.wat", SPINNING_MODULE);
    let done = stockade(&place, &["run", "--fuel", "100000", "--", "spin.wat"]);
    assert_eq!(done.code, 137, "{done:?}");
    assert!(done.stderr.contains("fuel") && done.stderr.contains("--fuel"), "{done:?}");
    place.write("prog.wat", PRINTING_MODULE);
    let fuel = || {
        let args = ["run", "--json", "--deterministic", "--fuel", "100000", "--", "prog.wat"];
        let done = stockade(&place, &args);
        let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        told["outcome"]["usage"]["fuel"].as_u64().or(told["usage"]["fuel"].as_u64())
    };
    let first = fuel();
    assert!(first.is_some_and(|fuel| fuel > 0), "{first:?}");
    assert_eq!(fuel(), first);
}

#[test]
fn functions_are_listed_and_called() {
    let place = CliPlace::new();
    place.write("adds.wat", ADDING_MODULE);
    let file = place.workspace().join("adds.wat");
    let file = file.to_str().unwrap();
    stockade(&place, &["wasm", "call", file]).is(0, "add\n", "");
    stockade(&place, &["wasm", "call", file, "add", "2", "-5"]).is(0, "-3\n", "");
    let done =
        stockade(&place, &["wasm", "call", "--json", "--fuel", "1000", file, "add", "2", "3"]);
    let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(told["values"], serde_json::json!(["5"]));
    assert!(told["fuel"].as_u64().is_some_and(|fuel| fuel > 0), "{told}");
    let listed = stockade(&place, &["audit", "list", "--json"]);
    let jobs: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    let last = jobs.as_array().unwrap().iter().find(|job| {
        job["started"]["event"]["command"] == serde_json::json!([file, "add", "2", "-5"])
    });
    assert!(last.is_some_and(|job| job["stopped"] != serde_json::Value::Null), "{jobs}");
    let done = stockade(&place, &["wasm", "call", "nowhere.wasm"]);
    assert!(done.code == 125 && done.stderr.contains("name a module"), "{done:?}");
    let done = stockade(&place, &["wasm", "call", file, "subtract", "2", "3"]);
    assert!(done.code == 125 && done.stderr.contains("subtract"), "{done:?}");
}

/// The interpreter that `scripts/setup` has made; it may be missing only outside CI.
fn ruby() -> Option<std::path::PathBuf> {
    let ruby = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/ruby/ruby.wasm");
    if ruby.is_file() {
        return Some(ruby);
    }
    assert!(std::env::var_os("CI").is_none(), "run scripts/setup: there is no {}", ruby.display());
    println!("skipped: there is no interpreter; scripts/setup makes it");
    None
}

#[test]
fn an_interpreter_runs_a_script_of_the_workspace_and_the_second_time_from_the_cache() {
    let Some(ruby) = ruby() else { return };
    let place = CliPlace::new();
    // The driver ends the program without Ruby's own end, which would flush.
    let script = "require 'json'\n\
                  puts JSON.generate([RUBY_ENGINE, (1..20).reduce(:*)])\n\
                  $stdout.flush\n";
    place.write("script.rb", script);
    let image = format!("wasm:{}", ruby.display());
    let run = || {
        let limits = ["--timeout", "10m", "--cpu-time", "5m", "--mem", "1g"];
        let what = ["--image", &image, "--env", "SCRIPT=/workspace/script.rb", "--", "ruby"];
        // Compiling takes its time; how long the whole may take, the command is told itself.
        let done = command(&place, &[&["run"], &limits[..], &what].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert_eq!(said, "[\"ruby\",2432902008176640000]\n", "{errors}");
    };
    run();
    // Taking an entry leaves a mark on it, and compiling anew would leave another file.
    let kept = place.state().join("wasm/code");
    let entries = std::fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path());
    let entry = entries.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let before = entry.metadata().unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    std::fs::File::open(&entry).unwrap().set_modified(long_ago).unwrap();
    run();
    let after = entry.metadata().unwrap();
    assert_eq!(after.ino(), before.ino());
    assert!(after.modified().unwrap() > long_ago, "expected the cache to be used: {after:?}");
    place.assert_nothing_is_left();
}
