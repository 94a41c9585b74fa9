//! `stockade serve`: the HTTP API, on a socket of this user and, for holders of tokens, on TCP: without TLS on this
//! machine alone.
//! When this returns, no sandbox of it is left.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use stockade_backends::remote;
use stockade_core::{BackendChoice, Error, ErrorCode, Result, Signal, Span};
use stockade_engine::StateDir;
use stockade_server::api::{Api, ApiDoors, ApiOptions, ApiServer, ApiSocket, ApiTls, TokenStore};
use tokio::net::TcpListener;

use crate::config::Settings;
use crate::registry;
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::printer::Printer;

const SERVE_OPERATION: &str = "serve";
const LISTEN_FLAG: &str = "--listen";
const TLS_CERT_FLAG: &str = "--tls-cert";
const MAX_LIFETIME_FLAG: &str = "--max-lifetime";
/// States of the service, as systemd reads them.
const READY_STATE: &str = "READY=1";
const STOPPING_STATE: &str = "STOPPING=1";
/// Timeout for taking everything down; a second signal ends it at once.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the files of certificate and key are looked at.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Open files that a daemon asks for: some for each connection and sandbox that it may have.
const MAX_OPEN_FILES: u64 = 65_536;

/// Whom to serve.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Listen on this address too, for holders of tokens (`stockade token new`). Port 0 takes a free one. Without
    /// --tls-cert only loopback.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Take only TLS there, with this certificate (PEM; its intermediate ones behind it).
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM), which only you can read.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_key: Option<PathBuf>,
    /// Accept this name in `Host` headers too, such as that of a TLS proxy in front; may be given several times.
    #[arg(long = "allow-host", value_name = "NAME", requires = "listen")]
    hosts: Vec<String>,
    /// Maximum number of sandboxes at once, of all tenants together.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    max_sandboxes: u16,
    /// Longest lifetime that the holder of a token gives a sandbox, and the lifetime of one that is given none. It can
    /// be extended before it ends.
    #[arg(long, value_name = "TIME", default_value = "7d")]
    max_lifetime: Span,
}

/// Serves until a signal ends it.
pub async fn serve(args: ServeArgs, printer: &Printer) -> Result<i32> {
    let mut settings = Settings::load(None, printer)?;
    check_own_walls(&settings)?;
    // It may be this daemon, which would ask itself.
    settings.forget_daemon();
    let state = StateDir::open(settings.state_dir()?)?;
    let tokens = Arc::new(TokenStore::open(&state)?);
    let tls = load_tls(&args, &mut settings)?;
    if let Some(address) = args.listen {
        check_listen(address, tls.is_some(), &tokens)?;
    }
    raise_open_files();
    let socket = ApiSocket::claim(&state)?;
    settings.hide_socket(socket.path());
    let tcp = match args.listen {
        Some(address) => Some(bind_tcp(address).await?),
        None => None,
    };
    let mut interrupts = Interrupts::listen()?;
    let choice = settings.backend.clone().unwrap_or_default();
    let api = match interrupts.unless(open_api(&settings, &choice, &args)).await {
        Ok(api) => api?,
        Err(signal) => return Ok(interrupts::exit_code(signal)),
    };
    let url = tcp.as_ref().and_then(|tcp| build_url(tcp, tls.is_some()));
    let hosts = [settings.serve.allow_hosts.unwrap_or_default(), args.hosts].concat();
    let doors = ApiDoors { socket: socket.bind()?, tcp, tls: tls.clone(), hosts };
    let server = ApiServer::start(api.clone(), doors, tokens);
    announce(&socket, url, printer);
    notify_service_manager(READY_STATE);
    // At a terminal SIGHUP means the end too: the terminal is gone.
    let reloads = !(std::io::stdin().is_terminal() || std::io::stderr().is_terminal());
    tokio::select! {
        () = reload_until_ended(&mut interrupts, reloads, &api, printer) => {}
        () = renew_certificate(tls, printer) => {}
    }
    notify_service_manager(STOPPING_STATE);
    // What does not end by itself ends with this process: none of it is detached.
    let mut stopping = pin!(tokio::time::timeout(SHUTDOWN_TIMEOUT, server.stop()));
    loop {
        match interrupts.unless(&mut stopping).await {
            Ok(stopped) => return stopped.map_err(|_| too_long())?.map(|()| 0),
            // One that came late asks for no end.
            Err(Signal::HUP) if reloads => {}
            Err(signal) => return Ok(interrupts::exit_code(signal)),
        }
    }
}

async fn open_api(settings: &Settings, choice: &BackendChoice, args: &ServeArgs) -> Result<Api> {
    let engine = registry::serving_engine(settings, choice).await?;
    let max_sandboxes = usize::from(args.max_sandboxes);
    let max_lifetime = Duration::from(args.max_lifetime);
    if max_lifetime.is_zero() {
        let message = "a lifetime is longer than nothing";
        return Err(Error::new(ErrorCode::Invalid, MAX_LIFETIME_FLAG, message));
    }
    Ok(Api::new(engine, ApiOptions { configured: settings.spec(), max_sandboxes, max_lifetime }))
}

/// Reads the configuration again on SIGHUP, where that `reloads`; returns at a signal that means the end.
async fn reload_until_ended(
    interrupts: &mut Interrupts,
    reloads: bool,
    api: &Api,
    printer: &Printer,
) {
    while interrupts.next().await == Signal::HUP && reloads {
        notify_service_manager(&describe_reload());
        match reload(api, printer) {
            Ok(()) => printer.note("the configuration was read again"),
            Err(error) => printer.note(&format!("{error}; the one that was read before holds")),
        }
        notify_service_manager(READY_STATE);
    }
}

