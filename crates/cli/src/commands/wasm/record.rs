//! The job record of a call (C-40): opened before the module is given to anybody, closed with how it ended.

use std::time::Instant;

use stockade_backends::wasm::call::{CallAnswer, Instance};
use stockade_core::{
    Admitted, Ending, Error, ErrorCode, ExitStatus, JobId, Outcome, Result, Span, StartFailure,
    StreamReport, Usage,
};
use stockade_engine::{Engine, EngineConfig, Event};

use crate::config::Settings;

/// A record that is open.
pub struct CallRecord {
    engine: Engine,
    job: JobId,
    admitted: Admitted,
    begun: Instant,
}

impl CallRecord {
    /// Records that this is about to be called.
    pub async fn open(
        settings: &Settings,
        admitted: Admitted,
        command: Vec<String>,
    ) -> Result<Self> {
        // It builds no walls, so that what others left is theirs to find.
        let config = EngineConfig { reap_on_open: false, ..settings.engine()? };
        let engine = Engine::open(config, Vec::new()).await?;
        let job = engine.fresh_job()?;
        let named = |error| Error::new(ErrorCode::Invalid, "wasm call", "its id").source(error);
        let spec = admitted.spec();
        let started = Event::Started {
            sandbox: job.as_str().parse().map_err(named)?,
            job: job.clone(),
            tenant: spec.tenant.clone(),
            backend: admitted.backend().clone(),
            boundary: admitted.boundary(),
            command,
            workspace: spec.workspace.clone(),
            limits: admitted.enforcement().to_vec(),
            without: spec.without.clone(),
            labels: spec.labels.clone(),
            trees: std::collections::BTreeSet::new(),
            observes: false,
            engine: Some(engine.id()?),
            image: None,
        };
        engine.record(started).await?;
        Ok(Self { engine, job, admitted, begun: Instant::now() })
    }

    /// Records what came of it.
    pub async fn close(
        self,
        instance: Option<&Instance>,
        answer: std::result::Result<Option<&CallAnswer>, &Error>,
    ) -> Result<()> {
        let ending = match answer {
            Ok(_) => Ending::Exited(0),
            Err(error) => classify_ending(error, instance.and_then(Instance::ended)),
        };
        let answer = answer.ok().flatten();
        let wall = Span::from(self.begun.elapsed());
        let outcome = Outcome {
            ending,
            stdout: StreamReport::default(),
            stderr: StreamReport::default(),
            usage: Usage {
                fuel: answer.and_then(|answer| answer.fuel),
                ..Usage::new(wall, answer.map(|answer| answer.cpu_time), None)
            },
            limits: self.admitted.enforcement().to_vec(),
            limits_reached: Vec::new(),
            network_denied: Vec::new(),
            network_unreachable: false,
            network_observed: None,
        };
        self.engine.record(Event::Stopped { job: self.job, outcome, log: None }).await
    }
}

/// How a call ended that gave no answer.
fn classify_ending(error: &Error, ended: Option<ExitStatus>) -> Ending {
    match ended {
        Some(ExitStatus::Exited(code)) => Ending::Exited(code),
        Some(ExitStatus::Signalled(signal)) => Ending::Signalled(signal),
        Some(ExitStatus::LimitExceeded(limit)) => Ending::LimitExceeded(limit),
        Some(ExitStatus::StartFailed(failure)) => Ending::StartFailed(failure),
        Some(ExitStatus::Lost(why)) => Ending::Lost(why),
        None if error.code() == ErrorCode::TooSlow => Ending::TimedOut,
        None => Ending::StartFailed(StartFailure::NotExecutable(error.to_string())),
    }
}
