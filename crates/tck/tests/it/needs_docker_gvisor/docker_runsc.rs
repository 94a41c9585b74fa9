//! The kit on a Docker engine whose runtime is gVisor's.

use stockade_core::{Backend, Boundary};

use crate::containers::{judge_runtime, with_runtime};
use crate::engines::{ContainerEngine, EngineKind};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn docker_with_a_kernel_in_user_space_as_its_runtime_passes_too() {
    judge_runtime(EngineKind::Docker, "runsc", 45).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_boundary_is_told_by_what_was_seen_and_not_by_a_name() {
    let engine = ContainerEngine::start(EngineKind::Docker);
    let shared = with_runtime(&engine.socket, Some("runc")).probe().await;
    let apart = with_runtime(&engine.socket, Some("runsc")).probe().await;
    assert_eq!((shared.unavailable, apart.unavailable), (None, None));
    assert_eq!(shared.boundary, Boundary::SharedKernel);
    assert_eq!(apart.boundary, Boundary::UserspaceKernel);
}
