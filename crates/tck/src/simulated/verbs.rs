//! The verbs, played over a virtual guest.

use std::time::Duration;

use serde_json::{Value, json};
use stockade_backends::mock::Guest;
use stockade_core::{ExitStatus, Signal, StreamId};

use super::presence::SimulatedPrograms;
use super::{facts, files};

/// Exit code for a verb that does not exist: the kit's own mistake.
const MISUSE_EXIT_CODE: i32 = 250;
/// Interval at which a ticking or detached program shows that it lives.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(10);
/// Chunk size of a flood that names none.
const FLOOD_CHUNK_BYTES: u64 = 64 << 10;

/// What a verb comes to: the program's end, or facts to print first.
pub(super) type Played = Result<Value, ExitStatus>;

pub(super) fn text_argument(guest: &Guest, at: usize) -> String {
    guest.argv.get(at + 2).cloned().unwrap_or_default()
}

pub(super) fn number_argument(guest: &Guest, at: usize) -> u64 {
    text_argument(guest, at).parse().unwrap_or(0)
}

fn duration_argument(guest: &Guest, at: usize) -> Duration {
    Duration::from_millis(number_argument(guest, at))
}

fn stream_argument(guest: &Guest) -> StreamId {
    if text_argument(guest, 0) == "stderr" { StreamId::Stderr } else { StreamId::Stdout }
}

/// Exit with code 0, and no facts to print.
const EXIT_SUCCESS: Played = Err(ExitStatus::Exited(0));

/// Plays the verb in the guest's arguments.
pub(super) async fn run_verb(guest: &mut Guest, presence: &SimulatedPrograms) -> ExitStatus {
    let verb = guest.argv.get(1).cloned().unwrap_or_default();
    let played =
        match files::run_file_verb(&verb, guest).or_else(|| facts::run_facts_verb(&verb, guest)) {
            Some(played) => played,
            None => run_other_verb(&verb, guest, presence).await,
        };
    match played {
        Ok(facts) => {
            guest.out(StreamId::Stdout, format!("{facts}\n")).await;
            ExitStatus::Exited(0)
        }
        Err(status) => status,
    }
}

async fn run_other_verb(verb: &str, guest: &mut Guest, presence: &SimulatedPrograms) -> Played {
    match verb {
        "exit" => Err(ExitStatus::Exited(number_argument(guest, 0) as i32)),
        "signal-self" => Err(ExitStatus::Signalled(Signal(number_argument(guest, 0) as i32))),
        "sleep" | "close-fds-then-sleep" => sleep_after_ready(guest).await,
        "ignore-signals-then-sleep" => {
            guest.ignore_signals();
            sleep_after_ready(guest).await
        }
        "spawn-detached" => spawn_detached(guest, presence).await,
        "tick" => print_ticks(guest).await,
        "print" => write_output(guest, text_argument(guest, 1).into_bytes()).await,
        "print-hex" => write_output(guest, decode_hex(&text_argument(guest, 1))).await,
        "flood" => flood_output(guest).await,
        "interleave" => interleave_output(guest).await,
        "echo" => echo_stdin(guest).await,
        "burn" => burn_cpu_time(guest, number_argument(guest, 0)).await,
        "burn-for" => burn_for(guest).await,
        "burn-children" => {
            burn_cpu_time(guest, number_argument(guest, 0) * number_argument(guest, 1)).await
        }
        "listen-unix" => {
            guest.out(StreamId::Stdout, "{\"ok\":true}\n").await;
            guest.sleep(duration_argument(guest, 1)).await;
            EXIT_SUCCESS
        }
        "wait-resize" => {
            guest.out(StreamId::Stdout, "ready\n").await;
            match tokio::time::timeout(duration_argument(guest, 0), guest.resized()).await {
                Ok(_) => Ok(facts::report_terminal(guest)),
                Err(_) => Ok(json!({ "ok": false, "errno": 110 })),
            }
        }
        _ => Err(ExitStatus::Exited(MISUSE_EXIT_CODE)),
    }
}

async fn write_output(guest: &Guest, data: Vec<u8>) -> Played {
    guest.out(stream_argument(guest), data).await;
    EXIT_SUCCESS
}

fn decode_hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

async fn sleep_after_ready(guest: &Guest) -> Played {
    guest.out(StreamId::Stdout, "ready\n").await;
    guest.sleep(duration_argument(guest, 0)).await;
    EXIT_SUCCESS
}

async fn print_ticks(guest: &Guest) -> Played {
    let until = tokio::time::Instant::now() + duration_argument(guest, 0);
    while tokio::time::Instant::now() < until {
        guest.out(StreamId::Stdout, ".").await;
        guest.sleep(HEARTBEAT_INTERVAL).await;
    }
    EXIT_SUCCESS
}

async fn spawn_detached(guest: &Guest, presence: &SimulatedPrograms) -> Played {
    let (marker, files) = (text_argument(guest, 0), guest.shared_files());
    let until = tokio::time::Instant::now() + duration_argument(guest, 1);
    if let Err(errno) = files.append(&marker, b".") {
        return Ok(json!({ "ok": false, "errno": errno as i32 }));
    }
    let present = presence.register_guest(guest);
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

async fn flood_output(guest: &Guest) -> Played {
    let (total, chunk) = (number_argument(guest, 1), number_argument(guest, 2));
    let chunk = if chunk == 0 { FLOOD_CHUNK_BYTES } else { chunk };
    let mut at = 0;
    while at < total {
        let end = total.min(at + chunk);
        let piece: Vec<u8> = (at..end).map(|at| (at % 251) as u8).collect();
        guest.out(stream_argument(guest), piece).await;
        at = end;
    }
    EXIT_SUCCESS
}

async fn interleave_output(guest: &Guest) -> Played {
    for number in 0..number_argument(guest, 0) {
        let stream = if number % 2 == 0 { StreamId::Stdout } else { StreamId::Stderr };
        guest.out(stream, format!("{number}\n")).await;
    }
    EXIT_SUCCESS
}

async fn echo_stdin(guest: &mut Guest) -> Played {
    while let Some(data) = guest.input().await {
        guest.out(StreamId::Stdout, data).await;
    }
    EXIT_SUCCESS
}

async fn burn_cpu_time(guest: &Guest, ms: u64) -> Played {
    guest.burn(Duration::from_millis(ms))?;
    Ok(json!({ "ok": true, "ms": ms }))
}

async fn burn_for(guest: &Guest) -> Played {
    let rate = guest.limits.cpu_rate.map_or(1000, |rate| u64::from(rate.0));
    guest.sleep(duration_argument(guest, 0)).await;
    burn_cpu_time(guest, number_argument(guest, 0) * rate / 1000).await
}
