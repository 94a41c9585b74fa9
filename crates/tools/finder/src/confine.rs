//! From here on, reading beneath the base and nothing else, where the kernel has Landlock.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError,
};

use crate::root::SearchRoot;

/// Confines this process, threads it will start included. Without Landlock the walls of the sandbox
/// are all there is, and locally the care with which files are opened.
pub fn to(root: &SearchRoot) {
    let _ = restrict_to_root(root);
}

fn restrict_to_root(root: &SearchRoot) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(ABI::V5);
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()?
        .add_rule(PathBeneath::new(&root.base, reading))?
        .restrict_self()?;
    Ok(())
}
