//! What the id in a path names, as far as it is there for the caller. Found before anything else of a request is
//! looked at, so that nothing is told about what belongs to others.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use stockade_core::{JobId, Sandbox, SandboxId};

use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::held::{HeldExecution, HeldSandbox};
use super::query::PathId;
use super::state::Api;
use crate::life::Busy;

/// The sandbox that the path names.
pub(crate) struct NamedSandbox(pub Arc<HeldSandbox>);

/// The sandbox that the path names, as the engine has it. Not one that is paused.
pub(crate) struct NamedWalls(pub UsedSandbox);

/// A sandbox as the engine has it, in use until this is dropped.
pub(crate) struct UsedSandbox {
    sandbox: Arc<dyn Sandbox>,
    _busy: Busy,
}

impl Deref for UsedSandbox {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        self.sandbox.as_ref()
    }
}

/// The execution that the path names.
pub(crate) struct NamedExecution(pub Arc<HeldExecution>);

impl FromRequestParts<Api> for NamedSandbox {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiFailure> {
        let PathId(id) = PathId::<SandboxId>::from_request_parts(parts, api).await?;
        api.sandbox(find_caller(parts)?, &id).map(Self)
    }
}

impl FromRequestParts<Api> for NamedWalls {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiFailure> {
        let NamedSandbox(held) = NamedSandbox::from_request_parts(parts, api).await?;
        let busy = held.begin_use(&api.engine)?;
        held.refuse_paused(&api.engine)?;
        let sandbox = api.engine.sandbox(&held.id)?;
        Ok(Self(UsedSandbox { sandbox, _busy: busy }))
    }
}

impl FromRequestParts<Api> for NamedExecution {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiFailure> {
        let PathId(job) = PathId::<JobId>::from_request_parts(parts, api).await?;
        api.execution(find_caller(parts)?, &job).map(Self)
    }
}

fn find_caller(parts: &Parts) -> Result<&ApiCaller, ApiFailure> {
    parts.extensions.get().ok_or_else(ApiFailure::unauthorized)
}
