//! Unpacks layers in native walls: no network, nothing of the host but its programs to read, nothing to write but the
//! destination. A layer is a stranger's archive, and the program that reads it is taken for the stranger's from then on.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_backends::factory::BuildContext;
use stockade_core::{
    BackendChoice, BackendName, Bytes, Command, Ending, Error, ErrorCode, FilesExt, HostPath,
    LimitKind, Limits, Network, Result, SandboxId, SandboxPath, SandboxSpec, Span, Stdin,
    Workspace, clean_foreign,
};
use stockade_engine::{Engine, EngineConfig, Execution, Output, Quota};
use stockade_images::{
    ImageError, LayerFile, Unpack, UnpackLimits, UnpackReply, UnpackRequest, Unpacked,
    unpack_program,
};
use tokio::sync::OnceCell;

use crate::registry;

const UNPACK_OPERATION: &str = "unpack an image";
const NATIVE: BackendName = BackendName::literal("native");
/// The tenant that records of unpacking name, so that they count for no tenant's quota.
const UNPACK_TENANT: &str = "images";
/// Where the program lies in its sandbox.
const PROGRAM_PATH: &str = "/tmp/stockade-unpack";

/// Room for the window of a decompressor, and for pages on their way to the disk.
const UNPACK_MEMORY: Bytes = Bytes::mib(512);
const UNPACK_TIMEOUT: Span = Span::secs(3600);
/// The reply is one line, which names one entry at most.
const MAX_REPLY: Bytes = Bytes::mib(1);
/// What a file takes beyond its bytes: the rest of its last block, or its inode.
const DISK_BLOCK_BYTES: u64 = 4096;
/// How much of a layer is passed on at once.
const LAYER_CHUNK_BYTES: usize = 64 << 10;

/// Unpacks layers in sandboxes of the native backend, by an engine of its own.
pub(super) struct ConfinedUnpack {
    config: EngineConfig,
    engine: OnceCell<Engine>,
}

impl fmt::Debug for ConfinedUnpack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfinedUnpack")
            .field("unpack_dir", &self.config.unpack_dir)
            .finish_non_exhaustive()
    }
}

impl ConfinedUnpack {
    /// Unpacks below this directory, which is Stockade's own.
    pub(super) fn new(config: EngineConfig, unpack_dir: PathBuf) -> Self {
        let config = EngineConfig {
            images: None,
            unpack_dir: Some(unpack_dir),
            guest_caches: Vec::new(),
            quotas: BTreeMap::new(),
            default_quota: Quota::default(),
            // What a killed pull left: the commands about images open no other engine.
            reap_on_open: true,
            ..config
        };
        Self { config, engine: OnceCell::new() }
    }

    /// Ends what is being unpacked.
    pub(super) async fn close(&self) -> Result<()> {
        match self.engine.get() {
            Some(engine) => engine.close().await,
            None => Ok(()),
        }
    }

    async fn engine(&self) -> Result<&Engine> {
        let open = || async {
            let context = BuildContext {
                named: true,
                state_dir: Some(self.config.state_dir.clone()),
                ..BuildContext::default()
            };
            let native = registry::build_backend(&NATIVE, toml::Table::new(), &context)?;
            Engine::open(self.config.clone(), vec![native]).await
        };
        self.engine.get_or_try_init(open).await
    }

    async fn run(&self, layer: LayerFile, destination: &Path) -> Result<Output> {
        let spec = build_spec(destination, layer.limits)?;
        let engine = self.engine().await?;
        let sandbox = UnpackSandbox { engine, id: Some(engine.create(spec).await?) };
        let output = sandbox.run_program(layer).await;
        sandbox.destroy().await.and(output)
    }
}

#[async_trait]
impl Unpack for ConfinedUnpack {
    async fn unpack(&self, layer: LayerFile, destination: &Path) -> Result<Unpacked, ImageError> {
        read_reply(&self.run(layer, destination).await.map_err(ImageError::Sandbox)?)
    }
}

/// A sandbox for one layer, destroyed even if its caller has given up.
struct UnpackSandbox<'e> {
    engine: &'e Engine,
    id: Option<SandboxId>,
}

