//! One call: runs until it is done, until the client gives up, or until a person has to be asked by a
//! client that answers in a second request.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, InputRequest, InputRequests, InputRequiredResult,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;
use stockade_tools::{Ask, Call, Cancelled, Canceller, Question, Toolbox};
use tokio::sync::mpsc;

use super::answer;
use super::desk::Desk;
use super::pending::APPROVAL_KEY;
use super::person::{self, Elicit, Postpone};
use super::progress::Notify;

/// Makes a call.
pub async fn call(
    desk: &Desk,
    toolbox: &Toolbox,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let (ask, mut questions) = choose_asker(desk, &request, &context)?;
    let (canceller, cancelled) = Cancelled::pair();
    let token = context.meta.get_progress_token();
    let progress = Arc::new(Notify::new(context.peer.clone(), token));
    let call = Call { progress, ask, cancelled };
    let arguments = Value::Object(request.arguments.clone().unwrap_or_default());

    let work = async {
        let _turn = desk.calls.acquire().await;
        answer::result(toolbox.call(&request.name, arguments, &call).await)
    };
    let given_up = async {
        tokio::select! {
            () = context.ct.cancelled() => {}
            () = desk.hurried() => {}
        }
    };
    tokio::select! {
        done = until_killed(work, given_up, &canceller) => Ok(done.into()),
        Some(question) = questions.recv() => postpone_question(desk, &request, question),
    }
}

/// Who is asked, and where questions come out that this request does not answer.
fn choose_asker(
    desk: &Desk,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<(Arc<dyn Ask>, mpsc::Receiver<Question>), ErrorData> {
    let nothing = || mpsc::channel(1).1;
    if !person::can_ask(context.client_capabilities().as_ref()) {
        return Ok((desk.otherwise(), nothing()));
    }
    if context.protocol_version().is_none_or(|version| version.has_initialize()) {
        return Ok((Arc::new(Elicit(context.peer.clone())), nothing()));
    }
    let answered = desk.pending.answer(request);
    let answered = answered.map_err(|unfit| ErrorData::invalid_params(unfit.to_string(), None))?;
    let (ask, questions) = Postpone::new(answered);
    Ok((Arc::new(ask), questions))
}

/// Waits for the work. When the caller gives up, what runs is told so and waited for: when this
/// returns, it has ended.
async fn until_killed<T>(
    work: impl Future<Output = T>,
    given_up: impl Future<Output = ()>,
    canceller: &Canceller,
) -> T {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = given_up => canceller.cancel(),
    }
    work.await
}

fn postpone_question(
    desk: &Desk,
    request: &CallToolRequestParams,
    question: Question,
) -> Result<CallToolResponse, ErrorData> {
    let unasked =
        |why: &str| ErrorData::internal_error(format!("no question can be asked: {why}"), None);
    let form = person::form(&question).ok_or_else(|| unasked("the question cannot be written"))?;
    let opened = desk.pending.open(request, question);
    let handle = opened.map_err(|error| unasked(&error.to_string()))?;
    let requests =
        InputRequests::from([(APPROVAL_KEY.to_owned(), InputRequest::Elicitation(form))]);
    Ok(InputRequiredResult::new(Some(requests), Some(handle)).into())
}
