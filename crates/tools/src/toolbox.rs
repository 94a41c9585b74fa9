//! The one entrance for every front end.

use std::sync::Arc;

use serde_json::Value;
use stockade_core::{ErrorCode, JobId};
use stockade_engine::Engine;

use crate::approval::{self, ApprovalSubject, Facts};
use crate::arguments::parse_arguments;
use crate::place::{ToolPlace, ToolPlaces};
use crate::tool::Tool;
use crate::{Binding, Call, ToolAnswer, ToolError, ToolInfo, ToolboxOptions};
use crate::{bash, browser, files, patch, sandboxes, search, workspace};

/// The tools, bound to an engine, its sandboxes and the user's rules. One for each session of a front
/// end: what one session makes, another cannot name.
pub struct Toolbox {
    session: ToolSession,
}

/// What tools share.
pub(crate) struct ToolSession {
    pub engine: Arc<Engine>,
    pub options: ToolboxOptions,
    pub places: ToolPlaces,
}

impl ToolSession {
    /// Asks the rules, and a person where they say so; returns once the decision is recorded.
    pub(crate) async fn pass(
        &self,
        place: &ToolPlace,
        job: Option<&JobId>,
        facts: Facts,
        call: &Call,
    ) -> Result<(), ToolError> {
        let subject = ApprovalSubject {
            engine: &place.engine,
            tenant: &place.spec.tenant,
            sandbox: (!place.local).then_some(&place.id),
            job,
            facts,
        };
        approval::approve_call(&self.options.approval, subject, call).await
    }
}

impl Toolbox {
    /// A toolbox that has not built anything yet.
    pub fn new(engine: Arc<Engine>, options: ToolboxOptions) -> Self {
        let places = ToolPlaces::new(Arc::clone(&engine), &options);
        Self { session: ToolSession { engine, options, places } }
    }

    /// Every tool, always the same and in the same order.
    pub fn tools(&self) -> Vec<ToolInfo> {
        Tool::ALL.iter().map(|tool| tool.info()).collect()
    }

    /// Calls a tool by its name.
    ///
    /// - Unknown tools and fields are refused by name (C-04).
    /// - What the rules do not allow does not happen, and every decision is recorded first (C-40).
    /// - If the call is cancelled or this future dropped, what it runs is killed (C-15).
    pub async fn call(
        &self,
        name: &str,
        arguments: Value,
        call: &Call,
    ) -> Result<ToolAnswer, ToolError> {
        let Some(tool) = Tool::from_name(name) else {
            let known: Vec<_> = Tool::ALL.iter().map(|tool| tool.name()).collect();
            let message = format!("there is no tool `{}`", name.escape_debug());
            return Err(ToolError::new(ErrorCode::NotFound, message)
                .remedy(format!("call one of: {}", known.join(", "))));
        };
        let done = self.dispatch_tool(tool, arguments, call).await;
        with_notices(done, &self.session.places.take_notices())
    }

    async fn dispatch_tool(
        &self,
        tool: Tool,
        given: Value,
        call: &Call,
    ) -> Result<ToolAnswer, ToolError> {
        let session = &self.session;
        match tool {
            Tool::Bash => bash::run_bash(session, parse_arguments(given)?, call).await,
            Tool::ReadFile => files::read_file(session, parse_arguments(given)?, call).await,
            Tool::WriteFile => files::write_file(session, parse_arguments(given)?, call).await,
            Tool::EditFile => files::edit_file(session, parse_arguments(given)?, call).await,
            Tool::ApplyPatch => patch::apply_patch(session, parse_arguments(given)?, call).await,
            Tool::Glob => search::find_files(session, parse_arguments(given)?, call).await,
            Tool::Grep => search::search_text(session, parse_arguments(given)?, call).await,
            Tool::ListDir => files::list_directory(session, parse_arguments(given)?, call).await,
            Tool::Artifacts => files::fetch_artifacts(session, parse_arguments(given)?, call).await,
            Tool::Screenshot => {
                browser::take_screenshot(session, parse_arguments(given)?, call).await
            }
            Tool::Browser => browser::use_browser(session, parse_arguments(given)?, call).await,
            Tool::SandboxCreate => {
                sandboxes::create_sandbox(session, parse_arguments(given)?, call).await
            }
            Tool::SandboxList => sandboxes::list_sandboxes(session, parse_arguments(given)?).await,
            Tool::SandboxUse => sandboxes::use_sandbox(session, parse_arguments(given)?).await,
            Tool::SandboxDestroy => {
                sandboxes::destroy_sandbox(session, parse_arguments(given)?).await
            }
            Tool::WorkspaceDiff => {
                workspace::show_diff(session, parse_arguments(given)?, call).await
            }
            Tool::WorkspaceApply => {
                workspace::apply_changes(session, parse_arguments(given)?, call).await
            }
        }
    }

    /// What calls that name no sandbox are bound to, once the first of them was made: safe to store.
    pub async fn binding(&self) -> Option<Binding> {
        self.session.places.bound().await.map(|place| Binding::of(&place))
    }

    /// Ends every sandbox and program of this toolbox. Idempotent; later calls are refused.
    pub async fn close(&self) {
        self.session.places.close().await;
    }
}

/// Puts what the agent has to know beside the answer in front of it.
fn with_notices(
    done: Result<ToolAnswer, ToolError>,
    notices: &[String],
) -> Result<ToolAnswer, ToolError> {
    if notices.is_empty() {
        return done;
    }
    let notice = notices.join("\n");
    match done {
        Ok(mut answer) => {
            if let Value::Object(fields) = &mut answer.structured {
                fields.insert("notice".to_owned(), Value::String(notice.clone()));
            }
            answer.text = format!("notice: {notice}\n{}", answer.text);
            Ok(answer)
        }
        Err(error) => {
            Err(ToolError { message: format!("{} (notice: {notice})", error.message), ..error })
        }
    }
}
