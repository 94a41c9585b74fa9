//! The network by allow-list beside the same `curl` on the host's loopback: one large download, connections one after
//! the other, and a thousand at once with the memory that they take.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stockade_backends::native::Native;
use stockade_core::{Command, EgressRule, Network, SandboxId, SandboxSpec};
use stockade_engine::{EgressLimits, Engine, EngineConfig, OutputEvent, Subscription};

use crate::Measured;
use crate::report::BenchReport;
use crate::table::Row;

const DOWNLOAD_BYTES: usize = 512 << 20;
const DOWNLOAD_ROUNDS: usize = 7;
const CONNECT_ROUNDS: usize = 100;
/// One engine carries 512 connections at most.
const CROWD_ENGINES: usize = 2;
const CROWD_CONNECTIONS: usize = 500;
const BLOCK_BYTES: usize = 64 << 10;
const CURL: &str = "/usr/bin/curl";
const PYTHON: &str = "/usr/bin/python3";
/// Opens tunnels by the proxy, says how many there are, and holds them until its input ends.
const CROWD_PROGRAM: &str = "\
import socket, sys
port, count, held = sys.argv[1], int(sys.argv[2]), []
for _ in range(count):
    s = socket.create_connection(('127.63.0.53', 3128), 60)
    s.sendall(f'CONNECT localhost:{port} HTTP/1.1\\r\\nHost: localhost:{port}\\r\\n\\r\\n'.encode())
    if s.recv(4096).startswith(b'HTTP/1.1 200'): held.append(s); s.sendall(b'\\0')
print(len(held), flush=True)
sys.stdin.read()";
/// Accepts whatever comes, in a process of its own so that its memory is not counted.
const CROWD_SERVER: &str = "\
import socket, sys
s, held = socket.create_server(('127.0.0.1', 0), backlog=2048), []
print(s.getsockname()[1], flush=True)
while True: held.append(s.accept())";

/// Prints ratios and memory.
pub fn measure(report: &mut BenchReport) -> Measured {
    if let Some(missing) = [CURL, PYTHON].into_iter().find(|program| !Path::new(program).exists()) {
        report.note(format!("network: not measured: {missing} is not installed"));
        return Ok(());
    }
    raise_open_files()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(compare_curl(report))?;
    runtime.block_on(hold_crowd(report))
}

/// Each connection is an open file here.
fn raise_open_files() -> Measured {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// A sandbox that may reach one port of this host.
struct NetworkedSandbox {
    engine: Engine,
    id: SandboxId,
    _state: tempfile::TempDir,
}

impl NetworkedSandbox {
    async fn new(port: u16) -> Result<Self, Box<dyn Error>> {
        let state = tempfile::tempdir()?;
        let mut config = EngineConfig::at(state.path().join("state"));
        config.egress_limits =
            EgressLimits { connections: CROWD_CONNECTIONS, ..EgressLimits::default() };
        let engine = Engine::open(config, vec![Arc::new(Native::new())]).await?;
        let rules = [format!("localhost:{port}"), format!("127.0.0.1:{port}")];
        let rules = rules.iter().map(|rule| rule.parse::<EgressRule>());
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        let mut spec = SandboxSpec { network: Network::Egress(rules), ..SandboxSpec::default() };
        spec.limits.open_files = Some(4096);
        let id = engine.create(spec).await?;
        Ok(Self { engine, id, _state: state })
    }

    /// What a program prints until it ends.
    async fn read_output(&self, args: &[String]) -> Result<String, Box<dyn Error>> {
        let command = Command::program(args.iter().map(String::as_str));
        let (_execution, mut follower) = self.engine.exec_followed(&self.id, command).await?;
        let mut text = String::new();
        while let Some(line) = next_output(&mut follower).await {
            text += &line;
        }
        Ok(text)
    }
}

async fn next_output(follower: &mut Subscription) -> Option<String> {
    loop {
        if let OutputEvent::Output { data, .. } = follower.next().await? {
            return Some(String::from_utf8_lossy(&data).into_owned());
        }
    }
}

/// A server that answers `/large` with much and everything else with little.
fn start_server() -> Result<u16, Box<dyn Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(port)
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..count]);
    }
    let length = if head.starts_with(b"GET /large ") { DOWNLOAD_BYTES } else { 2 };
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")?;
    let block = [b'.'; BLOCK_BYTES];
    let mut left = length;
    while left > 0 {
        let count = left.min(BLOCK_BYTES);
        stream.write_all(&block[..count])?;
        left -= count;
    }
    Ok(())
}

