//! Docker, beside which a pulled tree is held.

use crate::engine_trees::assert_engine_has_the_same_tree;
use crate::engines::EngineKind;

#[tokio::test]
async fn a_pulled_tree_is_what_a_container_of_docker_sees() {
    assert_engine_has_the_same_tree(EngineKind::Docker).await;
}
