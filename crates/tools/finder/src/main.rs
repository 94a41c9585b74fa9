//! `stockade-finder REQUEST`: finds files and text, with the crates that ripgrep is made of.
//!
//! It reads and prints, nothing else. Before it looks at anything it confines itself to reading
//! beneath the workspace, where the kernel offers that; a link that is swapped in meanwhile then
//! leads nowhere.

mod confine;
mod kept;
mod lines;
mod names;
mod reading;
mod root;
mod walk;

use std::io::Write;
use std::process::ExitCode;

use stockade_finder::{Answer, FinderFailure, FinderRequest, What};

/// Why nothing was looked for.
pub struct Refused(pub FinderFailure, pub String);

fn main() -> ExitCode {
    let Some(request) = std::env::args().nth(1).and_then(|text| serde_json::from_str(&text).ok())
    else {
        return ExitCode::from(64);
    };
    let answers = run_search(&request)
        .unwrap_or_else(|Refused(kind, why)| vec![Answer::Failed { kind, why }]);
    match print_answers(&answers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(74),
    }
}

fn run_search(request: &FinderRequest) -> Result<Vec<Answer>, Refused> {
    let root = root::SearchRoot::open(&request.workspace, &request.path)?;
    confine::to(&root);
    match &request.what {
        What::Names { glob } => names::find(request, &root, glob),
        What::Lines { .. } => lines::find(request, &root),
    }
}

fn print_answers(answers: &[Answer]) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    for answer in answers {
        serde_json::to_writer(&mut out, answer)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}
