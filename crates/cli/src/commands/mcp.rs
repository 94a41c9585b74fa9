//! `stockade mcp`: the tools for a coding agent, on standard streams or on HTTP. On standard output
//! there is nothing but the protocol. When this returns, no sandbox of it is left.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use stockade::pools::{PoolSetting, open_pools};
use stockade_core::{
    EnvName, Error, ErrorCode, HostPath, Result, SandboxId, SandboxSpec, Span, Workspace,
};
use stockade_engine::Engine;
use stockade_server::mcp::http::{self, HttpOptions, Token};
use stockade_server::mcp::{Desk, DeskOptions, serve_stdio, stdio_pipes};
use stockade_tools::{
    AllowedDirectories, HostAsks, LocalOptions, SandboxQuota, SpecRenewal, Toolbox, ToolboxOptions,
};
use stockade_workspaces::SandboxWorkspaces;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::{SpecArgs, resolve_existing_path};
use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::message::{SupervisorReply, SupervisorRequest, ToolsRequest};
use crate::daemon::port_stream::carry_stream;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::image;
use crate::registry;
use crate::report::reasons::warn_of_network;
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::printer::Printer;
use crate::terminal::prompt::AtTerminal;
use crate::toolchains::{self, Packages};
use crate::workspace;

const MCP_OPERATION: &str = "mcp";
/// Timeout for taking everything down; a second signal ends it at once.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);
/// What a program started locally needs to find its way; nothing else is inherited.
const LOCAL_ENV: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR"];

/// What to serve and to whom.
#[derive(Debug, Args)]
pub struct McpArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Serve a persistent sandbox of `stockade create`, which goes on afterwards, instead of a new one.
    #[arg(
        long,
        value_name = "ID",
        help_heading = "Server",
        conflicts_with_all = [
            "SpecArgs", "PlaceArgs", "SurroundingArgs", "LimitArgs", "HttpArgs", "local"
        ]
    )]
    sandbox: Option<SandboxId>,
    /// Use no sandbox: calls run on this machine without walls, and each asks for permission
    /// unless a rule of the configuration allows it.
    #[arg(long, help_heading = "Server")]
    local: bool,
    /// Maximum number of sandboxes that agents may have made at once, in all sessions together.
    #[arg(long, value_name = "N", default_value_t = SandboxQuota::DEFAULT_SANDBOXES, help_heading = "Server")]
    max_sandboxes: usize,
    /// Let agents make sandboxes over directories beneath this one; may be given several times. Without it,
    /// they have the workspace alone.
    #[arg(long = "allow-workspace", value_name = "DIR", help_heading = "Server")]
    allowed: Vec<PathBuf>,
    #[command(flatten)]
    http: HttpArgs,
}

/// How clients reach the server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
struct HttpArgs {
    /// Serve HTTP at this address instead, and print the URL and token. On a terminal,
    /// questions are asked there where a client cannot ask you.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:0")]
    http: Option<SocketAddr>,
    /// Read the token from this file, which must be readable by you alone, instead of generating one.
    #[arg(long, value_name = "FILE", requires = "http")]
    token_file: Option<PathBuf>,
    /// Listen on an address that other machines can reach. Traffic is not encrypted.
    #[arg(long, requires = "http")]
    allow_remote: bool,
    /// Accept this name in `Host` headers too; may be given several times.
    #[arg(long = "allow-host", value_name = "NAME", requires = "http")]
    hosts: Vec<String>,
    /// Accept requests from this web origin, such as `https://example.org:443`; those of this machine are accepted.
    #[arg(long = "allow-origin", value_name = "ORIGIN", requires = "http")]
    origins: Vec<String>,
    /// End a session, and its sandboxes, after this time without a request. [default: 30m]
    #[arg(long, value_name = "TIME", requires = "http")]
    idle: Option<Span>,
}

