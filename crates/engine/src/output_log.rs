//! Output logs: what lasting executions have written, kept on disk for readers who come after the end.
//!
//! What is in them is the guest's, so each is bounded: the beginning and the newest part stay, and a reader is
//! told what is missing in between. All together are bounded by count, bytes and age. A log that cannot be
//! written ends; the program goes on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::OFlags;
use stockade_core::{Error, ErrorCode, JobId, Result, StreamId};
use stockade_fs::{Directory, Locked, Sharing, StateDir};

use crate::history::OutputEvent;

/// Directory of the output logs, below the state directory.
const LOG_DIR: &str = "logs";
/// File whose modification time is the time of the last pruning.
const PRUNE_STAMP_FILE: &str = "pruned";
/// How often logs are pruned by engines that keep none.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
/// After how many logs of one engine they are pruned, however short ago that was.
const LOGS_BETWEEN_PRUNES: usize = 32;
/// The longest piece of output in one frame.
const MAX_FRAME_BYTES: usize = 256 << 10;
/// Stream, number, position, length.
const HEADER_BYTES: usize = 1 + 8 + 8 + 4;
/// Chunks of one log that stay: the first one, and the last two.
const KEPT_CHUNKS: u64 = 3;

/// How much output is kept on disk, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLogBounds {
    /// Bytes of one file. A log has three at most: the beginning and the newest two.
    pub chunk_bytes: u64,
    /// Bytes of all logs, except those that are being written.
    pub total_bytes: u64,
    /// Most logs, except those that are being written.
    pub logs: usize,
    /// How long one is kept after its last output.
    pub age: Duration,
}

impl Default for OutputLogBounds {
    fn default() -> Self {
        Self {
            chunk_bytes: 4 << 20,
            total_bytes: 1 << 30,
            logs: 1000,
            age: Duration::from_secs(7 * 86_400),
        }
    }
}

/// The output logs of one state directory.
#[derive(Debug, Clone)]
pub struct OutputLogs {
    dir: Arc<Directory>,
    bounds: OutputLogBounds,
    /// How many logs were made by this engine.
    made: Arc<AtomicUsize>,
}

/// One log while its program runs. The first output makes it.
#[derive(Debug)]
pub(crate) struct OutputLogWriter {
    logs: OutputLogs,
    job: JobId,
    /// The first chunk, locked against pruning of the log.
    first: Option<Locked>,
    /// The chunk that is written to, unless that is the first.
    newest: Option<File>,
    chunk: u64,
    chunk_bytes: u64,
    /// The next event, and how many bytes came before it.
    seq: u64,
    position: u64,
    failed: bool,
}

/// One log, from its beginning to what was there when it was opened.
#[derive(Debug)]
pub struct OutputLogReader {
    logs: OutputLogs,
    job: JobId,
    chunks: std::vec::IntoIter<u64>,
    open: Option<BufReader<File>>,
    /// The event that comes next, and how many bytes came before it.
    seq: u64,
    position: u64,
    /// A frame that follows a gap.
    held: Option<OutputFrame>,
}

#[derive(Debug)]
struct OutputFrame {
    stream: StreamId,
    seq: u64,
    position: u64,
    data: Bytes,
}

impl OutputLogs {
    /// Opens the logs of a state directory.
    pub fn open(state: &StateDir, bounds: OutputLogBounds) -> Result<Self> {
        Ok(Self { dir: Arc::new(state.subdirectory(LOG_DIR)?), bounds, made: Arc::default() })
    }

    pub(crate) fn writer(&self, job: &JobId) -> OutputLogWriter {
        OutputLogWriter {
            logs: self.clone(),
            job: job.clone(),
            first: None,
            newest: None,
            chunk: 0,
            chunk_bytes: 0,
            seq: 0,
            position: 0,
            failed: false,
        }
    }

