//! Secrets that are bound to hosts: the value is not inside, and what stands for it goes nowhere else (C-53).

use std::collections::BTreeMap;

use serde_json::Value;
use stockade_core::{Boundary, Feature, SandboxSpec, SecretBinding, SecretValue};

use super::egress::{HostServer, NAMED_WAYS, has_page};
use crate::case::{case, check};
use crate::kit::Room;
use crate::{Case, Kit, Stop, Verdict};

const SECRET_FEATURES: &[Feature] = &[Feature::EgressAllowlist, Feature::FileTransfer];
const SECRET_NAME: &str = "KIT_KEY";
const SECRET_VALUE: &str = "correct-horse-of-the-kit";
/// The host that the secret is bound to. There is none of that name.
const BOUND_HOST: &str = "bound.test";

pub(super) const SECRET_CASES: &[Case] = &[case!(
    "the value of a bound secret is not inside, and its placeholder goes to no other host",
    "C-53",
    bound_secret
)
.needs(SECRET_FEATURES)];

async fn open_bound_room(kit: &Kit, server: &HostServer) -> Verdict<Room> {
    if kit.boundary() == Boundary::None {
        let reason = "without walls the certificates for programs inside would be the host's";
        return Err(Stop::Unfit(reason.into()));
    }
    let rules = ["localhost:PORT", "127.0.0.1:PORT", BOUND_HOST];
    let secret = format!("{SECRET_NAME}={BOUND_HOST}");
    let secret = secret.parse::<SecretBinding>().map_err(Stop::Failed)?;
    let spec = SandboxSpec { secrets: vec![secret], ..server.spec(kit, &rules)? };
    let value = SecretValue::try_from(SECRET_VALUE.to_owned()).map_err(Stop::failed)?;
    kit.engine().hold_secrets(&spec.tenant, BTreeMap::from([(SECRET_NAME.parse()?, value)]));
    kit.room_with(spec).await
}

async fn fetch(room: &Room, server: &HostServer, way: &str, named: &str) -> Verdict<Value> {
    room.facts(["fetch", way, "localhost", &server.port.to_string(), named]).await
}

async fn bound_secret(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    let room = open_bound_room(&kit, &server).await?;
    let inside = room.facts(["report"]).await?;
    let has_value = inside.to_string().contains(SECRET_VALUE);
    check!(!has_value, "expected no value inside, saw {inside}");
    let placeholder = inside["environment"][SECRET_NAME].as_str().unwrap_or_default();
    check!(!placeholder.is_empty(), "expected a placeholder, saw {inside}");
    for way in NAMED_WAYS {
        // The way is open, so that what is refused is the placeholder.
        let facts = fetch(&room, &server, way, "localhost").await?;
        check!(has_page(&facts), "expected the page by {way}, saw {facts}");
        let named = format!("localhost\r\nX-Key: {placeholder}");
        let facts = fetch(&room, &server, way, &named).await?;
        check!(!has_page(&facts), "expected no page for a placeholder by {way}, saw {facts}");
    }
    for text in [placeholder, SECRET_VALUE] {
        check!(!server.has_heard(text), "expected no secret at another host, saw `{text}`");
    }
    Ok(())
}