/// Serves until the client, or a signal, ends it.
pub async fn mcp(args: McpArgs, printer: &Printer) -> Result<i32> {
    let allowed: Vec<_> =
        args.allowed.iter().map(|dir| resolve_allowed(dir)).collect::<Result<_>>()?;
    if let Some(id) = &args.sandbox {
        let request = ToolsRequest { max_sandboxes: args.max_sandboxes, allowed };
        return serve_sandbox(id, request, printer).await;
    }
    let wanted = args.spec.wanted()?;
    let mut configured = wanted.settings(printer)?;
    configured.settings.ask_registries(args.spec.pull);
    configured.settings.use_daemon(args.spec.host.as_deref());
    let mut spec = args.spec.spec(&wanted, &configured.settings)?;
    warn_of_network(&spec.network, printer);
    if !args.local
        && let Some(signal) =
            image::pull_for_sandbox(&args.spec, &mut spec, &configured.settings, printer).await?
    {
        return Ok(interrupts::exit_code(signal));
    }
    let _cache = match args.local {
        true => None,
        false => args.spec.open_cache(&wanted, &mut configured, &mut spec, printer)?,
    };
    let settings = configured.settings;
    let mut pools = settings.pools().to_vec();
    if !args.local {
        for spec in pools.iter_mut().filter_map(PoolSetting::own_spec).chain([&mut spec]) {
            args.spec.add_toolchains(Packages::InHome, spec, &settings)?;
        }
    }
    let local =
        if args.local { Some(without_walls(&args.spec, spec.clone()).await?) } else { None };
    let secrets = args.spec.secret_values().await?;
    let door = args.http.open_door().await?;
    let mut interrupts = Interrupts::listen()?;
    let engine = match interrupts.unless(registry::engine(&settings, &spec.backend)).await {
        Ok(engine) => Arc::new(engine?),
        Err(signal) => return Ok(interrupts::exit_code(signal)),
    };
    engine.hold_secrets(&spec.tenant, secrets);
    // Before pools: what they prepare asks as well.
    let hosts = HostAsks::default();
    engine.set_host_asker(Arc::new(hosts.clone()));
    let workspaces = workspace::build_shared_source(&wanted, &spec, &engine, &settings).await?;
    open_pools(&pools, &spec, &engine, &|line| printer.note(line)).await?;
    let options = ToolboxOptions {
        workspaces: workspaces.clone(),
        directories: AllowedDirectories::new(allowed),
        quota: SandboxQuota::new(args.max_sandboxes),
        hosts,
        local,
        ..build_toolbox_options(spec, &settings, args.local)?
    };
    let person = if door.is_some() && !printer.is_json() { AtTerminal::reach()? } else { None };
    if person.is_some() {
        printer.note("questions of agents are asked here where their client cannot ask you");
    }
    let desk = build_desk(Arc::clone(&engine), options, door.is_some(), person);
    let serving = serve_mcp(Arc::clone(&desk), door, printer);
    let served = match interrupts.unless(serving).await {
        Ok(served) => served.map(|()| 0),
        Err(signal) => Ok(interrupts::exit_code(signal)),
    };
    let closing = async {
        desk.close().await;
        engine.close().await
    };
    // What does not end by itself ends with this process: none of it is detached.
    match interrupts.unless(tokio::time::timeout(SHUTDOWN_TIMEOUT, closing)).await {
        Ok(closed) => closed.map_err(|_| too_long())??,
        Err(signal) => return Ok(interrupts::exit_code(signal)),
    }
    for id in workspaces.iter().flat_map(SandboxWorkspaces::left) {
        printer.note(&format!(
            "changes are kept apart in workspace {id} (stockade workspace diff|apply|discard {id})"
        ));
    }
    served
}

