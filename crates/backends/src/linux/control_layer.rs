//! Layers over the control of a program: each changes one thing, and the rest is passed on in one place.

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{ProcessControl, Result, Signal, Span, TerminalSize};

/// What a layer may change. The defaults pass on.
#[async_trait]
pub(crate) trait ControlLayer: Send + Sync {
    /// The control below.
    fn inner(&self) -> &dyn ProcessControl;

    /// As [`ProcessControl::kill`].
    async fn kill(&self) -> Result<()> {
        self.inner().kill().await
    }

    /// As [`ProcessControl::ended`].
    async fn ended(&self) {
        self.inner().ended().await;
    }

    /// As [`ProcessControl::cpu_used`].
    fn cpu_used(&self) -> Option<Span> {
        self.inner().cpu_used()
    }
}

/// A control with a layer over it.
pub(crate) struct LayeredControl<L>(pub L);

#[async_trait]
impl<L: ControlLayer> ProcessControl for LayeredControl<L> {
    async fn kill(&self) -> Result<()> {
        self.0.kill().await
    }

    async fn ended(&self) {
        self.0.ended().await;
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.0.inner().signal(signal).await
    }

    async fn write_stdin(&self, data: Data) -> Result<()> {
        self.0.inner().write_stdin(data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.0.inner().close_stdin().await
    }

    async fn discard_output(&self) {
        self.0.inner().discard_output().await;
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.0.inner().resize(size).await
    }

    fn cpu_used(&self) -> Option<Span> {
        self.0.cpu_used()
    }
}
