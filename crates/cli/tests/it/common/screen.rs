//! A terminal that a test looks at and types on.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part; a test fails where a value is missing"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::CliPlace;

const SCREEN_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The far side of a terminal that `stockade` runs on.
pub struct Screen {
    near: File,
    far: OwnedFd,
    shown: String,
}

impl Screen {
    pub fn new() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let near = openpt(flags).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let far = ioctl_tiocgptpeer(&near, flags).unwrap();
        let screen = Self { near: near.into(), far, shown: String::new() };
        screen.resize(30, 90);
        screen
    }

    pub fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.near, size).unwrap();
    }

    pub fn start(&self, place: &CliPlace, args: &[&str]) -> Child {
        self.start_with(place.command(args))
    }

    pub fn start_with(&self, mut command: Command) -> Child {
        command.env("TERM", "xterm-test");
        command.stdin(self.far.try_clone().unwrap()).stdout(self.far.try_clone().unwrap());
        command.stderr(self.far.try_clone().unwrap()).spawn().unwrap()
    }

    /// Starts it in front, so that keys such as Ctrl-C become signals for it.
    pub fn start_in_front(&self, place: &CliPlace, args: &[&str]) -> Child {
        self.start_line(place, "exec \"$@\"", args)
    }

    /// Starts a line of shell in front, with the command as its arguments.
    pub fn start_line(&self, place: &CliPlace, line: &str, args: &[&str]) -> Child {
        let inner = place.command(args);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "sh", "-c", line, "sh"]);
        command.arg(inner.get_program()).args(inner.get_args());
        command.current_dir(place.workspace()).env_clear();
        let set = inner.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(set);
        self.start_with(command)
    }

    /// Reads until this was shown, forgets that and what came before, and answers it.
    pub fn until(&mut self, text: &str) -> String {
        let mut buffer = [0; 1024];
        let at = loop {
            if let Some(at) = self.shown.find(text) {
                break at;
            }
            let mut ready = [PollFd::new(&self.near, PollFlags::IN)];
            assert!(
                poll(&mut ready, Some(&SCREEN_TIMEOUT)).unwrap() > 0,
                "{text:?} not in {:?}",
                self.shown
            );
            let count = self.near.read(&mut buffer).unwrap();
            self.shown += &String::from_utf8_lossy(&buffer[..count]);
        };
        self.shown.drain(..at + text.len()).collect()
    }

    pub fn keys(&mut self, keys: &str) {
        self.near.write_all(keys.as_bytes()).unwrap();
    }

    pub fn is_raw(&self) -> bool {
        !tcgetattr(&self.far).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}
