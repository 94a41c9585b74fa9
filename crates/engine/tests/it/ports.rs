//! Ports and rules where there are none: what is refused, and by which name.

use std::sync::Arc;

use stockade_backends::mock::Mock;
use stockade_core::{
    ErrorCode, Feature, Network, SandboxId, SandboxSpec, Support, parse_egress_list,
};
use stockade_engine::{Engine, EngineConfig};

/// A sandbox of a mock with this network.
async fn sandbox_of(mock: Mock, network: Network) -> (tempfile::TempDir, Engine, SandboxId) {
    let place = tempfile::tempdir().unwrap();
    let config = EngineConfig::at(place.path().join("state"));
    let engine = Engine::open(config, vec![Arc::new(mock)]).await.unwrap();
    let backend = "mock".parse().unwrap();
    let spec = SandboxSpec { backend, network, ..SandboxSpec::default() };
    let id = engine.create(spec).await.unwrap();
    (place, engine, id)
}

#[tokio::test]
async fn a_backend_without_loopback_refuses_ports_by_its_name() {
    let missing = Support::missing("it is the host's", "choose another");
    let mock = Mock::new().with_support(Feature::LoopbackNetwork, missing);
    let (_place, engine, id) = sandbox_of(mock, Network::Auto).await;
    let error = engine.connect_port(&id, 80).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::Unsupported);
    assert!(error.message().contains("loopback-network"), "{error}");
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_sandbox_without_a_network_has_no_ports() {
    let (_place, engine, id) = sandbox_of(Mock::new(), Network::None).await;
    let error = engine.prepare_ports(&id).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Denied);
    assert!(error.hint().is_some_and(|hint| hint.contains("--net loopback")), "{error}");
    assert_eq!(engine.network(&id).unwrap(), Network::None);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_sandbox_without_rules_gets_none_later() {
    let (_place, engine, id) = sandbox_of(Mock::new(), Network::Loopback).await;
    let rules = parse_egress_list("a.test").unwrap();
    let error = engine.replace_network_rules(&id, rules).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Denied);
    assert_eq!(engine.network(&id).unwrap(), Network::Loopback);
    engine.close().await.unwrap();
}