impl UnpackSandbox<'_> {
    async fn destroy(mut self) -> Result<()> {
        match self.id.take() {
            Some(id) => self.engine.destroy(&id).await,
            None => Ok(()),
        }
    }

    /// Puts the program in place, and has it read the layer.
    async fn run_program(&self, layer: LayerFile) -> Result<Output> {
        let Some(id) = &self.id else { return Err(failed("its sandbox is gone")) };
        let path: SandboxPath = PROGRAM_PATH.parse().map_err(|_| failed("its program's path"))?;
        let sandbox = self.engine.sandbox(id)?;
        let files = sandbox.files()?;
        files.write_all(&path, Data::from_static(unpack_program())).await?;
        files.set_mode(&path, 0o500).await?;
        let request = UnpackRequest { compression: layer.compression, limits: layer.limits };
        let request = serde_json::to_string(&request)
            .map_err(|error| failed("the request cannot be written").source(error))?;
        let mut command = Command::program([PROGRAM_PATH, &request]);
        command.stdin = Stdin::Stream;
        let (execution, events) = self.engine.exec_followed(id, command).await?;
        let output = events.output_within(MAX_REPLY.0);
        tokio::pin!(output);
        tokio::select! {
            // A program that has refused reads no further.
            output = &mut output => Ok(output),
            fed = feed_layer(&execution, layer.file) => {
                fed?;
                Ok(output.await)
            }
        }
    }
}

impl Drop for UnpackSandbox<'_> {
    fn drop(&mut self) {
        if let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) {
            let engine = self.engine.clone();
            // What cannot be destroyed now is reaped by the next engine.
            runtime.spawn(async move { drop(engine.destroy(&id).await) });
        }
    }
}

fn build_spec(destination: &Path, limits: UnpackLimits) -> Result<SandboxSpec> {
    let workspace = HostPath::try_from(destination.to_owned())
        .map_err(|error| failed("its destination cannot be used").source(error))?;
    Ok(SandboxSpec {
        backend: BackendChoice::Named(NATIVE),
        workspace: Workspace::Local(workspace),
        network: Network::None,
        limits: Limits {
            memory: Some(UNPACK_MEMORY),
            disk: Some(disk_limit(limits)),
            wall_time: Some(UNPACK_TIMEOUT),
            output: Some(MAX_REPLY),
            ..Limits::default()
        },
        tenant: UNPACK_TENANT.parse().map_err(|_| failed("its tenant"))?,
        ..SandboxSpec::default()
    })
}

/// The disk that a layer within its limits can take: no more, and no less.
fn disk_limit(limits: UnpackLimits) -> Bytes {
    Bytes(limits.bytes.saturating_add(limits.entries.saturating_mul(DISK_BLOCK_BYTES)))
}

/// Passes a layer on to the program's input, as fast as it reads.
async fn feed_layer(execution: &Execution, mut layer: File) -> Result<()> {
    loop {
        let read = move || {
            let mut chunk = Vec::with_capacity(LAYER_CHUNK_BYTES);
            let read = (&layer).take(LAYER_CHUNK_BYTES as u64).read_to_end(&mut chunk);
            read.map(|_| (chunk, layer))
        };
        let read = tokio::task::spawn_blocking(read).await;
        let read = read.map_err(|error| failed("reading the layer was cut off").source(error))?;
        let (chunk, rest) =
            read.map_err(|error| failed("the layer cannot be read").source(error))?;
        if chunk.is_empty() {
            return execution.close_stdin().await;
        }
        if execution.write_stdin(Data::from(chunk)).await.is_err() {
            // The program is gone, and its end says why.
            return Ok(());
        }
        layer = rest;
    }
}

/// What the program says; a guest's words, since its input may have made it say them.
fn read_reply(output: &Output) -> Result<Unpacked, ImageError> {
    let line = output.stdout.strip_suffix(b"\n").unwrap_or(&output.stdout);
    match (serde_json::from_slice(line), output.success()) {
        (Ok(UnpackReply::Unpacked(unpacked)), true) => Ok(unpacked),
        (Ok(UnpackReply::Refused(reason)), _) => Err(ImageError::Refused(clean_foreign(&reason))),
        (Ok(UnpackReply::Failed(reason)), _) => Err(ImageError::Unpack(clean_foreign(&reason))),
        (Ok(UnpackReply::Unpacked(_)) | Err(_), _) => Err(describe_ending(&output.outcome.ending)),
    }
}

