//! A program that stands in for Firecracker: it takes the same arguments, serves the same API on the same
//! socket and holds every request to the published table; it keeps a guest's memory of which each run
//! writes one page more, and speaks the vsock protocol. It can be told to misbehave.
//!
//! Made from this very test program, which starts itself again; blocking and by hand, so that it shares
//! nothing with the driver but the wire.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::schema::{self, RequestPhase, text_field};

pub(super) const MODE_VARIABLE: &str = "FAKE_MODE";
pub(super) const VERSION_VARIABLE: &str = "FAKE_VERSION";
/// Logs, an entry a line: the requests, and what was wrong with them.
pub(super) const REQUESTS_LOG: &str = "asked";
pub(super) const VIOLATIONS_LOG: &str = "wrong";
/// Log of the files that it found in its directory, with their first bytes, one a line.
pub(super) const FOUND_FILES_LOG: &str = "found";
/// The paths that it is to probe, one a line, and what it saw.
pub(super) const PROBE_PATHS_FILE: &str = "look-for";
pub(super) const PROBE_RESULT_FILE: &str = "seen";
/// The target of the symlinks that it is to put in place of its own files.
pub(super) const SYMLINK_TARGET_FILE: &str = "lure";

const PAGE_BYTES: u64 = 4096;

#[test]
#[ignore = "not a test: the program that the others start in Firecracker's place"]
fn becomes_the_fake() {
    let Ok(version) = std::env::var(VERSION_VARIABLE) else { return };
    let mode = std::env::var(MODE_VARIABLE).unwrap_or_default();
    let given: Vec<_> = std::env::args().skip_while(|word| word != "--").skip(1).collect();
    let known = |pair: &[String]| ["--id", "--api-sock"].contains(&pair[0].as_str());
    assert!(given.len() == 4 && given.chunks(2).all(known), "no such arguments: {given:?}");
    assert!(given.chunks(2).any(|pair| pair == ["--api-sock", "api"]), "{given:?}");
    Fake::new(&version, mode).serve_api();
}

struct Fake {
    version: (u32, u32),
    mode: String,
    state: Mutex<FakeGuest>,
    misbehaved: AtomicBool,
}

/// The machine as the API knows it.
#[derive(Default)]
struct FakeGuest {
    started: bool,
    paused: bool,
    configured: BTreeMap<String, Value>,
    /// What is in memory, by page, and which were written since it was last saved.
    pages: BTreeMap<u64, u8>,
    dirty: Vec<u64>,
    restored: bool,
    connections: usize,
    /// Whether the guest was told that its connections are reset, which a snapshot does.
    reset_told: bool,
    /// Whether nothing goes through the vsock.
    withheld: bool,
}

/// The first version in which a resume holds the vsock back until the guest acknowledges that its
/// connections were reset.
const VSOCK_RESET_VERSION: (u32, u32) = (1, 16);

type FakeAnswer = Result<Value, String>;

