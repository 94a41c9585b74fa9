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

#[test]
fn an_archive_of_an_image_is_the_root_of_a_gvisor_sandbox() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let file = place.path("image.tar");
    registry.save(&registry.name("1"), "oci-archive", &file);
    let image = format!("oci:{}", file.display());
    let run = ["run", "--backend", "gvisor", "--no-workspace", "--image", &image];
    place.stockade(&[&run[..], &["--", "cat", "/etc/release"]].concat()).is(0, "one\n", "");
    place.stockade(&run).is(0, "hello from /srv as 33\n", "");
    place.assert_nothing_is_left();
}
