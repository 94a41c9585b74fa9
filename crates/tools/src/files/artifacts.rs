//! `artifacts`: files out of the sandbox, typed, each and all of them bounded in size.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use stockade_core::{EntryKind, Files, FilesExt, SandboxPath};

use super::{approve_files, escape_path, media, unless_cancelled};
use crate::arguments::Artifacts;
use crate::toolbox::ToolSession;
use crate::{AnswerImage, Call, ToolAnswer, ToolError};

/// Bytes of one file, of all files together, and how many files.
const DEFAULT_FILE_BYTES: u64 = 1 << 20;
const MAX_FILE_BYTES: u64 = 8 << 20;
const MAX_TOTAL_BYTES: u64 = 16 << 20;
const MAX_FILES: usize = 100;

/// One file. Exactly one of content, picture and problem is there.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Artifact {
    path: String,
    size: u64,
    mime: Option<&'static str>,
    encoding: Option<&'static str>,
    content: Option<String>,
    /// The number of the picture among those of the answer.
    picture: Option<usize>,
    problem: Option<String>,
}

pub(crate) async fn fetch_artifacts(
    session: &ToolSession,
    args: Artifacts,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    if args.paths.len() > MAX_FILES {
        return Err(ToolError::field("paths", format!("names more than {MAX_FILES} files")));
    }
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let mut wanted = Vec::new();
    for path in &args.paths {
        let outside = place.leads_outside(path).await?;
        wanted.push(WantedArtifact { path, refused: outside.map(|error| error.message) });
    }
    // Refused paths are not asked about, and not fetched, even if they lead elsewhere by then.
    let asked = wanted.iter().filter(|one| one.refused.is_none());
    let paths: Vec<_> = asked.map(|one| one.path).collect();
    let files = match paths.is_empty() && !args.paths.is_empty() {
        true => place.files()?,
        false => approve_files(session, &place, "artifacts", &paths, call).await?,
    };
    let each = args.max_bytes.unwrap_or(DEFAULT_FILE_BYTES).min(MAX_FILE_BYTES);
    unless_cancelled(call, collect_artifacts(files, &wanted, each)).await
}

/// A file that was asked for, and why it is refused, if it is.
struct WantedArtifact<'a> {
    path: &'a SandboxPath,
    refused: Option<String>,
}

async fn collect_artifacts(
    files: &dyn Files,
    wanted: &[WantedArtifact<'_>],
    each: u64,
) -> Result<ToolAnswer, ToolError> {
    let (mut room, mut images, mut found) = (MAX_TOTAL_BYTES, Vec::new(), Vec::new());
    for WantedArtifact { path, refused } in wanted {
        let fetched = match refused {
            Some(problem) => Err((0, problem.clone())),
            None => fetch_file(files, path, each.min(room)).await,
        };
        let artifact = match fetched {
            Ok(data) => {
                room -= data.len() as u64;
                pack_artifact(path, data, &mut images)
            }
            Err((size, problem)) => missing_artifact(path, size, problem),
        };
        found.push(artifact);
    }
    let text = found.iter().map(describe_artifact).collect();
    let data = serde_json::json!({ "artifacts": found });
    Ok(ToolAnswer { images, ..ToolAnswer::told(&data, text)? })
}

async fn fetch_file(
    files: &dyn Files,
    path: &SandboxPath,
    most: u64,
) -> Result<Vec<u8>, (u64, String)> {
    let entry = files.stat(path).await.map_err(|error| (0, error.message().to_owned()))?;
    if entry.kind == EntryKind::File && entry.size > most {
        return Err((entry.size, format!("`{path}` has more than {most} bytes")));
    }
    let read = files.read_all(path, most).await;
    read.map_err(|error| (entry.size, error.message().to_owned()))
}

fn pack_artifact(path: &SandboxPath, data: Vec<u8>, images: &mut Vec<AnswerImage>) -> Artifact {
    let kind = media::detect_kind(path.as_str(), &data);
    let mut artifact = Artifact {
        mime: Some(kind.mime),
        ..missing_artifact(path, data.len() as u64, String::new())
    };
    artifact.problem = None;
    if kind.picture {
        artifact.picture = Some(images.len());
        images.push(AnswerImage { mime: kind.mime.into(), bytes: data });
        return artifact;
    }
    let (encoding, content) = match String::from_utf8(data) {
        Ok(text) if !text.contains('\0') => ("text", text),
        Ok(text) => ("base64", STANDARD.encode(text)),
        Err(error) => ("base64", STANDARD.encode(error.as_bytes())),
    };
    artifact.encoding = Some(encoding);
    artifact.content = Some(content);
    artifact
}

fn missing_artifact(path: &SandboxPath, size: u64, problem: String) -> Artifact {
    Artifact {
        path: path.to_string(),
        size,
        mime: None,
        encoding: None,
        content: None,
        picture: None,
        problem: Some(problem),
    }
}

fn describe_artifact(artifact: &Artifact) -> String {
    let name = escape_path(&artifact.path);
    match (&artifact.problem, artifact.mime) {
        (Some(problem), _) => format!("{name}: {problem}\n"),
        (None, mime) => format!("{name}: {}, {} bytes\n", mime.unwrap_or("?"), artifact.size),
    }
}
