//! What a front end passes along with a call: a listener for progress, a person to ask, and a way to stop.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use stockade_core::SandboxId;
use tokio::sync::watch;

use crate::approval::Facts;

/// What a front end gives along with a call.
#[derive(Clone)]
pub struct Call {
    /// Hears how a long call goes.
    pub progress: Arc<dyn Progress>,
    /// Asks a person.
    pub ask: Arc<dyn Ask>,
    /// Says when the caller has given up: everything the call runs is then killed.
    pub cancelled: Cancelled,
}

/// Hears how a long call goes.
#[async_trait]
pub trait Progress: Send + Sync {
    /// One short line. Not waited for longer than the front end wants: it may drop lines.
    async fn say(&self, message: String);
}

/// Reaches a person.
#[async_trait]
pub trait Ask: Send + Sync {
    /// Puts the question. The toolbox stops waiting after its time limit, and takes that for a no.
    async fn ask(&self, question: Question) -> Decision;

    /// Whether it can ask while a command runs, which waits meanwhile.
    fn asks_while_running(&self) -> bool {
        true
    }
}

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The question in one sentence. Holds text of the agent's, with control characters escaped.
    pub text: String,
    /// The sandbox it would happen in; absent for local execution.
    pub sandbox: Option<SandboxId>,
    /// What is known about it.
    pub facts: Facts,
    /// Whether a yes may also hold for as long as the sandbox lives, and a no does.
    pub lasting: bool,
}

/// What a person answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Go ahead, this once.
    Yes,
    /// Go ahead, and do not ask again for this sandbox. Only where the question offers it.
    YesForSandbox,
    /// Do not.
    No {
        /// Why, and how to get another answer, for the agent to read.
        because: String,
    },
    /// Not now: the question was closed, cancelled or never seen. No person has decided, and the same may be asked
    /// again.
    Unanswered {
        /// Why, and how to get an answer, for the agent to read.
        because: String,
    },
}

/// Whether the caller has given up.
#[derive(Debug, Clone)]
pub struct Cancelled(watch::Receiver<bool>);

/// The other end of a [`Cancelled`]. Dropping it cancels nothing.
#[derive(Debug)]
pub struct Canceller(watch::Sender<bool>);

impl Cancelled {
    /// A way to stop, and the handle that pulls it.
    pub fn pair() -> (Canceller, Self) {
        let (sender, receiver) = watch::channel(false);
        (Canceller(sender), Self(receiver))
    }

    /// For callers who never give up.
    pub fn never() -> Self {
        Self::pair().1
    }

    /// Waits until the caller gives up; for ever if it does not.
    pub async fn wait(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|cancelled| *cancelled).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Canceller {
    /// Gives up. Idempotent.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

/// A front end without a person: shows nothing, and no question gets an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

#[async_trait]
impl Progress for Nobody {
    async fn say(&self, _message: String) {}
}

#[async_trait]
impl Ask for Nobody {
    async fn ask(&self, _question: Question) -> Decision {
        Decision::Unanswered { because: "there is no way to ask a person".into() }
    }
}

impl Call {
    /// A call without a front end: no progress, every question a no, never cancelled.
    pub fn alone() -> Self {
        let nobody = Arc::new(Nobody);
        Self { progress: Arc::clone(&nobody) as _, ask: nobody, cancelled: Cancelled::never() }
    }
}
