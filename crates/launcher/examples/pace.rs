//! How fast a launch is, beside the floor: both execute the same program and wait for its end, taking
//! turns, and the medians are printed. Usage: `pace LAUNCHER PROGRAM [ROUNDS]`; the program should be
//! static, as the agent is.
#![allow(unsafe_code)] // the floor

#[path = "floor/once.rs"]
mod once;

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use stockade_launcher::{LaunchPlan, Launcher, Program, copy_to_sealed_memfd};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, launcher, program, rest @ ..] = words.as_slice() else {
        return Err("usage: pace LAUNCHER PROGRAM [ROUNDS]".into());
    };
    let rounds = rest.first().map_or(Ok(200), |text| text.parse())?;
    let program = File::from(copy_to_sealed_memfd("agent", &mut File::open(program)?)?);
    let launcher = Launcher::start(&Program::Path(launcher.into()), program.as_fd())?;
    let (mut floor, mut ready, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        once::once(&program)?;
        floor.push(start.elapsed());
        let (launched, ended) = launch(&launcher)?;
        ready.push(launched);
        whole.push(ended);
    }
    let base = median(&mut floor);
    println!("{:24} {:>9}  ratio", "", "p50");
    for (name, times) in
        [("floor", &mut floor), ("launch", &mut ready), ("launch and end", &mut whole)]
    {
        let time = median(times);
        println!("{name:24} {:>6.0} µs  {:.2}", micros(time), micros(time) / micros(base));
    }
    Ok(())
}

fn launch(launcher: &Launcher) -> Result<(Duration, Duration), Box<dyn Error>> {
    let start = Instant::now();
    let (_ours, theirs) = UnixStream::pair()?;
    let launched = launcher.launch(&LaunchPlan::default(), theirs.into())?;
    let ready = start.elapsed();
    poll(&mut [PollFd::new(&launched.pidfd, PollFlags::IN)], None)?;
    Ok((ready, start.elapsed()))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
