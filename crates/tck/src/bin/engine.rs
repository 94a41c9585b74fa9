//! The engine process that the kit's own tests kill, for each backend they judge.

use std::sync::Arc;

use stockade_backends::native::Native;
use stockade_tck::control::Control;
use stockade_tck::simulated::Simulated;
use stockade_tck::{EngineFailure, OnHost, Subject, churn_engine, serve_engine};

fn subject() -> Result<Box<dyn Subject>, EngineFailure> {
    match std::env::args().nth(1).as_deref() {
        Some("mock") => Ok(Box::new(Simulated::default())),
        Some("control") => Ok(Box::new(Control::default())),
        Some("native") => Ok(Box::new(OnHost::new(Arc::new(Native::new())))),
        _ => Err("name a subject: mock, control or native".into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), EngineFailure> {
    let subject = subject()?;
    match std::env::args().nth(2).as_deref() {
        None => serve_engine(subject.as_ref()).await,
        Some("churn") => churn_engine(subject.as_ref()).await,
        Some(other) => Err(format!("`{other}` is not a way to run: churn, or nothing").into()),
    }
}
