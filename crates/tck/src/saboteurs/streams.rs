//! Saboteurs of output and input.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{ExitStatus, ProcessControl, ProcessEvent, Result, Signal, StreamId};

use super::frame::{EventFilter, Sabotage};

/// Saboteurs that do nothing but change what becomes of each event.
macro_rules! filters {
    ($($(#[$doc:meta])* $type:ident $filter:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Default)]
        pub(super) struct $type;

        #[async_trait]
        impl Sabotage for $type {
            fn filter(&self) -> EventFilter {
                $filter
            }
        }
    )*};
}

pub(super) use filters;

/// Each piece of output, changed.
fn map_output(change: fn(StreamId, Data) -> ProcessEvent) -> EventFilter {
    Box::new(move |event| match event {
        ProcessEvent::Output(stream, data) => vec![change(stream, data)],
        ProcessEvent::Exit(exit) => vec![ProcessEvent::Exit(exit)],
    })
}

fn swap_stream(stream: StreamId) -> StreamId {
    match stream {
        StreamId::Stdout => StreamId::Stderr,
        StreamId::Stderr => StreamId::Stdout,
    }
}

filters! {
    /// Holds each piece back until the next one comes, and at the exit forgets it.
    LosesTheLast {
        let mut held = None;
        Box::new(move |event| match event {
            ProcessEvent::Output(..) => held.replace(event).into_iter().collect(),
            ProcessEvent::Exit(_) => vec![event],
        })
    };
    SwapsStreams map_output(|stream, data| ProcessEvent::Output(swap_stream(stream), data));
    TellsTwice {
        let mut told = false;
        Box::new(move |event| {
            let twice = !std::mem::replace(&mut told, true) && matches!(event, ProcessEvent::Output(..));
            if twice { vec![event.clone(), event] } else { vec![event] }
        })
    };
    /// Lets every second piece overtake the one before it.
    OutOfOrder {
        let mut held = None;
        Box::new(move |event| match (held.take(), event) {
            (None, event @ ProcessEvent::Output(..)) => {
                held = Some(event);
                Vec::new()
            }
            (Some(before), event @ ProcessEvent::Output(..)) => vec![event, before],
            (before, event @ ProcessEvent::Exit(_)) => before.into_iter().chain([event]).collect(),
        })
    };
    TakesForText map_output(|stream, data| {
        ProcessEvent::Output(stream, String::from_utf8_lossy(&data).into_owned().into())
    });
    TranslatesLineEnds map_output(|stream, data| {
        let translated: Vec<u8> = data
            .iter()
            .flat_map(|byte| if *byte == b'\n' { b"\r\n".to_vec() } else { vec![*byte] })
            .collect();
        ProcessEvent::Output(stream, translated.into())
    });
    EndsWriters {
        let mut written = 0;
        Box::new(move |event| match event {
            ProcessEvent::Output(_, ref data) => {
                written += data.len();
                vec![event]
            }
            ProcessEvent::Exit(_) if written > 32 << 20 => {
                vec![ProcessEvent::Exit(ExitStatus::Signalled(Signal(13)).into())]
            }
            ProcessEvent::Exit(_) => vec![event],
        })
    };
}

/// Keeps a copy of all output for as long as it lives itself.
#[derive(Default)]
pub(super) struct KeepsOutput(Arc<Mutex<Vec<Data>>>);

#[async_trait]
impl Sabotage for KeepsOutput {
    fn filter(&self) -> EventFilter {
        let kept = Arc::clone(&self.0);
        Box::new(move |event| {
            if let ProcessEvent::Output(_, data) = &event {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(data.clone());
            }
            vec![event]
        })
    }
}

#[derive(Default)]
pub(super) struct CutsInput;

#[async_trait]
impl Sabotage for CutsInput {
    async fn write_stdin(&self, control: &dyn ProcessControl, data: Data) -> Result<()> {
        control.write_stdin(data.slice(..data.len().min(64 << 10))).await
    }
}
