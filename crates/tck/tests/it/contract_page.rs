//! Keeps `docs/contract.md` in step with the kit's registry.

use std::path::Path;

#[test]
fn contract_page_is_in_step_with_the_registry() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/contract.md");
    let page = stockade_tck::contract::page();
    if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == page, "docs/contract.md is out of step: see how to write it on the page");
}
