//! `-t`: a terminal inside, the caller's own raw for as long and as before afterwards.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Child;

use common::{Place, signal, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const DEADLINE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// The far side of a terminal that `stockade` runs on.
struct Screen {
    near: File,
    far: OwnedFd,
    shown: String,
}

impl Screen {
    fn new() -> Self {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let far = ioctl_tiocgptpeer(&near, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let screen = Self { near: near.into(), far, shown: String::new() };
        screen.resize(30, 90);
        screen
    }

    fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.near, size).unwrap();
    }

    fn start(&self, place: &Place, args: &[&str]) -> Child {
        let mut command = place.command(args);
        command.env("TERM", "xterm-test");
        command.stdin(self.far.try_clone().unwrap()).stdout(self.far.try_clone().unwrap());
        command.stderr(self.far.try_clone().unwrap()).spawn().unwrap()
    }

    /// Reads until this was shown, and forgets what came before.
    fn until(&mut self, text: &str) {
        let mut buffer = [0; 1024];
        let at = loop {
            if let Some(at) = self.shown.find(text) {
                break at;
            }
            let mut ready = [PollFd::new(&self.near, PollFlags::IN)];
            assert!(
                poll(&mut ready, Some(&DEADLINE)).unwrap() > 0,
                "{text:?} not in {:?}",
                self.shown
            );
            let count = self.near.read(&mut buffer).unwrap();
            self.shown += &String::from_utf8_lossy(&buffer[..count]);
        };
        self.shown.drain(..at + text.len());
    }

    fn keys(&mut self, keys: &str) {
        self.near.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.far).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn a_shell_on_a_terminal_gets_keys_size_and_kind() {
    let place = Place::new();
    let mut screen = Screen::new();
    let child = screen.start(&place, &["run", "-t", "sh"]);
    screen.keys("stty size; echo kind-$TERM\r");
    screen.until("30 90");
    screen.until("kind-xterm-test");
    assert!(screen.is_raw());
    // What is computed cannot be the echo of what was typed.
    screen.keys("echo go-$((1+1)); sleep 100\r");
    screen.until("go-2");
    screen.keys("\u{3}");
    screen.until("$ ");
    screen.keys("echo back-$((1+1))\r");
    screen.until("back-2");
    screen.keys("exit 6\r");
    assert_eq!(wait(child).code, 6);
    assert!(!screen.is_raw());
    place.assert_nothing_is_left();
}

#[test]
fn a_change_of_size_passes_through() {
    let place = Place::new();
    let mut screen = Screen::new();
    let line = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done";
    let child = screen.start(&place, &["run", "-t", "--shell", line]);
    screen.until("ready");
    screen.resize(40, 120);
    // The terminal is not this process's own, so the kernel tells nobody.
    signal(&child, Signal::WINCH);
    screen.until("40 120");
    assert_eq!(wait(child).code, 0);
}

#[test]
fn the_terminal_is_restored_when_a_signal_ends_it() {
    let place = Place::new();
    let mut screen = Screen::new();
    let child =
        screen.start(&place, &["run", "-t", "--shell", "trap '' TERM; echo ready; sleep 100"]);
    screen.until("ready");
    assert!(screen.is_raw());
    signal(&child, Signal::TERM);
    signal(&child, Signal::INT);
    assert!([130, 143].contains(&wait(child).code));
    assert!(!screen.is_raw());
    place.assert_nothing_is_left();
}

#[test]
fn colours_are_shown_on_a_terminal_unless_they_are_not_wanted() {
    let place = Place::new();
    let mut screen = Screen::new();
    let child = screen.start(&place, &["detect"]);
    screen.until("\x1b[32mavailable");
    screen.until("full-snapshot");
    screen.until("remedy");
    assert_eq!(wait(child).code, 0);
}
