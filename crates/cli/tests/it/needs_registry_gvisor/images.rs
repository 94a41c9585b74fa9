//! An image of a registry on gVisor.

use crate::common::CliPlace;
use crate::common::registry::TestRegistry;

#[test]
fn an_image_of_a_registry_is_the_root_of_a_gvisor_sandbox() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let name = registry.name("1");
    let run = ["run", "--backend", "gvisor", "--no-workspace", "--image", &name];
    place.stockade(&[&run[..], &["--", "cat", "/etc/release"]].concat()).is(0, "one\n", "");
    place.assert_nothing_is_left();
}
