//! The whole kit on the containers of a Podman of the test's own.

use crate::containers::{
    declares_in_vain, judge_engine, kill_many, links_lead_nowhere, names_are_kept,
    run_hostile_corpus,
};
use crate::engines::EngineKind;
use crate::ordinary;

/// As root, and once more as an ordinary user, whose Podman then is without root too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn podman_passes_every_case_it_declares_the_features_for() {
    let least = if rustix::process::geteuid().is_root() { 100 } else { 90 };
    judge_engine(EngineKind::Podman, least).await;
}

#[test]
fn podman_without_root_passes_too() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "podman_passes_every_case_it_declares_the_features_for",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_programs_end_in_the_right_outcome_in_podman() {
    run_hostile_corpus(EngineKind::Podman).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_takes_no_name_from_an_image_of_podmans() {
    names_are_kept(EngineKind::Podman).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_in_podman_of_engines_killed_at_any_instant() {
    kill_many(EngineKind::Podman).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_image_declares_has_no_effect_in_podman() {
    declares_in_vain(EngineKind::Podman).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_in_an_image_lead_no_mount_elsewhere_in_podman() {
    links_lead_nowhere(EngineKind::Podman).await;
}
