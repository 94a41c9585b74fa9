//! The toolbox's words in the protocol's. A tool that failed is a result that says so: protocol
//! errors are for requests that no tool can have been meant by, and agents do not get to read them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use stockade_tools::{ToolAnswer, ToolError, ToolInfo};

/// A tool as it is listed.
pub fn tool(info: ToolInfo) -> Tool {
    let annotations = ToolAnnotations::with_title(info.title)
        .read_only(info.read_only)
        .destructive(info.destructive)
        // What a tool can reach is the sandbox, and that is the same for all.
        .open_world(false);
    Tool::new(info.name, info.description, Arc::new(into_json_object(info.input_schema)))
        .with_title(info.title)
        .with_annotations(annotations)
}

fn into_json_object(schema: Value) -> JsonObject {
    match schema {
        Value::Object(schema) => schema,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            JsonObject::new()
        }
    }
}

/// What a call came to.
pub fn result(done: Result<ToolAnswer, ToolError>) -> CallToolResult {
    match done {
        Ok(answer) => build_success(answer),
        Err(error) => build_failure(&error),
    }
}

fn build_success(answer: ToolAnswer) -> CallToolResult {
    let pictures = answer
        .images
        .into_iter()
        .map(|picture| ContentBlock::image(STANDARD.encode(picture.bytes), picture.mime));
    let text = [ContentBlock::text(answer.text)];
    let mut result = CallToolResult::success(text.into_iter().chain(pictures).collect());
    // Revisions before the newest take nothing but an object here.
    result.structured_content = answer.structured.is_object().then_some(answer.structured);
    result
}

fn build_failure(error: &ToolError) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(error.to_string())]);
    let mut told = json!({ "code": error.code, "message": error.message });
    if let Some(remedy) = &error.remedy {
        told["remedy"] = json!(remedy);
    }
    result.structured_content = Some(told);
    result
}
