//! Executions: started in a sandbox, listed, looked at, fed, signalled and cancelled. One outlives the
//! connection that started it.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;
use stockade_core::{Command, ErrorCode, JobId, Signal, TerminalSize};

use super::answer::{ApiAnswer, answer_created, answer_done, answer_ok};
use super::body::{parse_json, read_body, read_json};
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::held::{HeldExecution, HeldSandbox};
use super::idempotency::RequestKey;
use super::named::{NamedExecution, NamedSandbox};
use super::page::PageBuilder;
use super::query::ApiQuery;
use super::state::Api;

/// Timeout for what is told to a program: one that does not read its input is not waited for longer.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);

/// Which signal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SentSignal {
    /// Its name, with or without `SIG`.
    signal: String,
}

/// Which page of executions.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExecutionQuery {
    /// What the page before has said.
    after: Option<u64>,
    limit: Option<usize>,
}

/// What comes with input.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct InputQuery {
    /// Whether no more follows.
    end: bool,
}

/// `POST /v1/sandboxes/{id}/executions`
pub(crate) async fn start_execution(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    NamedSandbox(held): NamedSandbox,
    headers: HeaderMap,
    body: Body,
) -> ApiAnswer {
    let body = read_body(body).await?;
    let key = RequestKey::of(&headers, &caller, &format!("executions of {}", held.id), &body)?;
    let starting = api.started.run_once(key, start_in_sandbox(&api, held, &body));
    let job = api.make(starting).await?;
    answer_created(format!("/v1/executions/{job}"), &api.execution(&caller, &job)?.view())
}

async fn start_in_sandbox(
    api: &Api,
    held: Arc<HeldSandbox>,
    body: &[u8],
) -> Result<JobId, ApiFailure> {
    let command: Command = parse_json(body)?;
    let room = api.reserve_execution(&held)?;
    let watcher = api.engine.exec(&held.id, command).await?.detach();
    let job = watcher.job().clone();
    api.hold_execution(watcher, held.spec.tenant.clone(), room);
    Ok(job)
}

/// `GET /v1/sandboxes/{id}/executions`
pub(crate) async fn list_executions(
    State(api): State<Api>,
    NamedSandbox(sandbox): NamedSandbox,
    ApiQuery(query): ApiQuery<ExecutionQuery>,
) -> ApiAnswer {
    let mut page = PageBuilder::new(query.limit);
    for held in api.executions_of(&sandbox.id, query.after) {
        if !page.push(held.order, &held.view())? {
            break;
        }
    }
    answer_ok(&page.finish("executions"))
}

/// `GET /v1/executions/{id}`
pub(crate) async fn get_execution(NamedExecution(held): NamedExecution) -> ApiAnswer {
    answer_ok(&held.view())
}

/// `POST /v1/executions/{id}/input`
pub(crate) async fn send_input(
    State(api): State<Api>,
    NamedExecution(held): NamedExecution,
    ApiQuery(query): ApiQuery<InputQuery>,
    body: Body,
) -> ApiAnswer {
    write_input(&api, &held, read_body(body).await?, query.end).await?;
    answer_done()
}

/// Feeds a program input, and ends it where no more follows.
pub(super) async fn write_input(
    api: &Api,
    held: &HeldExecution,
    data: Bytes,
    end: bool,
) -> Result<(), ApiFailure> {
    api.refuse_paused(held)?;
    within_control_timeout(async {
        if !data.is_empty() {
            held.watcher.write_stdin(data).await?;
        }
        if end { held.watcher.close_stdin().await } else { Ok(()) }
    })
    .await
}

/// `POST /v1/executions/{id}/signal`
pub(crate) async fn send_signal(
    State(api): State<Api>,
    NamedExecution(held): NamedExecution,
    body: Body,
) -> ApiAnswer {
    signal_program(&api, &held, &read_json(body).await?).await?;
    answer_done()
}

/// Signals a program and its descendants.
pub(super) async fn signal_program(
    api: &Api,
    held: &HeldExecution,
    sent: &SentSignal,
) -> Result<(), ApiFailure> {
    let signal = Signal::from_name(&sent.signal).ok_or_else(|| {
        ApiFailure::new(ErrorCode::Invalid, "`signal` is not the name of a signal")
            .remedy("send one such as `TERM`, `INT` or `KILL`")
    })?;
    api.refuse_paused(held)?;
    within_control_timeout(held.watcher.signal(signal)).await
}

/// `POST /v1/executions/{id}/resize`
pub(crate) async fn resize_terminal(
    State(api): State<Api>,
    NamedExecution(held): NamedExecution,
    body: Body,
) -> ApiAnswer {
    set_terminal_size(&api, &held, read_json(body).await?).await?;
    answer_done()
}

/// Changes the size of a program's terminal.
pub(super) async fn set_terminal_size(
    api: &Api,
    held: &HeldExecution,
    size: TerminalSize,
) -> Result<(), ApiFailure> {
    api.refuse_paused(held)?;
    within_control_timeout(held.watcher.resize(size)).await
}

/// `POST /v1/executions/{id}/cancel`
pub(crate) async fn cancel_execution(NamedExecution(held): NamedExecution) -> ApiAnswer {
    held.watcher.cancel();
    // Its end follows: the stream of events tells it.
    answer_ok(&held.view())
}

async fn within_control_timeout(
    work: impl Future<Output = stockade_core::Result<()>>,
) -> Result<(), ApiFailure> {
    match tokio::time::timeout(CONTROL_TIMEOUT, work).await {
        Ok(done) => Ok(done?),
        Err(_) => {
            let message = "the program did not take it in time";
            Err(ApiFailure::new(ErrorCode::TooSlow, message)
                .remedy("send less input at once, or wait until the program reads"))
        }
    }
}