/// Passes the standard streams on to the supervisor of a sandbox, which serves them.
async fn serve_sandbox(id: &SandboxId, request: ToolsRequest, printer: &Printer) -> Result<i32> {
    let place = SandboxDirectory::open(&Settings::load(None, printer)?)?;
    let mut connection = place.reach(id, MCP_OPERATION).await?;
    let asked = connection.ask(&SupervisorRequest::Tools(request)).await?;
    let (SupervisorReply::Done, _) = asked else { return Err(out_of_turn(MCP_OPERATION)) };
    let SupervisorConnection { mut reader, mut writer, .. } = connection;
    // Standard input as tokio reads it would hold the end of this process up until there is more of it.
    let (input, output) = stdio_pipes();
    let streams = tokio::io::join(input, output);
    let mut interrupts = Interrupts::listen()?;
    match interrupts.unless(carry_stream(&mut reader, &mut writer, streams)).await {
        Ok(true) => Ok(0),
        Ok(false) => {
            let message = format!("sandbox `{id}` has ended, or its supervisor");
            Err(Error::new(ErrorCode::Gone, MCP_OPERATION, message)
                .remedy("make another with `stockade create`"))
        }
        Err(signal) => Ok(interrupts::exit_code(signal)),
    }
}

fn resolve_allowed(dir: &Path) -> Result<HostPath> {
    const ALLOW_WORKSPACE_FLAG: &str = "--allow-workspace";
    let real = resolve_existing_path(ALLOW_WORKSPACE_FLAG, dir)?;
    match real.as_path().is_dir() {
        true => Ok(real),
        false => {
            Err(invalid_flag_error(ALLOW_WORKSPACE_FLAG, format!("`{real}` is not a directory"))
                .remedy("name a directory"))
        }
    }
}

fn too_long() -> Error {
    let message = format!("its sandboxes did not end within {} s", SHUTDOWN_TIMEOUT.as_secs());
    Error::new(ErrorCode::LeftBehind, MCP_OPERATION, message)
        .remedy("`stockade ps` shows what is left, and `stockade kill` ends it")
}

fn build_desk(
    engine: Arc<Engine>,
    options: ToolboxOptions,
    sessions_apart: bool,
    person: Option<Arc<AtTerminal>>,
) -> Arc<Desk> {
    let patience = options.approval.patience();
    let open = move || Toolbox::new(Arc::clone(&engine), options.clone());
    let mut desk = DeskOptions { sessions_apart, patience, ..DeskOptions::default() };
    if let Some(person) = person {
        desk.otherwise = person;
    }
    Desk::new(open, desk)
}

fn build_toolbox_options(
    spec: SandboxSpec,
    settings: &Settings,
    local: bool,
) -> Result<ToolboxOptions> {
    let engine = settings.engine()?;
    let options = ToolboxOptions {
        approval: settings.approval.clone(),
        template: spec.clone(),
        renewal: Some(SpecRenewal::new(move |spec| toolchains::renew_git_trees(spec, &engine))),
        ..ToolboxOptions::at(settings.state_dir()?)
    };
    Ok(ToolboxOptions { bound: (!local).then_some(spec), ..options })
}

/// Local execution by these flags: each is honoured, or refused by name (C-02).
async fn without_walls(args: &SpecArgs, mut spec: SandboxSpec) -> Result<LocalOptions> {
    if !matches!(spec.workspace, Workspace::Local(_)) {
        return Err(invalid_flag_error(
            "--local",
            "local execution needs a directory of this machine",
        )
        .remedy("name it with --workspace DIR, without --overlay"));
    }
    if args.surroundings.net.is_some() {
        let message =
            "--net has no effect on local execution, which has the network of this machine";
        return Err(
            invalid_flag_error("--local", message).remedy("leave --net out, or leave --local out")
        );
    }
    if args.surroundings.cache.is_some() {
        let message = "--cache has no effect on local execution, which has the caches of this user";
        return Err(invalid_flag_error("--local", message)
            .remedy("leave --cache out, or leave --local out"));
    }
    if args.boundaries.is_empty() {
        // What the configuration accepts is for sandboxes; that there is none was said outright.
        spec.boundaries.clear();
    }
    let inherited = LOCAL_ENV.iter().filter_map(|name| {
        let value = std::env::var(name).ok()?;
        Some((name.parse::<EnvName>().ok()?, value))
    });
    let mut env: BTreeMap<_, _> = inherited.collect();
    env.append(&mut spec.env);
    LocalOptions::new(SandboxSpec { env, ..spec }).await
}

