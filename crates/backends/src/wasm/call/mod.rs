//! Calling exported functions: an instance that stays, for plug-ins and pure functions. It runs in this
//! process, on a thread of its own, and is held to its limits at every call.

mod callee;
mod exports;
mod image;

use std::sync::{Arc, OnceLock};

use stockade_core::{Error, ErrorCode, ExitStatus, Limits, Result, Span};
use tokio::sync::{mpsc, oneshot, watch};
pub use wasmtime::component::Val;

use callee::Callee;
pub use image::CapturedInstance;

use super::engine::EngineMode;
use super::{NAME, Wasm, WasmShared};

/// Request queue length of an instance.
const REQUEST_QUEUE_LENGTH: usize = 16;

/// What a call did to its end: its values, and what it took.
#[derive(Debug, Clone, PartialEq)]
pub struct CallAnswer {
    /// What the function gave back.
    pub values: Vec<Val>,
    /// Processor time.
    pub cpu_time: Span,
    /// Instructions, where they were counted.
    pub fuel: Option<u64>,
}

/// Arguments, as values or as text that is read by the types of the function's parameters.
enum Arguments {
    Values(Vec<Val>),
    Text(Vec<String>),
}

enum CallRequest {
    Call(String, Arguments, oneshot::Sender<Result<CallAnswer>>),
    Functions(oneshot::Sender<Vec<String>>),
    Capture(oneshot::Sender<Result<CapturedInstance>>),
    BringBack(CapturedInstance, oneshot::Sender<Result<()>>),
}

/// A module or component, instantiated once. Dropping it ends it.
///
/// - Each call is held to the limits: wall time, processor time, fuel, memory. One that goes beyond them, or
///   traps, ends the instance: the state it left is undefined.
/// - It has no files and no environment; WASI calls find nothing.
pub struct Instance {
    requests: mpsc::Sender<CallRequest>,
    killed: watch::Sender<bool>,
    ended: Arc<OnceLock<ExitStatus>>,
}

impl Wasm {
    /// Instantiates a module or component given by its bytes, in binary or text form.
    pub async fn instantiate(
        &self,
        bytes: Vec<u8>,
        limits: &Limits,
        deterministic: bool,
    ) -> Result<Instance> {
        let (requests, queue) = mpsc::channel(REQUEST_QUEUE_LENGTH);
        let (killed, killing) = watch::channel(false);
        let (ready, made) = oneshot::channel();
        let (shared, limits) = (Arc::clone(&self.shared), *limits);
        let wall_time = limits.wall_time;
        let task = move |runtime: &tokio::runtime::Runtime| {
            let serving = serve_requests(shared, bytes, limits, deterministic, queue, ready);
            runtime.block_on(async move {
                let mut killing = killing;
                tokio::select! {
                    biased;
                    _ = killing.wait_for(|killed| *killed) => {}
                    () = serving => {}
                }
            });
        };
        self.shared.threads.run_task(task).map_err(|error| {
            Error::new(ErrorCode::System, "instantiate", "no thread for it").source(error)
        })?;
        // Compiling cannot be interrupted, so that this is the one thing that is timed from outside.
        let mut instance = Instance { requests, killed, ended: Arc::default() };
        let made = with_timeout(wall_time, "instantiate", made).await?;
        instance.ended = made.map_err(|_| instance_gone("instantiate"))??;
        Ok(instance)
    }
}

async fn serve_requests(
    shared: Arc<WasmShared>,
    bytes: Vec<u8>,
    limits: Limits,
    deterministic: bool,
    mut queue: mpsc::Receiver<CallRequest>,
    ready: oneshot::Sender<Result<Arc<OnceLock<ExitStatus>>>>,
) {
    let mode = EngineMode::of(deterministic, limits.fuel);
    let mut callee = match Callee::make(&shared, bytes, limits, mode).await {
        Ok(callee) => callee,
        // A send error means that the caller is gone.
        Err(error) => return drop(ready.send(Err(error))),
    };
    let _ = ready.send(Ok(callee.ended()));
    while let Some(request) = queue.recv().await {
        let ended = match request {
            CallRequest::Call(name, arguments, reply) => {
                // The timeout starts here, with the call: the wait for others is not its time, and the
                // timeout holds even if the caller has given up.
                let call = callee.call_function(&name, arguments);
                let answer = with_timeout(limits.wall_time, "call", call).await.flatten();
                let ended = answer.as_ref().is_err_and(|error| error.code() != ErrorCode::Invalid);
                let _ = reply.send(answer);
                ended
            }
            CallRequest::Functions(reply) => {
                let _ = reply.send(callee.list_functions());
                false
            }
            CallRequest::Capture(reply) => {
                let _ = reply.send(callee.capture_image());
                false
            }
            CallRequest::BringBack(image, reply) => {
                let _ = reply.send(callee.bring_back(&image));
                false
            }
        };
        if ended {
            return;
        }
    }
}

impl Instance {
    /// Calls an exported function with typed values. A component's function in an interface is named
    /// `interface#function`.
    pub async fn call(&self, function: &str, arguments: &[Val]) -> Result<CallAnswer> {
        self.send_call(function, Arguments::Values(arguments.to_vec())).await
    }

    /// Calls an exported function with arguments in text form, read by its own types.
    pub async fn call_text(&self, function: &str, arguments: &[String]) -> Result<CallAnswer> {
        self.send_call(function, Arguments::Text(arguments.to_vec())).await
    }

    /// The functions there are, each with its type.
    pub async fn functions(&self) -> Result<Vec<String>> {
        let (reply, answer) = oneshot::channel();
        self.send_request(CallRequest::Functions(reply)).await?;
        answer.await.map_err(|_| instance_gone("list"))
    }

    /// Captures memories, globals and tables as they are between two calls. Requires a core module: a
    /// component is refused by name.
    pub async fn capture(&self) -> Result<CapturedInstance> {
        let (reply, answer) = oneshot::channel();
        self.send_request(CallRequest::Capture(reply)).await?;
        answer.await.map_err(|_| instance_gone("capture"))?
    }

    /// Brings a captured state of this very instance back.
    pub async fn bring_back(&self, image: &CapturedInstance) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send_request(CallRequest::BringBack(image.clone(), reply)).await?;
        answer.await.map_err(|_| instance_gone("restore"))?
    }

    /// How it ended, if a call did that to it; one that took too long was ended from outside.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.ended.get().cloned()
    }

    async fn send_call(&self, function: &str, arguments: Arguments) -> Result<CallAnswer> {
        let (reply, answer) = oneshot::channel();
        self.send_request(CallRequest::Call(function.to_owned(), arguments, reply)).await?;
        answer.await.map_err(|_| instance_gone("call"))?
    }

    async fn send_request(&self, request: CallRequest) -> Result<()> {
        self.requests.send(request).await.map_err(|_| instance_gone("call"))
    }
}

/// Something that may take only so long.
async fn with_timeout<T>(
    wall_time: Option<Span>,
    what: &'static str,
    done: impl Future<Output = T>,
) -> Result<T> {
    let Some(span) = wall_time else { return Ok(done.await) };
    tokio::time::timeout(span.into(), done).await.map_err(|_| {
        let message = "it went beyond its wall-time limit";
        Error::new(ErrorCode::TooSlow, what, message).backend(NAME)
    })
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.killed.send_replace(true);
    }
}

fn instance_gone(what: &'static str) -> Error {
    Error::new(ErrorCode::Gone, what, "the instance has ended")
        .backend(NAME)
        .remedy("instantiate it anew")
}
