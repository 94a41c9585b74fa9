//! The verbs, played over a virtual guest.

use std::time::Duration;

use serde_json::{Value, json};
use stockade_backends::mock::Guest;
use stockade_core::{ExitStatus, Signal, StreamId};

use super::presence::Presence;
use super::{facts, files};

/// Exit code for a verb that does not exist: the kit's own mistake.
const MISUSE_EXIT_CODE: i32 = 250;
/// Interval at which a ticking or detached program shows that it lives.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(10);
/// Chunk size of a flood that names none.
const FLOOD_CHUNK_BYTES: u64 = 64 << 10;

/// What a verb comes to: the program's end, or facts to print first.
pub(super) type Played = Result<Value, ExitStatus>;

pub(super) fn text(guest: &Guest, at: usize) -> String {
    guest.argv.get(at + 2).cloned().unwrap_or_default()
}

pub(super) fn number(guest: &Guest, at: usize) -> u64 {
    text(guest, at).parse().unwrap_or(0)
}

fn duration_argument(guest: &Guest, at: usize) -> Duration {
    Duration::from_millis(number(guest, at))
}

fn stream(guest: &Guest) -> StreamId {
    if text(guest, 0) == "stderr" { StreamId::Stderr } else { StreamId::Stdout }
}

/// Exit with code 0, and no facts to print.
const EXIT_SUCCESS: Played = Err(ExitStatus::Exited(0));

/// Plays the verb in the guest's arguments.
pub(super) async fn perform(guest: &mut Guest, presence: &Presence) -> ExitStatus {
    let verb = guest.argv.get(1).cloned().unwrap_or_default();
    let played = match files::perform(&verb, guest).or_else(|| facts::perform(&verb, guest)) {
        Some(played) => played,
        None => play(&verb, guest, presence).await,
    };
    match played {
        Ok(facts) => {
            guest.out(StreamId::Stdout, format!("{facts}\n")).await;
            ExitStatus::Exited(0)
        }
        Err(status) => status,
    }
}

async fn play(verb: &str, guest: &mut Guest, presence: &Presence) -> Played {
    match verb {
        "exit" => Err(ExitStatus::Exited(number(guest, 0) as i32)),
        "signal-self" => Err(ExitStatus::Signalled(Signal(number(guest, 0) as i32))),
        "sleep" | "close-fds-then-sleep" => sleep(guest).await,
        "ignore-signals-then-sleep" => {
            guest.ignore_signals();
            sleep(guest).await
        }
        "spawn-detached" => spawn_detached(guest, presence).await,
        "tick" => tick(guest).await,
        "print" => write_output(guest, text(guest, 1).into_bytes()).await,
        "print-hex" => write_output(guest, unhex(&text(guest, 1))).await,
        "flood" => flood(guest).await,
        "interleave" => interleave(guest).await,
        "echo" => echo(guest).await,
        "burn" => burn(guest, number(guest, 0)).await,
        "burn-for" => burn_for(guest).await,
        "burn-children" => burn(guest, number(guest, 0) * number(guest, 1)).await,
        "listen-unix" => {
            guest.out(StreamId::Stdout, "{\"ok\":true}\n").await;
            guest.sleep(duration_argument(guest, 1)).await;
            EXIT_SUCCESS
        }
        "wait-resize" => {
            guest.out(StreamId::Stdout, "ready\n").await;
            match tokio::time::timeout(duration_argument(guest, 0), guest.resized()).await {
                Ok(_) => Ok(facts::terminal(guest)),
                Err(_) => Ok(json!({ "ok": false, "errno": 110 })),
            }
        }
        _ => Err(ExitStatus::Exited(MISUSE_EXIT_CODE)),
    }
}

async fn write_output(guest: &Guest, data: Vec<u8>) -> Played {
    guest.out(stream(guest), data).await;
    EXIT_SUCCESS
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

async fn sleep(guest: &Guest) -> Played {
    guest.out(StreamId::Stdout, "ready\n").await;
    guest.sleep(duration_argument(guest, 0)).await;
    EXIT_SUCCESS
}

async fn tick(guest: &Guest) -> Played {
    let until = tokio::time::Instant::now() + duration_argument(guest, 0);
    while tokio::time::Instant::now() < until {
        guest.out(StreamId::Stdout, ".").await;
        guest.sleep(HEARTBEAT_INTERVAL).await;
    }
    EXIT_SUCCESS
}

async fn spawn_detached(guest: &Guest, presence: &Presence) -> Played {
    let (marker, files) = (text(guest, 0), guest.shared_files());
    let until = tokio::time::Instant::now() + duration_argument(guest, 1);
    if let Err(errno) = files.append(&marker, b".") {
        return Ok(json!({ "ok": false, "errno": errno as i32 }));
    }
    let present = presence.enter(guest);
    guest.spawn_detached(async move {
        let _present = present;
        while tokio::time::Instant::now() < until && files.append(&marker, b".").is_ok() {
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    });
    guest.out(StreamId::Stdout, "{\"ok\":true}\n").await;
    guest.sleep(duration_argument(guest, 2)).await;
    EXIT_SUCCESS
}

async fn flood(guest: &Guest) -> Played {
    let (total, chunk) = (number(guest, 1), number(guest, 2));
    let chunk = if chunk == 0 { FLOOD_CHUNK_BYTES } else { chunk };
    let mut at = 0;
    while at < total {
        let end = total.min(at + chunk);
        let piece: Vec<u8> = (at..end).map(|at| (at % 251) as u8).collect();
        guest.out(stream(guest), piece).await;
        at = end;
    }
    EXIT_SUCCESS
}

async fn interleave(guest: &Guest) -> Played {
    for number in 0..number(guest, 0) {
        let stream = if number % 2 == 0 { StreamId::Stdout } else { StreamId::Stderr };
        guest.out(stream, format!("{number}\n")).await;
    }
    EXIT_SUCCESS
}

async fn echo(guest: &mut Guest) -> Played {
    while let Some(data) = guest.input().await {
        guest.out(StreamId::Stdout, data).await;
    }
    EXIT_SUCCESS
}

async fn burn(guest: &Guest, ms: u64) -> Played {
    guest.burn(Duration::from_millis(ms))?;
    Ok(json!({ "ok": true, "ms": ms }))
}

async fn burn_for(guest: &Guest) -> Played {
    let rate = guest.limits.cpu_rate.map_or(1000, |rate| u64::from(rate.0));
    guest.sleep(duration_argument(guest, 0)).await;
    burn(guest, number(guest, 0) * rate / 1000).await
}
