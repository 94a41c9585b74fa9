//! What can be reached: nothing, unless the policy names it (C-03, C-17, C-25).

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use serde_json::{Value, json};
use stockade_core::{Feature, Network, SandboxSpec};

use crate::case::{case, check, same};
use crate::kit::{probe_command, wait_for_output};
use crate::{Case, Kit, Stop, Verdict};

/// Features required by the cases about network isolation.
const ISOLATION_FEATURES: &[Feature] = &[Feature::NetworkIsolation];
/// Features required by the cases about host sockets: a view of the host, and programs that make sockets.
const HOST_VIEW_FEATURES: &[Feature] = &[Feature::LocalWorkspace, Feature::HostImage];

pub(super) const NETWORK_CASES: &[Case] = &[
    case!("there is no network interface but loopback", "C-03", check_network_interfaces)
        .needs(ISOLATION_FEATURES)
        .isolation(),
    case!("a listener on the host's loopback cannot be reached", "C-03", host_loopback)
        .needs(ISOLATION_FEATURES)
        .isolation(),
    case!("an abstract socket of the host cannot be reached", "C-03", host_abstract)
        .needs(ISOLATION_FEATURES)
        .isolation(),
    case!("an abstract socket of another sandbox cannot be reached", "C-17", other_abstract)
        .needs(ISOLATION_FEATURES)
        .isolation(),
    case!("a socket of the host in the workspace cannot be reached", "C-25", host_socket)
        .needs(HOST_VIEW_FEATURES)
        .isolation(),
    case!("a socket of the host in a read-only workspace cannot be reached", "C-25", shown_socket)
        .needs(&[Feature::LocalWorkspace, Feature::HostImage, Feature::ReadOnlyWorkspace])
        .isolation(),
    case!("processes of one sandbox can talk over its own loopback", "C-03", own_loopback)
        .needs(&[Feature::LoopbackNetwork]),
    case!("the default network is the sandbox's own loopback", "C-03", default_loopback)
        .needs(&[Feature::LoopbackNetwork]),
    case!("the loopback of a sandbox is not the host's", "C-17", loopback_is_own)
        .needs(&[Feature::LoopbackNetwork])
        .isolation(),
];

async fn check_network_interfaces(kit: Kit) -> Verdict {
    // A host that has nothing but loopback itself would prove nothing.
    let names = std::fs::read_dir("/sys/class/net")?.count();
    let facts = kit.facts(["report"]).await?;
    let listed = facts["interfaces"].as_array().cloned().unwrap_or_default();
    let foreign = |entry: &&Value| entry["name"] != json!("lo");
    let seen: Vec<_> = listed.iter().filter(foreign).map(|entry| entry["name"].clone()).collect();
    check!(seen.is_empty(), "expected loopback at most, saw {seen:?}");
    if names < 2 && kit.is_native() {
        return Err(Stop::Unfit("this host has no interface but loopback".into()));
    }
    Ok(())
}

async fn check_loopback_unreachable(kit: &Kit, spec: stockade_core::SandboxSpec) -> Verdict {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port().to_string();
    let command = probe_command(["connect", "127.0.0.1", &port, "2000"]);
    let facts = kit.run_with(spec, command).await?.facts()?;
    check!(facts["ok"] == json!(false), "expected no connection, saw {facts}");
    check!(listener.accept().is_err(), "expected nobody at the host's door, saw a connection");
    Ok(())
}

async fn host_loopback(kit: Kit) -> Verdict {
    check_loopback_unreachable(&kit, kit.spec()).await
}

async fn host_abstract(kit: Kit) -> Verdict {
    let name = format!("{}host", kit.mark());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let facts = kit.facts(["connect-unix", &name]).await?;
    check!(facts["ok"] == json!(false), "expected no connection, saw {facts}");
    Ok(())
}

async fn other_abstract(kit: Kit) -> Verdict {
    let name = format!("{}other", kit.mark());
    let (one, two) =
        (kit.room_with(kit.spec_apart(1)?).await?, kit.room_with(kit.spec_apart(2)?).await?);
    let listening = one.start(probe_command(["listen-unix", &name, "600000"])).await?;
    // Where no socket can be made, there is none to be reached: both have to be refused.
    wait_for_output(&mut listening.subscribe(), "\"ok\":").await?;
    let facts = two.facts(["connect-unix", &name]).await?;
    check!(facts["ok"] == json!(false), "expected no connection, saw {facts}");
    Ok(())
}

async fn host_socket(kit: Kit) -> Verdict {
    check_sockets_unreached(&kit, kit.spec()).await
}

async fn shown_socket(kit: Kit) -> Verdict {
    check_sockets_unreached(&kit, SandboxSpec { read_only: true, ..kit.spec() }).await
}

/// Checks that the guest reaches no socket in the workspace, unless the backend says that it may.
async fn check_sockets_unreached(kit: &Kit, spec: SandboxSpec) -> Verdict {
    let (stream, datagrams) = (kit.workspace().join("stream"), kit.workspace().join("datagrams"));
    let listener = UnixListener::bind(&stream)?;
    let receiver = UnixDatagram::bind(&datagrams)?;
    for socket in [&stream, &datagrams] {
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o777))?;
    }
    let command = probe_command(["connect-path", "stream", "datagrams"]);
    let facts = kit.run_with(spec, command).await?.facts()?;
    listener.set_nonblocking(true)?;
    receiver.set_nonblocking(true)?;
    let reached = listener.accept().is_ok() || receiver.recv(&mut [0; 8]).is_ok();
    if kit.has_gap("C-25") {
        return Ok(());
    }
    check!(!reached, "expected nobody at the host's sockets, saw {facts}");
    check!(facts["ok"] == json!(false), "expected no connection, saw {facts}");
    Ok(())
}

async fn own_loopback(kit: Kit) -> Verdict {
    let spec = SandboxSpec { network: Network::Loopback, ..kit.spec() };
    talks_to_itself(&kit, spec).await
}

async fn default_loopback(kit: Kit) -> Verdict {
    talks_to_itself(&kit, SandboxSpec { network: Network::default(), ..kit.spec() }).await
}

async fn talks_to_itself(kit: &Kit, spec: SandboxSpec) -> Verdict {
    let facts = kit.run_with(spec, probe_command(["listen-and-connect"])).await?.facts()?;
    same!("what was heard", facts, json!({ "ok": true, "heard": "hello" }));
    Ok(())
}

async fn loopback_is_own(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.network = Network::Loopback;
    check_loopback_unreachable(&kit, spec).await
}