    /// Where the log of an execution is, below the state directory, if there is one.
    pub fn reference(&self, job: &JobId) -> Option<String> {
        let there = self.dir.exists(&chunk_name(job, 0)).unwrap_or(false);
        there.then(|| format!("{LOG_DIR}/{job}"))
    }

    /// The log of an execution, if there is one.
    pub fn read(&self, job: &JobId) -> Result<Option<OutputLogReader>> {
        let names = self.dir.names().map_err(|error| self.failed("read a log", error))?;
        let mut chunks: Vec<u64> = names
            .iter()
            .filter_map(|name| parse_chunk_name(name))
            .filter_map(|(of, chunk)| (of == *job).then_some(chunk))
            .collect();
        chunks.sort_unstable();
        Ok((!chunks.is_empty()).then(|| OutputLogReader {
            logs: self.clone(),
            job: job.clone(),
            chunks: chunks.into_iter(),
            open: None,
            seq: 0,
            position: 0,
            held: None,
        }))
    }

    /// Removes logs that are too old, and the oldest where there are too many. Those that are being written stay.
    pub fn prune(&self) -> Result<()> {
        self.prune_now().map_err(|error| self.failed("prune the logs", error))
    }

    /// The same, unless a process has done so within the last minutes.
    pub(crate) fn prune_if_due(&self) -> Result<()> {
        let due = || -> io::Result<bool> {
            let stamp = match self.dir.open(PRUNE_STAMP_FILE, OFlags::RDONLY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(self
                        .dir
                        .names()?
                        .iter()
                        .any(|name| parse_chunk_name(name).is_some()));
                }
                opened => opened?,
            };
            // A time in the future is no reason to keep logs for ever.
            let elapsed = stamp.metadata()?.modified()?.elapsed();
            Ok(elapsed.is_err() || elapsed.is_ok_and(|elapsed| elapsed > PRUNE_INTERVAL))
        };
        if due().map_err(|error| self.failed("prune the logs", error))? {
            self.prune()
        } else {
            Ok(())
        }
    }

    fn prune_now(&self) -> io::Result<()> {
        self.dir
            .open(PRUNE_STAMP_FILE, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?
            .write_all(b"\n")?;
        let now = SystemTime::now();
        let mut logs: Vec<(SystemTime, u64, JobId, Vec<u64>)> = Vec::new();
        for (job, chunks) in self.chunks_by_job()? {
            if let Some((newest, bytes)) = self.measure(&job, &chunks)? {
                logs.push((newest, bytes, job, chunks));
            }
        }
        logs.sort_by_key(|(newest, ..)| std::cmp::Reverse(*newest));
        let (mut kept, mut total) = (0, 0u64);
        for (newest, bytes, job, chunks) in logs {
            let too_old = now.duration_since(newest).is_ok_and(|age| age > self.bounds.age);
            let too_much = total.saturating_add(bytes) > self.bounds.total_bytes;
            if too_old || too_much || kept >= self.bounds.logs {
                self.remove(&job, &chunks)?;
            } else {
                (kept, total) = (kept + 1, total.saturating_add(bytes));
            }
        }
        Ok(())
    }

    pub(crate) fn chunks_by_job(&self) -> io::Result<BTreeMap<JobId, Vec<u64>>> {
        let mut found: BTreeMap<JobId, Vec<u64>> = BTreeMap::new();
        for (job, chunk) in self.dir.names()?.iter().filter_map(|name| parse_chunk_name(name)) {
            found.entry(job).or_default().push(chunk);
        }
        Ok(found)
    }

    /// When a log was written to last, and its bytes; nothing if it is gone.
    pub(crate) fn measure(
        &self,
        job: &JobId,
        chunks: &[u64],
    ) -> io::Result<Option<(SystemTime, u64)>> {
        let mut measured: Option<(SystemTime, u64)> = None;
        for chunk in chunks {
            let Some(file) = self.open_chunk(job, *chunk)? else { continue };
            let found = file.metadata()?;
            let (newest, bytes) = measured.unwrap_or((SystemTime::UNIX_EPOCH, 0));
            measured = Some((newest.max(found.modified()?), bytes.saturating_add(found.len())));
        }
        Ok(measured)
    }

    /// Removes a log, the first chunk last: what is left of one by a death half-way is found again.
    pub(crate) fn remove(&self, job: &JobId, chunks: &[u64]) -> io::Result<()> {
        let first = self.open_chunk(job, 0)?;
        // The writer of a log holds this lock.
        let lock = first.map(|first| Locked::attempt(first, Sharing::Exclusive)).transpose()?;
        if matches!(lock, Some(Err(_))) {
            return Ok(());
        }
        let mut chunks = chunks.to_vec();
        chunks.sort_unstable();
        chunks.iter().rev().try_for_each(|chunk| self.dir.remove(&chunk_name(job, *chunk)))
    }

    pub(crate) fn open_chunk(&self, job: &JobId, chunk: u64) -> io::Result<Option<File>> {
        match self.dir.open(&chunk_name(job, chunk), OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    pub(crate) fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        let message = format!("`{}` cannot be used", self.dir.path().display());
        Error::new(ErrorCode::StateUnavailable, operation, message)
            .remedy("make the directory writable for this user, with some space left")
            .source(error)
    }
}

fn chunk_name(job: &JobId, chunk: u64) -> String {
    format!("{job}.{chunk}")
}

fn parse_chunk_name(name: &str) -> Option<(JobId, u64)> {
    let (job, chunk) = name.split_once('.')?;
    Some((job.parse().ok()?, chunk.parse().ok()?))
}

impl OutputLogWriter {
    /// Adds a piece of output. After a failure nothing more is added, and the reader sees that.
    pub(crate) fn write(&mut self, stream: StreamId, data: &[u8]) {
        let seq = self.seq;
        self.seq += 1;
        for piece in data.chunks(MAX_FRAME_BYTES) {
            if !self.failed && self.write_frame(stream, seq, piece).is_err() {
                self.failed = true;
            }
            self.position += piece.len() as u64;
        }
    }

    fn write_frame(&mut self, stream: StreamId, seq: u64, data: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(HEADER_BYTES + data.len());
        frame.push(match stream {
            StreamId::Stdout => 1,
            StreamId::Stderr => 2,
        });
        frame.extend_from_slice(&seq.to_le_bytes());
        frame.extend_from_slice(&self.position.to_le_bytes());
        let length = u32::try_from(data.len()).map_err(io::Error::other)?;
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(data);
        let bytes = frame.len() as u64;
        if self.chunk_bytes > 0 && self.chunk_bytes + bytes > self.logs.bounds.chunk_bytes {
            self.begin_next_chunk()?;
        }
        self.chunk_bytes += bytes;
        self.file()?.write_all(&frame)
    }

    /// The file that is written to.
    fn file(&mut self) -> io::Result<&File> {
        if self.first.is_none() {
            let file = self.make_chunk(0)?;
            let locked = Locked::attempt(file, Sharing::Exclusive)?;
            self.first = Some(locked.map_err(|_| io::ErrorKind::ResourceBusy)?);
            if self.logs.made.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOGS_BETWEEN_PRUNES) {
                self.logs.prune_now()?;
            }
        }
        match (&self.newest, &self.first) {
            (Some(newest), _) => Ok(newest),
            (None, Some(first)) => Ok(first.file()),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn make_chunk(&self, chunk: u64) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        self.logs.dir.open(&chunk_name(&self.job, chunk), flags)
    }

    /// The one that has to go goes first, so that there are never more than may be.
    fn begin_next_chunk(&mut self) -> io::Result<()> {
        self.chunk += 1;
        if let Some(oldest) = self.chunk.checked_sub(KEPT_CHUNKS - 1).filter(|oldest| *oldest > 0) {
            self.logs.dir.remove(&chunk_name(&self.job, oldest))?;
        }
        self.newest = Some(self.make_chunk(self.chunk)?);
        self.chunk_bytes = 0;
        Ok(())
    }
}

impl OutputLogReader {
    /// The next event; nothing after the last. Never an end: how it ended is in the record.
    pub fn next_event(&mut self) -> Result<Option<OutputEvent>> {
        let event = self.advance();
        event.map_err(|error| self.logs.failed("read a log", error))
    }

    /// How many bytes of output the events so far stand for, those in gaps included.
    pub const fn position(&self) -> u64 {
        self.position
    }

    fn advance(&mut self) -> io::Result<Option<OutputEvent>> {
        let Some(frame) = self.next_frame()? else { return Ok(None) };
        if frame.position > self.position {
            let bytes = frame.position - self.position;
            let events = frame.seq.saturating_sub(self.seq);
            (self.position, self.seq) = (frame.position, frame.seq);
            self.held = Some(frame);
            return Ok(Some(OutputEvent::Gap { events, bytes }));
        }
        let OutputFrame { stream, seq, data, position } = frame;
        self.position = position.saturating_add(data.len() as u64);
        self.seq = seq.saturating_add(1);
        Ok(Some(OutputEvent::Output { seq, stream, data }))
    }

    fn next_frame(&mut self) -> io::Result<Option<OutputFrame>> {
        if let Some(frame) = self.held.take() {
            return Ok(Some(frame));
        }
        loop {
            if let Some(chunk) = &mut self.open {
                if let Some(frame) = read_frame(chunk)? {
                    return Ok(Some(frame));
                }
                self.open = None;
            }
            let Some(chunk) = self.chunks.next() else { return Ok(None) };
            // One that its writer has removed meanwhile is a gap.
            self.open = self.logs.open_chunk(&self.job, chunk)?.map(BufReader::new);
        }
    }
}

/// The next frame; nothing at the end, or where the writer died in the middle of one.
fn read_frame(chunk: &mut BufReader<File>) -> io::Result<Option<OutputFrame>> {
    let mut header = [0; HEADER_BYTES];
    if !fill_buffer(chunk, &mut header)? {
        return Ok(None);
    }
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let stream = match header[0] {
        1 => StreamId::Stdout,
        2 => StreamId::Stderr,
        _ => return Ok(None),
    };
    let length = u32::from_le_bytes([header[17], header[18], header[19], header[20]]) as usize;
    if length > MAX_FRAME_BYTES {
        return Ok(None);
    }
    let mut data = vec![0; length];
    if !fill_buffer(chunk, &mut data)? {
        return Ok(None);
    }
    Ok(Some(OutputFrame { stream, seq: number(1), position: number(9), data: data.into() }))
}

/// Whether there was as much as this.
fn fill_buffer(chunk: &mut BufReader<File>, buffer: &mut [u8]) -> io::Result<bool> {
    match chunk.read_exact(buffer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SMALL_BOUNDS: OutputLogBounds = OutputLogBounds {
        chunk_bytes: 100,
        total_bytes: 1 << 20,
        logs: 10,
        age: Duration::from_secs(3600),
    };

    struct LogBench {
        dir: tempfile::TempDir,
        logs: OutputLogs,
    }

    fn build_bench(bounds: OutputLogBounds) -> LogBench {
        let dir = tempfile::tempdir().unwrap();
        let logs = OutputLogs::open(&StateDir::open(dir.path()).unwrap(), bounds).unwrap();
        LogBench { dir, logs }
    }

    impl LogBench {
        fn files(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.dir.path().join(LOG_DIR)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.filter(|name| name != PRUNE_STAMP_FILE).collect();
            names.sort();
            names
        }

        fn events(&self, job: &str) -> Vec<OutputEvent> {
            let mut reader = self.logs.read(&parse_job_id(job)).unwrap().unwrap();
            std::iter::from_fn(|| reader.next_event().unwrap()).collect()
        }
    }

    fn parse_job_id(job: &str) -> JobId {
        job.parse().unwrap()
    }

    fn build_output_event(seq: u64, stream: StreamId, data: &'static [u8]) -> OutputEvent {
        OutputEvent::Output { seq, stream, data: Bytes::from_static(data) }
    }

    #[test]
    fn what_was_written_is_read_back_apart_and_in_order() {
        let bench = build_bench(SMALL_BOUNDS);
        let mut writer = bench.logs.writer(&parse_job_id("a"));
        writer.write(StreamId::Stdout, b"out");
        writer.write(StreamId::Stderr, b"\0err");
        drop(writer);
        let expected = [
            build_output_event(0, StreamId::Stdout, b"out"),
            build_output_event(1, StreamId::Stderr, b"\0err"),
        ];
        assert_eq!(bench.events("a"), expected);
        assert_eq!(bench.logs.reference(&parse_job_id("a")).as_deref(), Some("logs/a"));
        assert!(bench.logs.read(&parse_job_id("b")).unwrap().is_none());
    }

    #[test]
    fn the_beginning_and_the_newest_stay_and_the_gap_is_told() {
        let bench = build_bench(SMALL_BOUNDS);
        let mut writer = bench.logs.writer(&parse_job_id("a"));
        for _ in 0..20 {
            writer.write(StreamId::Stdout, &[b'x'; 60]);
        }
        assert_eq!(bench.files(), ["a.0", "a.18", "a.19"]);
        let events = bench.events("a");
        assert_eq!(events[1], OutputEvent::Gap { events: 17, bytes: 17 * 60 });
        let seqs: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                OutputEvent::Output { seq, .. } => Some(*seq),
                OutputEvent::Gap { .. } | OutputEvent::End(_) => None,
            })
            .collect();
        assert_eq!(seqs, [0, 18, 19]);
    }

    #[test]
    fn a_frame_that_was_cut_ends_its_chunk() {
        let bench = build_bench(SMALL_BOUNDS);
        let mut writer = bench.logs.writer(&parse_job_id("a"));
        writer.write(StreamId::Stdout, b"whole");
        writer.write(StreamId::Stdout, b"cut off");
        let path = bench.dir.path().join("logs/a.0");
        let length = std::fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(length - 3).unwrap();
        assert_eq!(bench.events("a"), [build_output_event(0, StreamId::Stdout, b"whole")]);
    }

    #[test]
    fn a_log_is_its_users_alone() {
        let bench = build_bench(SMALL_BOUNDS);
        bench.logs.writer(&parse_job_id("a")).write(StreamId::Stdout, b"x");
        let mode = |name: &str| {
            std::fs::metadata(bench.dir.path().join(name)).unwrap().permissions().mode() & 0o777
        };
        assert_eq!((mode("logs"), mode("logs/a.0")), (0o700, 0o600));
    }

    #[test]
    fn old_logs_and_those_beyond_the_bounds_go_and_one_that_is_written_stays() {
        let old = OutputLogBounds { age: Duration::ZERO, ..SMALL_BOUNDS };
        let many = OutputLogBounds { logs: 1, ..SMALL_BOUNDS };
        let large = OutputLogBounds { total_bytes: 10, ..SMALL_BOUNDS };
        for (bounds, left) in [(old, 1), (many, 2), (large, 1)] {
            let bench = build_bench(bounds);
            let mut written = bench.logs.writer(&parse_job_id("written"));
            written.write(StreamId::Stdout, b"x");
            for job in ["a", "b", "c"] {
                bench.logs.writer(&parse_job_id(job)).write(StreamId::Stdout, &[b'x'; 60]);
            }
            // Older than all others, so that only its lock keeps it.
            let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
            let file = File::options().write(true).open(bench.dir.path().join("logs/written.0"));
            file.unwrap().set_modified(past).unwrap();
            bench.logs.prune().unwrap();
            assert_eq!(bench.files().len(), left, "{bounds:?}: {:?}", bench.files());
            assert!(bench.files().contains(&"written.0".to_owned()));
        }
    }
}