/// What is taken over while sandboxes run: quotas, and what a spec is over. All else holds from the start on.
fn reload(api: &Api, printer: &Printer) -> Result<()> {
    let mut settings = Settings::load(None, printer)?;
    check_own_walls(&settings)?;
    settings.forget_daemon();
    let config = settings.engine()?;
    api.reconfigure(settings.spec(), config.quotas, config.default_quota);
    Ok(())
}

/// The state of a service that reloads, with the time that systemd compares with that of its signal.
fn describe_reload() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    format!("RELOADING=1\nMONOTONIC_USEC={micros}")
}

/// Fails where another daemon is to build the walls: what is asked of this one would be asked of that one.
fn check_own_walls(settings: &Settings) -> Result<()> {
    match &settings.backend {
        Some(BackendChoice::Named(name)) if *name == remote::NAME => {
            let message = "a daemon builds its sandboxes itself, not by another daemon";
            Err(Error::new(ErrorCode::Invalid, SERVE_OPERATION, message)
                .remedy("unset STOCKADE_HOST, or set `backend` to another one"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Raises the limit of open files as far as this user may: each connection and each sandbox needs some.
fn raise_open_files() {
    let found = getrlimit(Resource::Nofile);
    let wanted = found.maximum.map_or(MAX_OPEN_FILES, |most| most.min(MAX_OPEN_FILES));
    if found.current.is_some_and(|current| current < wanted) {
        // Where it is refused, less is served: bounds on connections follow the limit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..found });
    }
}

/// The certificate and key that are given or configured, if it listens on TCP. No guest sees the key.
fn load_tls(args: &ServeArgs, settings: &mut Settings) -> Result<Option<ApiTls>> {
    if args.listen.is_none() {
        return Ok(None);
    }
    let certificate = args.tls_cert.clone().or_else(|| settings.serve.tls_cert.clone());
    let key = args.tls_key.clone().or_else(|| settings.serve.tls_key.clone());
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            settings.hide_tls_key(&key);
            ApiTls::load(&certificate, &key).map(Some)
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            let message = "a certificate and its private key are given together";
            Err(Error::new(ErrorCode::Invalid, TLS_CERT_FLAG, message)
                .remedy("give --tls-cert and --tls-key, or both keys in the table [serve]"))
        }
    }
}

/// Takes a renewed certificate over as soon as its files are there. Connections that are open keep theirs.
async fn renew_certificate(tls: Option<ApiTls>, printer: &Printer) {
    let Some(tls) = tls else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(CERTIFICATE_CHECK_INTERVAL);
    let mut told = String::new();
    loop {
        ticks.tick().await;
        let refreshing = tls.clone();
        let refreshed = tokio::task::spawn_blocking(move || refreshing.refresh()).await;
        let now = match refreshed {
            Ok(Ok(false)) => String::new(),
            Ok(Ok(true)) => "the renewed certificate is used from now on".to_owned(),
            Ok(Err(error)) => format!("{error}; the one that was read before is still used"),
            Err(error) => error.to_string(),
        };
        // Each news once: the files are looked at all the time.
        if !now.is_empty() && now != told {
            printer.note(&now);
        }
        told = now;
    }
}

/// Fails where other machines could read what is sent, or no client could use the address.
fn check_listen(address: SocketAddr, encrypted: bool, tokens: &TokenStore) -> Result<()> {
    if !encrypted && !address.ip().is_loopback() {
        let message = format!("other machines could reach {address}, and traffic is not encrypted");
        return Err(Error::new(ErrorCode::Invalid, LISTEN_FLAG, message).remedy(
            "give --tls-cert and --tls-key; or listen on 127.0.0.1, and put a TLS proxy in front or use ssh -L \
             from the other machine",
        ));
    }
    if tokens.list()?.is_empty() {
        let message = "there is no token, and over TCP each request needs one";
        return Err(Error::new(ErrorCode::Invalid, LISTEN_FLAG, message)
            .remedy("make one with `stockade token new NAME`, or use the socket alone"));
    }
    Ok(())
}

async fn bind_tcp(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let message = format!("cannot listen on {address}");
        Error::new(ErrorCode::Invalid, LISTEN_FLAG, message).source(error)
    })
}

fn build_url(tcp: &TcpListener, encrypted: bool) -> Option<String> {
    let scheme = if encrypted { "https" } else { "http" };
    tcp.local_addr().ok().map(|address| format!("{scheme}://{address}"))
}

fn announce(socket: &ApiSocket, url: Option<String>, printer: &Printer) {
    let path = socket.path();
    if printer.is_json() {
        return printer.json(&json!({ "socket": path, "url": url }));
    }
    let url = url.map(|url| format!("url    {url}\n")).unwrap_or_default();
    printer.data(&format!("socket {}\n{url}", path.display()));
}

/// Tells systemd the state of the service, where it has started this.
fn notify_service_manager(state: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match path.strip_prefix('@') {
        Some(name) => UnixAddress::from_abstract_name(name),
        None => UnixAddress::from_pathname(&path),
    };
    // A failure here has no reader.
    let _ = address.and_then(|address| {
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
    });
}

fn too_long() -> Error {
    let message = format!("its sandboxes did not end within {} s", SHUTDOWN_TIMEOUT.as_secs());
    Error::new(ErrorCode::LeftBehind, SERVE_OPERATION, message)
        .remedy("`stockade ps` shows what is left, and `stockade kill` ends it")
}
