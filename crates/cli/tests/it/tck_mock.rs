//! The kit by the command on the mock, which plays the probe itself.

use serde_json::Value;

use crate::common::CliPlace;

#[test]
fn the_mock_is_judged_by_its_name() {
    let place = CliPlace::new();
    let done = place.stockade(&["--json", "tck", "--backend", "mock", "--only", "C-10"]);
    assert_eq!(done.code, 0, "{done:?}");
    let told: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(told[0]["subject"], "mock", "{told}");
    place.stockade(&["tck", "--backend", "nothing"]).is_refused(&["nothing"]);
}
