//! Measures the agent from the client's side: throughput of one stream and latency of one exec.
//!
//! `measure AGENT`: the path of the agent's binary. Prints one line per measurement.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use stockade_agent::client::AgentClient;
use stockade_core::{Command, ProcessEvent};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> Result<(), Failure> {
    let agent = std::env::args().nth(1).ok_or("usage: measure AGENT")?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = std::process::Command::new(agent)
        .args(["0", "/tmp"])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()?;
    ours.set_nonblocking(true)?;
    let socket = tokio::net::UnixStream::from_std(ours)?;
    let client = AgentClient::connect(socket, Duration::from_secs(5)).await?;
    for _ in 0..3 {
        throughput(&client).await?;
    }
    latency(&client).await?;
    plain()?;
    drop(client);
    child.wait()?;
    Ok(())
}

async fn throughput(client: &AgentClient) -> Result<(), Failure> {
    let command = Command::program(["head", "-c", "4G", "/dev/zero"]);
    let start = Instant::now();
    let mut process = client.spawn(&command, &[]).await?;
    let (mut bytes, mut pieces) = (0usize, 0usize);
    while let Some(event) = process.events.next().await {
        if let ProcessEvent::Output(_, data) = event {
            bytes += data.len();
            pieces += 1;
        }
    }
    let gib = bytes as f64 / f64::from(1 << 30);
    let rate = gib / start.elapsed().as_secs_f64();
    println!("stream: {gib:.1} GiB in {pieces} pieces, {rate:.2} GiB/s");
    Ok(())
}

async fn latency(client: &AgentClient) -> Result<(), Failure> {
    let command = Command::program(["/bin/true"]);
    let mut times = Vec::new();
    for _ in 0..500 {
        let start = Instant::now();
        let mut process = client.spawn(&command, &[]).await?;
        while process.events.next().await.is_some() {}
        times.push(start.elapsed());
    }
    print("exec through the agent", times);
    Ok(())
}

fn plain() -> Result<(), Failure> {
    let mut times = Vec::new();
    for _ in 0..500 {
        let start = Instant::now();
        std::process::Command::new("/bin/true").status()?;
        times.push(start.elapsed());
    }
    print("plain spawn and wait", times);
    Ok(())
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("{what}: p50 {:?}, p99 {:?}", at(50), at(99));
}
