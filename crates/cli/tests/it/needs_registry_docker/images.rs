//! Images of a real registry in a real Docker: by the docker backend, and beside it.

use std::fs;

use serde_json::Value;

use crate::common::CliPlace;
use crate::common::image_commands::{cat_release, started};
use crate::common::registry::TestRegistry;
use crate::engines::{ContainerEngine, EngineKind};

/// A place whose commands find this engine.
fn place_with(engine: &ContainerEngine) -> CliPlace {
    let place = CliPlace::new();
    let dir = place.path("home/.config/stockade");
    fs::create_dir_all(&dir).unwrap();
    let config = format!("[docker]\nsocket = {:?}\n", engine.socket);
    fs::write(dir.join("config.toml"), config).unwrap();
    place
}

#[test]
fn an_image_is_pulled_by_the_engine_and_recorded_by_its_digest() {
    let (registry, engine) = (TestRegistry::start(), ContainerEngine::start(EngineKind::Docker));
    let place = place_with(&engine);
    let name = registry.name("1");
    let docker = ["--backend", "docker", "--image", &name];
    let with = |more: &[&str]| cat_release(&place, &[&docker[..], more].concat());

    with(&["--pull", "never"]).is_refused(&[&name, "no registry may be asked"]);
    with(&[]).code_is(0);
    let digest = registry.inspect(&name)["Digest"].clone();
    let recorded: Vec<Value> = started(&place, "cat");
    let pinned = format!("{name}@{}", digest.as_str().unwrap());
    assert_eq!(recorded.last().unwrap()["image"], pinned, "{recorded:?}");

    registry.push("1", "two");
    for (policy, release) in [("never", "one\n"), ("missing", "one\n"), ("always", "two\n")] {
        let done = with(&["--pull", policy]);
        assert_eq!((done.code, done.stdout.as_str()), (0, release), "{policy}: {done:?}");
    }
    cat_release(&place, &["--backend", "docker", "--image", &pinned, "--pull", "never"])
        .is(0, "one\n", "");
    drop(registry);
    with(&["--pull", "always"]).code_is(125);
    with(&[]).is(0, "two\n", "");
    place.assert_nothing_is_left();
}

#[test]
fn an_images_own_command_and_defaults_are_those_that_docker_would_take() {
    let (registry, engine) = (TestRegistry::start(), ContainerEngine::start(EngineKind::Docker));
    let place = place_with(&engine);
    let name = registry.name("1");
    let run = ["run", "--backend", "docker", "--no-workspace", "--image", &name];
    let own = place.stockade(&run);
    assert_eq!((own.code, own.stdout.as_str()), (0, "hello from /srv as 33\n"), "{own:?}");
    let docker = engine.read_client_output(&["run", "--rm", "--network", "none", &name]);
    assert_eq!(docker, own.stdout.trim_end());

    let line = "echo $GREETING $0";
    let taken = [&run[..], &["--image-defaults", "-e", "GREETING=bye", "--", line, "x"]].concat();
    place.stockade(&taken).is(0, "bye x\n", "");
    let plain = [&run[..], &["--", "sh", "-c", "echo a$GREETING"]].concat();
    place.stockade(&plain).is(0, "a\n", "");
}

#[test]
fn an_image_that_was_built_and_pushed_runs_in_docker_with_the_same_output() {
    let (registry, engine) = (TestRegistry::start(), ContainerEngine::start(EngineKind::Docker));
    let place = CliPlace::new();
    let context = place.path("context");
    fs::create_dir_all(&context).unwrap();
    fs::write(context.join("given"), "given\n").unwrap();
    let dockerfile = format!(
        "FROM {} AS first\nRUN echo made > /made && rm /bin/touch\nFROM {}\nENV GREETING=built\n\
         WORKDIR /data\nCOPY --from=first /made ./\nCOPY --chmod=644 given ./\n\
         RUN [\"/bin/ln\", \"-s\", \"made\", \"link\"]\nENTRYPOINT [\"/bin/sh\", \"-c\"]\n\
         CMD [\"cat link given; echo $GREETING $(pwd); ls . /bin/touch; echo $?\"]\n",
        registry.name("1"),
        registry.name("1")
    );
    fs::write(context.join("Dockerfile"), dockerfile).unwrap();
    let context = context.to_str().unwrap();
    place.stockade(&["image", "build", "-t", "localhost/built:1", context]).code_is(0);
    let pushed = registry.name_of("built", "1");
    place.stockade(&["image", "push", "localhost/built:1", "--to", &pushed]).code_is(0);

    let ours = place.stockade(&["run", "--no-workspace", "--image", "localhost/built:1"]);
    assert!(ours.stdout.starts_with("made\ngiven\nbuilt /data\n"), "{ours:?}");
    let run = ["run", "--rm", "--network", "none", "--ulimit", "nofile=64:64", &pushed];
    assert_eq!(engine.read_client_output(&run), ours.stdout.trim_end());
}
