//! The conformance kit: one suite of cases that every backend is judged by.
//!
//! A backend is described by a [`Subject`]; [`run`] takes the cases whose features it declares and
//! gives a [`Report`]. Cases use the probe's verbs and facts, never a shell and never text. The kit
//! never counts a case that did not run as passed: a skip has a reason, and a skip of something the
//! backend declared is a failure.
//!
//! The kit is itself tested: on the [`control`] backend, which has no walls, every case about walls has
//! to fail; and each of the [`saboteurs`], broken in one way, has to be caught by the right case.

mod archive;
mod case;
pub mod cases;
pub mod contract;
pub mod control;
mod coverage;
mod engine_process;
mod host;
pub mod hostile;
mod kit;
mod observer;
mod report;
mod runner;
pub mod saboteurs;
pub mod simulated;
mod subject;
mod witness;

pub use archive::write_image;
pub use case::{Case, Stop, Verdict};
pub use coverage::{Coverage, FeatureCoverage, NOT_JUDGED, coverage};
pub use engine_process::{EngineFailure, churn_engine, serve_engine};
pub use host::OnHost;
pub use kit::{Kit, Ran, Room};
pub use observer::{HostObserver, Observer};
pub use report::{CaseReport, Counts, Report, Status};
pub use runner::{KitOptions, run};
pub use subject::{
    ENGINE_FLOOD, ENGINE_STATE, ENGINE_WORKSPACE, MARK_VARIABLE, ProbeForm, Subject, probe_bytes,
    wasi_calls_bytes, wasm_probe_bytes,
};