impl Fake {
    /// Never freed: the process ends with it.
    fn new(version: &str, mode: String) -> &'static Self {
        let mut numbers = version.split('.').map(|part| part.parse().unwrap());
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        Box::leak(Box::new(Self {
            version,
            mode,
            state: Mutex::default(),
            misbehaved: AtomicBool::new(false),
        }))
    }

    /// Whether it is told to do this: alone, or with this path.
    fn is_mode(&self, what: &str, path: &str) -> bool {
        self.mode == what || self.mode == format!("{what} {path}")
    }

    /// Whether it has not misbehaved yet; from now on it has.
    fn is_first(&self) -> bool {
        !self.misbehaved.swap(true, Ordering::SeqCst)
    }

    fn serve_api(&'static self) {
        if self.is_mode("chatty", "") {
            let piece = [b'x'; 4096];
            (0..2048).for_each(|_| io::stdout().write_all(&piece).unwrap());
            println!("\nthe last words\u{1b}[31m");
        }
        if self.is_mode("crash", "") {
            eprintln!("no KVM, no machine");
            std::process::exit(1);
        }
        if self.is_mode("deaf", "") {
            sleep_forever();
        }
        for stream in UnixListener::bind("api").unwrap().incoming() {
            let stream = stream.unwrap();
            // A peer that only checks whether the socket is open sends no request.
            thread::spawn(move || self.answer_requests(stream));
        }
    }

    fn answer_requests(&'static self, stream: UnixStream) {
        let mut reader = BufReader::new(stream);
        while let Some((method, path, body)) = read_request(&mut reader) {
            append_line(REQUESTS_LOG, &json!([method, path, body]).to_string());
            if self.misbehave_if_told(reader.get_mut(), &path) {
                return;
            }
            let answer = self.handle_request(&method, &path, &body);
            let (status, body) = match answer {
                Ok(Value::Null) => ("204 No Content", String::new()),
                Ok(body) => ("200 OK", body.to_string()),
                Err(fault) => ("400 Bad Request", json!({ "fault_message": fault }).to_string()),
            };
            write_response(reader.get_mut(), status, &body);
        }
    }

    fn misbehave_if_told(&self, stream: &mut UnixStream, path: &str) -> bool {
        if self.is_mode("silent", path) || (self.is_mode("silent-once", path) && self.is_first()) {
            sleep_forever();
        }
        if self.is_mode("die", path) {
            eprintln!("guest memory is gone");
            std::process::exit(7);
        }
        let large = || format!("{{\"fault_message\": \"{}\"}}", "y".repeat(1 << 20));
        let said = match () {
            () if self.is_mode("half", path) => {
                "HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n{\"fault_mess".to_owned()
            }
            () if self.is_mode("garbage", path) => "220 smtp.example ready\r\n\r\n".to_owned(),
            () if self.is_mode("large", path) => {
                let body = large();
                format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
            () if self.is_mode("headed", path) => {
                format!("HTTP/1.1 204 No Content\r\nX: {}", large())
            }
            () if self.is_mode("closed", path) => String::new(),
            () => return false,
        };
        // The peer may have had enough before the end.
        let _ = stream.write_all(said.as_bytes());
        true
    }

    fn handle_request(&'static self, method: &str, path: &str, body: &Value) -> FakeAnswer {
        let mut guest = self.state.lock().unwrap();
        let allowed = schema::check_request(method, path, body, self.version)
            .and_then(|operation| guest.check_allowed(operation.when));
        if let Err(wrong) = allowed {
            append_line(VIOLATIONS_LOG, &format!("{method} {path} {body}: {wrong}"));
            return Err(wrong);
        }
        if self.is_mode("refuse", path) || (self.is_mode("refuse-once", path) && self.is_first()) {
            return Err(format!("Invalid\n\u{1b}[31mthing {}", "z".repeat(5000)));
        }
        guest.configured.insert(path.to_owned(), body.clone());
        match (method, path) {
            ("PUT", "/actions") => self.run_action(&mut guest, text_field(body, "action_type")),
            ("PATCH", "/vm") => {
                guest.set_paused(text_field(body, "state") == "Paused", self.version);
                Ok(Value::Null)
            }
            ("PUT", "/snapshot/create") => {
                let saved = guest.save_snapshot(body);
                if self.is_mode("lure", "") {
                    let memory = text_field(body, "mem_file_path");
                    fs::remove_file(memory).unwrap();
                    symlink(fs::read_to_string(SYMLINK_TARGET_FILE).unwrap(), memory).unwrap();
                }
                saved
            }
            ("PUT", "/snapshot/load") => self.load_snapshot(&mut guest, body),
            ("GET", _) => Ok(json!({ "firecracker_version": "fake" })),
            _ => Ok(Value::Null),
        }
    }

    fn run_action(&'static self, guest: &mut FakeGuest, action: &str) -> FakeAnswer {
        if action != "InstanceStart" {
            return if guest.started { Ok(Value::Null) } else { Err("not started".into()) };
        }
        if guest.started {
            return Err("already started".into());
        }
        let source = guest.configured.get("/boot-source").ok_or("no kernel")?;
        for name in ["kernel_image_path", "initrd_path"] {
            check_readable(text_field(source, name))?;
        }
        guest.check_disks()?;
        if self.is_mode("look", "") {
            probe_paths();
        }
        let socket =
            guest.configured.get("/vsock").map(|body| text_field(body, "uds_path").to_owned());
        guest.started = true;
        guest.write_next_page();
        self.listen_on_vsock(socket)
    }

    fn load_snapshot(&'static self, guest: &mut FakeGuest, body: &Value) -> FakeAnswer {
        let state = fs::read(text_field(body, "snapshot_path")).map_err(|e| e.to_string())?;
        let state: Value = serde_json::from_slice(&state).map_err(|e| e.to_string())?;
        let memory = text_field(&body["mem_backend"], "backend_path");
        let file = File::open(memory).map_err(|e| e.to_string())?;
        let size = state["mem_size_mib"].as_u64().unwrap() << 20;
        if file.metadata().unwrap().len() != size {
            return Err("the memory file has another size than the machine".into());
        }
        guest.pages = read_pages(&file, size);
        guest.configured = serde_json::from_value(state["configured"].clone()).unwrap();
        guest.check_disks()?;
        (guest.started, guest.paused, guest.restored) = (true, true, true);
        // It was told when it was saved.
        guest.reset_told = true;
        if body["resume_vm"] == true {
            guest.set_paused(false, self.version);
        }
        self.listen_on_vsock(Some(text_field(&state, "uds_path").to_owned()))
    }

    /// Takes connections for the guest.
    fn listen_on_vsock(&'static self, socket: Option<String>) -> FakeAnswer {
        let Some(socket) = socket else { return Ok(Value::Null) };
        if self.is_mode("divert", "") {
            symlink(fs::read_to_string(SYMLINK_TARGET_FILE).unwrap(), socket).unwrap();
            return Ok(Value::Null);
        }
        let listener = UnixListener::bind(&socket).map_err(|e| format!("{socket}: {e}"))?;
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                thread::spawn(move || self.serve_connection(stream));
            }
        });
        Ok(Value::Null)
    }

    fn serve_connection(&self, mut stream: UnixStream) {
        let (number, restored) = {
            let mut guest = self.state.lock().unwrap();
            guest.connections += 1;
            (guest.connections, guest.restored)
        };
        let asked = read_one_line(&mut stream);
        if asked != "CONNECT 1024\n" {
            return append_line(
                VIOLATIONS_LOG,
                &format!("{asked:?} is not what the guest listens for"),
            );
        }
        append_line("connected", &number.to_string());
        self.wait_while_withheld();
        match self.mode.as_str() {
            // No process listens inside yet: the guest resets the connection.
            "early" if number < 4 => return,
            // Held back until the guest has seen the reset, and lost with it.
            "withhold" if restored && number < 3 => sleep_forever(),
            "mute" => sleep_forever(),
            "nonsense" => return stream.write_all(b"NO\n").unwrap(),
            "endless" => loop {
                if stream.write_all(b"OK 1000").is_err() {
                    return;
                }
            },
            _ => {}
        }
        // What follows at once must not be taken for a part of the line.
        stream.write_all(format!("OK {}\nhello ", 1_073_741_824 + number).as_bytes()).unwrap();
        let mut piece = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            self.wait_while_withheld();
            if stream.write_all(&piece[..count]).is_err() {
                return;
            }
        }
    }

    fn wait_while_withheld(&self) {
        while self.state.lock().unwrap().withheld {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl FakeGuest {
    fn check_allowed(&self, when: RequestPhase) -> Result<(), String> {
        let fresh = self.configured.keys().all(|path| path == "/logger" || path == "/metrics");
        let allowed = match when {
            RequestPhase::Always => true,
            RequestPhase::Before => !self.started,
            RequestPhase::Fresh => !self.started && fresh,
            RequestPhase::After => self.started,
            RequestPhase::Paused => self.started && self.paused,
        };
        if allowed { Ok(()) } else { Err(format!("only allowed: {when:?}")) }
    }

    /// The guest writes one page more: the next one, with its number.
    fn write_next_page(&mut self) {
        let page = self.pages.len() as u64;
        self.pages.insert(page, page as u8 + 1);
        self.dirty.push(page);
    }

    fn set_paused(&mut self, paused: bool, version: (u32, u32)) {
        if self.paused && !paused {
            self.write_next_page();
            self.withheld = version >= VSOCK_RESET_VERSION && !self.reset_told;
            self.reset_told = false;
        }
        self.paused = paused;
    }

    fn check_disks(&self) -> Result<(), String> {
        let drives = self.configured.iter().filter(|(path, _)| path.starts_with("/drives/"));
        for (_, drive) in drives {
            let path = text_field(drive, "path_on_host");
            check_readable(path)?;
            if drive["is_read_only"] == false {
                OpenOptions::new().write(true).open(path).map_err(|e| format!("{path}: {e}"))?;
            }
        }
        Ok(())
    }

    /// As Firecracker does: a partial memory file goes over a whole one, if that is there.
    fn save_snapshot(&mut self, body: &Value) -> FakeAnswer {
        let machine = &self.configured["/machine-config"];
        let size = machine["mem_size_mib"].as_u64().unwrap() << 20;
        let path = text_field(body, "mem_file_path");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| format!("{path}: {e}"))?;
        if file.metadata().unwrap().len() != size {
            file.set_len(0).unwrap();
            file.set_len(size).unwrap();
        }
        let full = text_field(body, "snapshot_type") != "Diff";
        for (page, byte) in self.pages.iter().filter(|(page, _)| full || self.dirty.contains(page))
        {
            file.write_all_at(&[*byte; PAGE_BYTES as usize], page * PAGE_BYTES).unwrap();
        }
        self.dirty.clear();
        self.reset_told = true;
        let vsock = self.configured.get("/vsock").map_or("", |body| text_field(body, "uds_path"));
        let state = json!({
            "mem_size_mib": size >> 20,
            "uds_path": vsock,
            "configured": self.configured,
        });
        fs::write(text_field(body, "snapshot_path"), state.to_string())
            .map_err(|e| e.to_string())?;
        Ok(Value::Null)
    }
}

/// The first byte of every page that is not empty.
pub(super) fn read_pages(file: &File, size: u64) -> BTreeMap<u64, u8> {
    let mut found = BTreeMap::new();
    for page in 0..size / PAGE_BYTES {
        let mut byte = [0];
        file.read_exact_at(&mut byte, page * PAGE_BYTES).unwrap();
        if byte[0] != 0 {
            found.insert(page, byte[0]);
        }
    }
    found
}

fn check_readable(path: &str) -> Result<(), String> {
    let mut begins = Vec::new();
    let read = File::open(path).and_then(|file| file.take(32).read_to_end(&mut begins));
    append_line(FOUND_FILES_LOG, &format!("{path} {}", begins.escape_ascii()));
    read.map(drop).map_err(|error| format!("{path}: {error}"))
}

/// Tries to open what a process in its place must not have.
fn probe_paths() {
    let wanted = fs::read_to_string(PROBE_PATHS_FILE).unwrap();
    let files: Vec<_> = wanted.lines().map(|path| File::open(path).is_ok()).collect();
    let interfaces = fs::read_to_string("/proc/net/dev").unwrap();
    let interfaces = interfaces.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let interfaces: Vec<_> = interfaces.collect();
    let writable = |path: &&str| OpenOptions::new().append(true).open(path).is_ok();
    let all = ["kernel", "initramfs", "disk0", "disk1", "/stockade/firecracker", REQUESTS_LOG];
    let written: Vec<_> = all.into_iter().filter(writable).collect();
    let shown = fs::read_dir("/stockade").unwrap().map(|entry| entry.unwrap().file_name());
    let mut shown: Vec<_> = shown.map(|name| name.into_string().unwrap()).collect();
    shown.sort();
    let seen = json!({
        "files": files, "interfaces": interfaces, "written": written, "shown": shown,
    });
    fs::write(PROBE_RESULT_FILE, seen.to_string()).unwrap();
}

fn sleep_forever() -> ! {
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

fn append_line(file: &str, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn read_one_line(stream: &mut UnixStream) -> String {
    let mut line = String::new();
    let mut byte = [0];
    while !line.ends_with('\n') && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        line.push(char::from(byte[0]));
    }
    line
}

fn read_request(reader: &mut BufReader<UnixStream>) -> Option<(String, String, Value)> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    let [method, path, protocol] = first.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("not HTTP: {first:?}")
    };
    assert_eq!(protocol, "HTTP/1.1");
    let (mut length, mut kind) = (0, String::new());
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let Some((name, value)) = header.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "content-type" => kind = value.trim().to_owned(),
            "transfer-encoding" | "expect" => {
                append_line(VIOLATIONS_LOG, &format!("Firecracker reads no {name}"))
            }
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    if length > 0 && kind != "application/json" {
        append_line(VIOLATIONS_LOG, &format!("a body of type {kind:?}"));
    }
    if length > 51_200 {
        append_line(VIOLATIONS_LOG, &format!("a body of {length} bytes"));
    }
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Some((method.to_owned(), path.to_owned(), body))
}

fn write_response(stream: &mut UnixStream, status: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status}\r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\
         Content-Type: application/json\r\n"
    );
    let length =
        if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    // Who asked may be gone.
    let _ = stream.write_all(format!("{head}{length}\r\n{body}").as_bytes());
}
