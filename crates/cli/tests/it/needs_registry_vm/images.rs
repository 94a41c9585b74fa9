//! An image of a registry as the root of a virtual machine.

use std::fs;

use crate::common::registry::TestRegistry;
use crate::common::{CliPlace, finish};
use crate::machines;

#[test]
fn an_image_of_a_registry_is_the_root_of_a_machine() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let config = place.path("home/.config/stockade/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, format!("[microvm]\ncache = {:?}\n", machines::store_directory())).unwrap();
    let name = registry.name("1");
    place.stockade(&["image", "pull", &name]).code_is(0);
    let run =
        ["run", "--backend", "microvm", "--no-workspace", "--timeout", "5m", "--image", &name];
    let done = finish(place.command(&[&run[..], &["--", "cat", "/etc/release"]].concat()));
    assert_eq!((done.code, done.stdout.as_str()), (0, "one\n"), "{done:?}");
    place.assert_nothing_is_left();
}