async fn serve_mcp(desk: Arc<Desk>, door: Option<HttpEndpoint>, printer: &Printer) -> Result<()> {
    let Some(door) = door else {
        if std::io::stdin().is_terminal() {
            printer
                .note("serving MCP on standard input: usually an agent starts this, not a person");
        }
        return serve_stdio(desk).await.map_err(|error| {
            Error::new(ErrorCode::Invalid, MCP_OPERATION, "the client cannot be served")
                .source(error)
        });
    };
    door.announce_address(printer);
    // Dropped by a signal; connections end with it.
    let end = CancellationToken::new();
    let _ended = end.clone().drop_guard();
    http::serve(door.listener, desk, door.options, end).await;
    Ok(())
}

/// Where clients come in.
struct HttpEndpoint {
    listener: TcpListener,
    address: SocketAddr,
    options: HttpOptions,
    made: bool,
}

impl HttpArgs {
    async fn open_door(&self) -> Result<Option<HttpEndpoint>> {
        let Some(asked) = self.http else { return Ok(None) };
        if !asked.ip().is_loopback() && !self.allow_remote {
            let message = format!("other machines could reach {asked}");
            return Err(invalid_flag_error("--http", message)
                .remedy("listen on 127.0.0.1, or use --allow-remote"));
        }
        let listening = async {
            let listener = TcpListener::bind(asked).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listening.await.map_err(|error: std::io::Error| {
            invalid_flag_error("--http", format!("cannot listen on {asked}")).source(error)
        })?;
        let options = self.build_http_options(address.ip())?;
        Ok(Some(HttpEndpoint { listener, address, options, made: self.token_file.is_none() }))
    }

    fn build_http_options(&self, address: IpAddr) -> Result<HttpOptions> {
        let token = match &self.token_file {
            Some(file) => read_token(file)?,
            None => Token::random().map_err(|error| {
                Error::new(ErrorCode::System, MCP_OPERATION, "no token can be made").source(error)
            })?,
        };
        let mut options = HttpOptions::new(token);
        options.hosts.clone_from(&self.hosts);
        // The unspecified address (all interfaces) is not the name of a host.
        if !address.is_unspecified() {
            options.hosts.push(address.to_string());
        }
        options.origins.clone_from(&self.origins);
        options.idle = self.idle.map_or(options.idle, Duration::from);
        Ok(options)
    }
}

impl HttpEndpoint {
    /// Says where it is. A token that was given is not repeated.
    fn announce_address(&self, printer: &Printer) {
        let url = http::url(self.address);
        let token = self.made.then(|| self.options.token.reveal());
        if printer.is_json() {
            return printer.json(&json!({ "url": url, "token": token }));
        }
        let token = token.map(|token| format!("token {token}\n")).unwrap_or_default();
        printer.data(&format!("url   {url}\n{token}"));
    }
}

fn read_token(file: &Path) -> Result<Token> {
    const TOKEN_FILE_FLAG: &str = "--token-file";
    let unusable = |error: std::io::Error| {
        invalid_flag_error(TOKEN_FILE_FLAG, format!("`{}` cannot be read", file.display()))
            .source(error)
    };
    let others = file.metadata().map_err(unusable)?.mode() & 0o077;
    if others != 0 {
        let message = format!("others can read or write `{}`", file.display());
        return Err(invalid_flag_error(TOKEN_FILE_FLAG, message)
            .remedy(format!("chmod 600 {}", file.display())));
    }
    let text = std::fs::read_to_string(file).map_err(unusable)?;
    Token::try_from(text.trim_end().to_owned()).map_err(|error| {
        invalid_flag_error(TOKEN_FILE_FLAG, format!("`{}`: {error}", file.display()))
            .remedy("put a longer one there")
    })
}

fn invalid_flag_error(flag: &'static str, message: impl Into<String>) -> Error {
    Error::new(ErrorCode::Invalid, flag, message.into())
}