/// Why there is no reply.
fn describe_ending(ending: &Ending) -> ImageError {
    let why = match ending {
        Ending::LimitExceeded(limit @ (LimitKind::Disk | LimitKind::Memory)) => {
            return ImageError::Refused(format!("a layer needs more {limit} than it may have"));
        }
        Ending::LimitExceeded(limit) => format!("it reached the limit of {limit}"),
        Ending::TimedOut => format!("it took longer than {UNPACK_TIMEOUT}"),
        Ending::StartFailed(failure) => failure.detail().to_owned(),
        Ending::Refused(why) | Ending::Lost(why) => why.clone(),
        Ending::Killed => "its sandbox was ended".to_owned(),
        Ending::Exited(_) | Ending::Signalled(_) | Ending::Cancelled => {
            format!("its program ended early ({ending:?})")
        }
    };
    ImageError::Unpack(why)
}

fn failed(message: &'static str) -> Error {
    Error::new(ErrorCode::System, UNPACK_OPERATION, message)
}

#[cfg(test)]
mod tests {
    use stockade_core::{Outcome, StreamReport, Usage};

    use super::*;

    fn output(ending: Ending, stdout: &str) -> Output {
        let outcome = Outcome {
            ending,
            stdout: StreamReport::default(),
            stderr: StreamReport::default(),
            usage: Usage::default(),
            limits: Vec::new(),
            limits_reached: Vec::new(),
            network_denied: Vec::new(),
            network_unreachable: false,
            network_observed: None,
        };
        Output { outcome, stdout: stdout.into(), stderr: Vec::new(), missed: 0 }
    }

    #[test]
    fn a_reply_is_believed_only_from_a_program_that_ended_well() {
        let line = "{\"unpacked\":{\"sha256\":\"0f\",\"entries\":1,\"bytes\":512,\"skipped_devices\":0}}\n";
        assert_eq!(read_reply(&output(Ending::Exited(0), line)).unwrap().bytes, 512);
        for ending in [Ending::Exited(1), Ending::TimedOut, Ending::Killed] {
            let error = read_reply(&output(ending, line)).unwrap_err();
            assert!(matches!(error, ImageError::Unpack(_)), "{error}");
        }
    }

    #[test]
    fn a_refusal_is_the_layers_and_anything_else_the_hosts() {
        let refused = read_reply(&output(Ending::Exited(1), "{\"refused\":\"a\\u001b[2J\"}\n"));
        let error = refused.unwrap_err();
        assert!(matches!(&error, ImageError::Refused(why) if !why.contains('\x1b')), "{error}");
        let beyond = read_reply(&output(Ending::LimitExceeded(LimitKind::Disk), ""));
        assert!(matches!(beyond, Err(ImageError::Refused(_))));
        for silent in ["", "{}\n", "hello\n"] {
            let error = read_reply(&output(Ending::Exited(0), silent)).unwrap_err();
            assert!(matches!(error, ImageError::Unpack(_)), "{error}");
        }
    }

    #[test]
    fn an_error_of_the_walls_keeps_its_code_its_causes_and_its_remedy() {
        let cause = std::io::Error::other("they are switched off");
        let walls = Error::new(ErrorCode::Unavailable, UNPACK_OPERATION, "no user namespaces")
            .remedy("switch them on")
            .source(cause);
        let told = Error::from(ImageError::Sandbox(walls));
        assert_eq!((told.code(), told.hint()), (ErrorCode::Unavailable, Some("switch them on")));
        assert!(told.message().ends_with("no user namespaces: they are switched off"), "{told}");
    }

    #[test]
    fn the_disk_limit_has_room_for_every_layer_within_its_limits() {
        let limits = UnpackLimits { entries: 10, bytes: 1000 };
        assert_eq!(disk_limit(limits), Bytes(1000 + 10 * 4096));
        assert_eq!(disk_limit(UnpackLimits { entries: u64::MAX, bytes: 1 }), Bytes(u64::MAX));
        let spec = build_spec(Path::new("/state/images/x"), limits).unwrap();
        assert_eq!((spec.network, spec.root), (Network::None, stockade_core::RootMode::ReadOnly));
        assert!(build_spec(Path::new("relative"), limits).is_err());
    }
}
