//! In a plain container, under the profile that Docker has for everybody.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::engines::{ContainerEngine, EngineKind};

const STOCKADE_PROGRAM: &str = env!("CARGO_BIN_EXE_stockade");
const TEST_IMAGE: &str = "localhost/stockade-test/bare:1";

/// An engine with an image that holds nothing: programs are the host's.
fn engine() -> ContainerEngine {
    let root = tempfile::tempdir().unwrap();
    for link in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{link}"), root.path().join(link)).unwrap();
    }
    for dir in ["usr", "tmp", "srv", "etc", "proc", "dev"] {
        fs::create_dir(root.path().join(dir)).unwrap();
    }
    fs::set_permissions(root.path().join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    let engine = ContainerEngine::start(EngineKind::Docker);
    engine.import_image(root.path(), TEST_IMAGE);
    engine
}

#[test]
fn in_a_plain_container_something_runs_and_the_remedy_is_the_containers() {
    let engine = engine();
    let program = format!("{STOCKADE_PROGRAM}:/opt/stockade:ro");
    let run = |more: &[&str], args: &[&str]| {
        let shown = ["-v", "/usr:/usr:ro", "-v", &program, "-w", "/srv", "-e", "HOME=/tmp"];
        let all =
            [&["run", "--rm"], &shown[..], more, &[TEST_IMAGE, "/opt/stockade"], args].concat();
        let output = engine.client(&all).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for user in [&[][..], &["--user", "1000", "-e", "STOCKADE_STATE_DIR=/tmp/state"]] {
        let (code, stdout, stderr) = run(user, &["run", "--no-workspace", "--", "echo", "hi"]);
        assert_eq!((code, stdout.as_str()), (Some(0), "hi\n"), "{stderr}");
        let (_, detected, _) = run(user, &["detect", "native"]);
        assert!(detected.contains("--security-opt"), "{detected}");
    }
}