fn curl_args(port: u16, path: &str, options: &[&str]) -> Vec<String> {
    let url = format!("http://localhost:{port}{path}");
    let fixed = ["-4", "-s", "-o", "/dev/null", "-w", "%{time_total}"];
    let all = [CURL].into_iter().chain(fixed).chain(options.iter().copied()).chain([url.as_str()]);
    all.map(str::to_owned).collect()
}

fn parse_seconds(printed: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::from_secs_f64(printed.trim().parse()?))
}

fn direct(args: &[String]) -> Result<Duration, Box<dyn Error>> {
    let done = Process::new(&args[0]).args(&args[1..]).stdin(Stdio::null()).output()?;
    parse_seconds(&String::from_utf8_lossy(&done.stdout))
}

/// Times are those that curl takes by itself: starting it is not counted.
async fn compare_curl(report: &mut BenchReport) -> Measured {
    let port = start_server()?;
    let inside = NetworkedSandbox::new(port).await?;
    let tunnel = ["--noproxy", "", "-p", "-x", "http://127.63.0.53:3128"];
    for (path, rounds, what) in [
        ("/large", DOWNLOAD_ROUNDS, "one download of 512 MiB"),
        ("/small", CONNECT_ROUNDS, "a connection and a small answer"),
    ] {
        let mut rows = [Row::new("direct"), Row::new("by policy")];
        for _ in 0..rounds {
            rows[0].add(direct(&curl_args(port, path, &["--noproxy", "*"]))?);
            let printed = inside.read_output(&curl_args(port, path, &tunnel)).await?;
            rows[1].add(parse_seconds(&printed)?);
        }
        report.title(format!("network: {what} by curl, native, {rounds} rounds, taking turns"));
        report.timings(&mut rows);
    }
    inside.engine.close().await?;
    Ok(())
}

/// A process that is ended with this value.
struct CrowdServer {
    child: Child,
    port: u16,
}

impl CrowdServer {
    fn start() -> Result<Self, Box<dyn Error>> {
        let mut child =
            Process::new(PYTHON).args(["-c", CROWD_SERVER]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok(Self { child, port: line.trim().parse()? })
    }
}

impl Drop for CrowdServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn hold_crowd(report: &mut BenchReport) -> Measured {
    let server = CrowdServer::start()?;
    let mut sandboxes = Vec::new();
    for _ in 0..CROWD_ENGINES {
        sandboxes.push(NetworkedSandbox::new(server.port).await?);
    }
    let before = own_resident_kib()?;
    let (mut held, mut followers) = (0, Vec::new());
    for sandbox in &sandboxes {
        let (port, count) = (server.port.to_string(), CROWD_CONNECTIONS.to_string());
        let mut command = Command::program([PYTHON, "-c", CROWD_PROGRAM, &port, &count]);
        command.stdin = stockade_core::Stdin::Stream;
        let (execution, mut follower) = sandbox.engine.exec_followed(&sandbox.id, command).await?;
        let line = next_output(&mut follower).await.unwrap_or_default();
        held += line.trim().parse::<usize>().unwrap_or_default();
        followers.push((execution, follower));
    }
    let grown = own_resident_kib()?.saturating_sub(before);
    report.note(format!(
        "network: {held} connections at once, two engines: {grown} KiB resident in all, {:.1} KiB each",
        grown as f64 / held.max(1) as f64
    ));
    drop(followers);
    for sandbox in sandboxes {
        sandbox.engine.close().await?;
    }
    Ok(())
}

fn own_resident_kib() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
