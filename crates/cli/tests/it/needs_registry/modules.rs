//! WebAssembly modules of a real registry, by the command: run on the wasm backend, and on no other.

use crate::common::image_commands::{json, pull, started};
use crate::common::registry::TestRegistry;
use crate::common::{CliDone, CliPlace, finish};

/// Prints `hi` and exits with 5. Assembled by hand: imports of `fd_write` and `proc_exit`, one memory, `_start`.
const PRINTING_MODULE: &[u8] = b"\x00asm\x01\x00\x00\x00\x01\x10\x03`\x04\x7f\x7f\x7f\x7f\x01\x7f`\
    \x01\x7f\x00`\x00\x00\x02F\x02\x16wasi_snapshot_preview1\x08fd_write\x00\x00\x16\
    wasi_snapshot_preview1\x09proc_exit\x00\x01\x03\x02\x01\x02\x05\x03\x01\x00\x01\x07\x13\x02\x06\
    memory\x02\x00\x06_start\x00\x02\x0a\x13\x01\x11\x00A\x01A\x00A\x01A\x08\x10\x00\x1aA\x05\x10\x01\
    \x0b\x0b\x16\x02\x00A\x00\x0b\x08\x10\x00\x00\x00\x03\x00\x00\x00\x00A\x10\x0b\x03hi\x0a";

/// Media types of configs and layers, as tools of the field write them.
const CNCF_TYPES: (&str, &str) = ("application/vnd.wasm.config.v0+json", "application/wasm");
const MODULE_TYPES: (&str, &str) = (
    "application/vnd.module.wasm.config.v1+json",
    "application/vnd.module.wasm.content.layer.v1+wasm",
);

fn push_module(registry: &TestRegistry, tag: &str, types: (&str, &str)) -> String {
    let name = registry.name_of("team/module", tag);
    registry.push_layout(&registry.make_module_layout(PRINTING_MODULE, types), &name);
    name
}

fn run_module(place: &CliPlace, name: &str, rest: &[&str]) -> CliDone {
    let run = ["run", "--no-workspace", "--backend", "wasm", "--image", name];
    place.stockade(&[&run[..], rest].concat())
}

#[test]
fn a_module_of_a_registry_runs_on_wasm_and_its_digest_is_in_the_record() {
    let registry = TestRegistry::start();
    for (tag, types) in [("1", CNCF_TYPES), ("2", MODULE_TYPES)] {
        let name = push_module(&registry, tag, types);
        for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
            for rest in [&[][..], &["--", "module"], &["--image-defaults", "--", "argument"]] {
                run_module(&place, &name, rest).is(5, "hi\n", "");
            }
            run_module(&place, &name, &["--", "other"]).code_is(127);
            let digest = pull(&place, &name);
            let recorded = started(&place, "module.wasm");
            assert_eq!(recorded.len(), 2, "{recorded:?}");
            for event in recorded {
                assert_eq!(event["image"], format!("{name}@{digest}"), "{event}");
                assert_eq!(event["backend"], "wasm", "{event}");
            }
            place.assert_nothing_is_left();
        }
    }
}

#[test]
fn a_stored_module_runs_without_its_registry_and_is_listed_and_removed() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = push_module(&registry, "1", CNCF_TYPES);
    run_module(&place, &name, &["--pull", "never"]).is_refused(&["no image"]);
    let digest = pull(&place, &name);
    drop(registry);
    run_module(&place, &name, &["--pull", "never"]).is(5, "hi\n", "");
    let listed = json(&place, &["image", "ls"]);
    assert_eq!(listed["images"][0]["digest"], digest.as_str(), "{listed}");
    place.stockade(&["image", "rm", &name]).code_is(0);
    run_module(&place, &name, &["--pull", "never"]).is_refused(&["no image"]);
}

#[test]
fn a_module_is_no_root_and_an_image_no_module() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let module = push_module(&registry, "1", CNCF_TYPES);
    let as_root = ["run", "--no-workspace", "--image", &module, "--", "true"];
    let refused = ["a WebAssembly module", "--backend wasm"];
    place.stockade(&as_root).is_refused(&refused);
    pull(&place, &module);
    place.stockade(&as_root).is_refused(&refused);
    run_module(&place, &registry.name("1"), &[]).is_refused(&["no WebAssembly module"]);
    let text = registry.make_module_layout(b"(module)", CNCF_TYPES);
    let name = registry.name_of("team/text", "1");
    registry.push_layout(&text, &name);
    run_module(&place, &name, &[]).is_refused(&["no WebAssembly module"]);
    let mut explain = place.command(&["explain", "--json", "--image", &module, "--", "module"]);
    explain.env_remove("STOCKADE_BACKEND");
    let told: serde_json::Value = serde_json::from_str(&finish(explain).stdout).unwrap();
    assert_ne!(told["chosen"], "wasm", "a name alone does not say that it is a module");
}
