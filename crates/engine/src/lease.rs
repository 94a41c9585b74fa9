//! Leases: every sandbox is on disk before it exists, so that a later process finds what a dead engine left
//! (C-31).
//!
//! A lease is a file whose lock its owner holds for life. The kernel frees the lock when the owner dies, so
//! that no process has to guess from process ids. No lease file is ever visible under its name without its
//! lock being held, except after its owner's death. A child that is forked without an exec must close the
//! descriptors it inherits, or the lease lives on with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stockade_core::{BackendName, Error, ErrorCode, Limits, Result, SandboxId, TenantName};
use stockade_fs::{
    Directory, LOCK_TIMEOUT, Locked, Sharing, StateDir, Timestamp, draft_name, find_foreign_file,
};

use crate::config::Quota;
use crate::lease_quota::check_lease_quota;

/// The longest lease file.
const MAX_LEASE: u64 = 64 << 10;
const LEASE_SUFFIX: &str = ".json";
const DRAFT_PREFIX: &str = "lease";
const KILL_SUFFIX: &str = ".kill";
/// Lock file that is held while locks are probed, so that no probe is mistaken for an owner.
const PROBE_LOCK_FILE: &str = "lock";
/// Attempts to create and lock a file: a reaper removes a draft that its maker has not locked yet.
const MAX_LOCK_ATTEMPTS: usize = 8;

/// What a lease says about its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseBody {
    /// The sandbox.
    pub id: SandboxId,
    /// The backend that can destroy it.
    pub backend: BackendName,
    /// The tenant it is run for.
    pub tenant: TenantName,
    /// When the lease was taken.
    pub created: Timestamp,
    /// The owner's process id, for people: nothing is decided by it.
    pub owner: u32,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it is prepared for a caller who has not come yet. It is the tenant's all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// The limits that something enforces, by which quotas count it. None in a lease from before they were kept.
    #[serde(default, skip_serializing_if = "is_unlimited")]
    pub limits: Limits,
}

/// The leases of one state directory.
#[derive(Debug, Clone)]
pub struct Leases(Arc<Directory>);

/// A lease that this process owns. Dropping it leaves the file for a reaper to find; releasing it is
/// for a sandbox that is known to be gone.
#[derive(Debug)]
pub struct Lease(LeaseHolding);

/// A dead owner's lease, locked so that no other process reaps it. Dropping it gives it back.
#[derive(Debug)]
pub struct StaleLease(LeaseHolding);

/// A request to end a sandbox of another process, which learns by it that its sandbox is ended on purpose.
/// It counts while it is held, so that one whose maker was killed means nothing.
#[derive(Debug)]
pub struct KillRequest {
    dir: Arc<Directory>,
    name: String,
    _lock: Locked,
}

/// One lease as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseInfo {
    /// What it says.
    pub body: LeaseBody,
    /// Whether its lock is held: by its owner, or by a reaper at work.
    pub alive: bool,
}

/// A file among the leases that is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MalformedLease {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: String,
    /// Whether its lock is held: a sandbox may live that cannot be counted.
    pub held: bool,
}

/// Every lease there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseListing {
    /// The leases, by sandbox id.
    pub leases: Vec<LeaseInfo>,
    /// Files that are none, for a person to look at: they are never removed.
    pub malformed: Vec<MalformedLease>,
}

#[derive(Debug)]
struct LeaseHolding {
    dir: Arc<Directory>,
    body: LeaseBody,
    _lock: Locked,
}

impl LeaseBody {
    /// A lease of this process, from now.
    pub fn new(id: SandboxId, backend: BackendName, tenant: TenantName) -> Self {
        let owner = std::process::id();
        let (created, labels) = (Timestamp::now(), BTreeMap::new());
        let (ready, limits) = (false, Limits::default());
        Self { id, backend, tenant, created, owner, labels, ready, limits }
    }
}

impl Leases {
    /// Opens the leases of a state directory.
    pub fn open(state: &StateDir) -> Result<Self> {
        Ok(Self(Arc::new(state.subdirectory("leases")?)))
    }

    /// Takes a lease for a sandbox that is about to be created, if the quota of its tenant has room for it
    /// beside the live ones.
    pub fn acquire(&self, body: LeaseBody, quota: Quota) -> Result<Lease> {
        const ACQUIRE_OPERATION: &str = "take a lease";
        let json = self.encode(ACQUIRE_OPERATION, &body)?;
        // Held until the lease is there, so that no other counts in between.
        let counted = quota.counts_leases();
        let _probing = counted.then(|| self.within_quota(&body, &quota)).transpose()?;
        let lock = self.place(&body.id, &json, Directory::link).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                return in_use(&body.id);
            }
            self.failed(ACQUIRE_OPERATION, error)
        })?;
        Ok(Lease(LeaseHolding { dir: Arc::clone(&self.0), body, _lock: lock }))
    }

    fn encode(&self, operation: &'static str, body: &LeaseBody) -> Result<Vec<u8>> {
        let json =
            serde_json::to_vec(body).map_err(|error| self.failed(operation, error.into()))?;
        if json.len() as u64 > MAX_LEASE {
            let message = format!("the labels take more than {MAX_LEASE} bytes");
            return Err(Error::new(ErrorCode::TooLarge, operation, message).remedy("shorten them"));
        }
        Ok(json)
    }

    fn within_quota(&self, new: &LeaseBody, quota: &Quota) -> Result<Locked> {
        let probing = self.lock_for_probing()?;
        let LeaseListing { leases, malformed } = self.list_leases(&probing)?;
        if let Some(malformed) = malformed.iter().find(|malformed| malformed.held) {
            return Err(uncounted_lease(malformed));
        }
        let live = leases.into_iter().filter(|info| info.alive).map(|info| info.body);
        let theirs: Vec<_> = live.filter(|body| body.tenant == new.tenant).collect();
        check_lease_quota(&theirs, new, quota)?;
        Ok(probing)
    }

    /// Writes a lease under a name of its own, takes its lock, and only then gives it its place.
    fn place(&self, id: &SandboxId, json: &[u8], put: LeasePut) -> io::Result<Locked> {
        for _ in 0..MAX_LOCK_ATTEMPTS {
            match self.place_once(id, json, put) {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from(io::ErrorKind::ResourceBusy))
    }

    fn place_once(&self, id: &SandboxId, json: &[u8], put: LeasePut) -> io::Result<Option<Locked>> {
        let draft = draft_name(DRAFT_PREFIX);
        let file = self.0.open(&draft, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        let Ok(lock) = Locked::attempt(file, Sharing::Exclusive)? else { return Ok(None) };
        let placed = lock.file().write_all(json).and_then(|()| put(&self.0, &draft, &name_of(id)));
        self.0.remove(&draft)?;
        placed.map(|()| Some(lock))
    }

    /// Every lease of every engine that uses this directory.
    pub fn list(&self) -> Result<LeaseListing> {
        let probing = self.lock_for_probing()?;
        self.list_leases(&probing)
    }

    /// Takes over the leases whose owners are dead, each for one taker only, and clears away
    /// what owners left that died while they took one.
    pub fn claim_stale(&self) -> Result<Vec<StaleLease>> {
        let _probing = self.lock_for_probing()?;
        let mut stale = Vec::new();
        for name in self.names()? {
            if name.starts_with(&format!(".{DRAFT_PREFIX}-")) || name.ends_with(KILL_SUFFIX) {
                self.clear(&name).map_err(|error| self.failed("clear a lease", error))?;
            } else if name.ends_with(LEASE_SUFFIX) {
                stale.extend(self.claim(&name)?);
            }
        }
        Ok(stale)
    }

    /// Says that a sandbox is about to be ended on purpose. To be held until its lease is gone.
    pub fn request_kill(&self, id: &SandboxId) -> Result<KillRequest> {
        const REQUEST_KILL_OPERATION: &str = "ask for the end of a sandbox";
        let failed = |error| self.failed(REQUEST_KILL_OPERATION, error);
        let name = kill_name_of(id);
        for _ in 0..MAX_LOCK_ATTEMPTS {
            let file = self.0.open(&name, OFlags::RDWR | OFlags::CREATE).map_err(failed)?;
            let locked = Locked::within(file, Sharing::Shared, LOCK_TIMEOUT).map_err(failed)?;
            // Another one that has just ended may have removed it.
            if let Some(lock) = locked
                && !is_gone(lock.file()).map_err(failed)?
            {
                return Ok(KillRequest { dir: Arc::clone(&self.0), name, _lock: lock });
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// Whether a process is ending this sandbox on purpose.
    pub fn kill_is_requested(&self, id: &SandboxId) -> Result<bool> {
        let failed = |error| self.failed("look for the end of a sandbox", error);
        let Some(file) =
            absent_is_none(self.0.open(&kill_name_of(id), OFlags::RDWR)).map_err(failed)?
        else {
            return Ok(false);
        };
        // Excludes other probes, whose lock would be mistaken for a request.
        let _probing = self.lock_for_probing()?;
        Ok(Locked::attempt(file, Sharing::Exclusive).map_err(failed)?.is_err())
    }

    fn claim(&self, name: &str) -> Result<Option<StaleLease>> {
        let failed = |error| self.failed("claim a lease", error);
        let Some(SeenLease { file, body: Ok(body) }) = self.read_lease(name).map_err(failed)?
        else {
            return Ok(None);
        };
        let Ok(lock) = Locked::attempt(file, Sharing::Exclusive).map_err(failed)? else {
            return Ok(None);
        };
        // Its owner may have released it, or a reaper finished, since the file was opened.
        if is_gone(lock.file()).map_err(failed)? {
            return Ok(None);
        }
        let dir = Arc::clone(&self.0);
        Ok(Some(StaleLease(LeaseHolding { dir, body, _lock: lock })))
    }

    fn clear(&self, draft: &str) -> io::Result<()> {
        let Some(file) = absent_is_none(self.0.open(draft, OFlags::RDWR))? else {
            return Ok(());
        };
        match Locked::attempt(file, Sharing::Exclusive)? {
            Ok(_lock) => self.0.remove(draft),
            Err(_owned) => Ok(()),
        }
    }

    fn list_leases(&self, _probing: &Locked) -> Result<LeaseListing> {
        let mut listing = LeaseListing::default();
        for name in self.names()?.iter().filter(|name| name.ends_with(LEASE_SUFFIX)) {
            self.look_at(name, &mut listing)?;
        }
        Ok(listing)
    }

    fn look_at(&self, name: &str, listing: &mut LeaseListing) -> Result<()> {
        // One that is gone when it is probed was released, or has got another file under its name.
        for _ in 0..MAX_LOCK_ATTEMPTS {
            let seen = self.read_lease(name).map_err(|error| self.failed("read a lease", error))?;
            match seen {
                None => break,
                Some(SeenLease { file, body: Ok(body) }) => {
                    if let Some(info) = self.probe(file, body)? {
                        listing.leases.push(info);
                        break;
                    }
                }
                Some(SeenLease { file, body: Err(problem) }) => {
                    let held = self.is_held(file)?;
                    let file = self.0.path_of(name);
                    listing.malformed.push(MalformedLease { file, problem, held });
                    break;
                }
            }
        }
        Ok(())
    }

    fn probe(&self, file: File, body: LeaseBody) -> Result<Option<LeaseInfo>> {
        let failed = |error| self.failed("probe a lease", error);
        match Locked::attempt(file, Sharing::Shared).map_err(failed)? {
            Err(_held) => Ok(Some(LeaseInfo { body, alive: true })),
            Ok(lock) if is_gone(lock.file()).map_err(failed)? => Ok(None),
            Ok(_lock) => Ok(Some(LeaseInfo { body, alive: false })),
        }
    }

    fn is_held(&self, file: File) -> Result<bool> {
        let probed = Locked::attempt(file, Sharing::Shared);
        Ok(probed.map_err(|error| self.failed("probe a lease", error))?.is_err())
    }

    fn read_lease(&self, name: &str) -> io::Result<Option<SeenLease>> {
        let Some(file) = absent_is_none(self.0.open(name, OFlags::RDWR))? else {
            return Ok(None);
        };
        if let Some(problem) = find_foreign_file(&file)? {
            return Ok(Some(SeenLease { file, body: Err(problem) }));
        }
        let mut json = Vec::new();
        (&file).take(MAX_LEASE + 1).read_to_end(&mut json)?;
        Ok(Some(SeenLease { file, body: parse_lease(name, &json) }))
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut names = self.0.names().map_err(|error| self.failed("list the leases", error))?;
        names.sort_unstable();
        Ok(names)
    }

    fn lock_for_probing(&self) -> Result<Locked> {
        const LOCK_OPERATION: &str = "lock the leases";
        let failed = |error| self.failed(LOCK_OPERATION, error);
        let file = self.0.open(PROBE_LOCK_FILE, OFlags::RDWR | OFlags::CREATE).map_err(failed)?;
        let locked = Locked::within(file, Sharing::Exclusive, LOCK_TIMEOUT).map_err(failed)?;
        locked.ok_or_else(|| {
            let path = self.0.path_of(PROBE_LOCK_FILE);
            let message = format!("another process holds `{}` locked", path.display());
            Error::new(ErrorCode::TooSlow, LOCK_OPERATION, message)
                .remedy("find the process that holds it (`fuser`) and end it")
        })
    }

    fn failed(&self, operation: &'static str, error: io::Error) -> Error {
        let message = format!("`{}` cannot be used", self.0.path_of("").display());
        Error::new(ErrorCode::StateUnavailable, operation, message)
            .remedy("make the directory writable for this user, with some space left")
            .source(error)
    }
}

/// How a lease gets its place: beside nothing, or instead of what was there.
type LeasePut = fn(&Directory, &str, &str) -> io::Result<()>;

/// A lease file that was opened: what it says, or what is wrong with it.
struct SeenLease {
    file: File,
    body: Result<LeaseBody, String>,
}

fn parse_lease(name: &str, json: &[u8]) -> Result<LeaseBody, String> {
    if json.len() as u64 > MAX_LEASE {
        return Err(format!("it has more than {MAX_LEASE} bytes"));
    }
    let body: LeaseBody = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if name != name_of(&body.id) {
        return Err(format!("it speaks of sandbox {}", body.id));
    }
    Ok(body)
}

fn is_unlimited(limits: &Limits) -> bool {
    *limits == Limits::default()
}

fn uncounted_lease(malformed: &MalformedLease) -> Error {
    let MalformedLease { file, problem, .. } = malformed;
    let message =
        format!("a live sandbox cannot be counted: `{}` is no lease: {problem}", file.display());
    Error::new(ErrorCode::StateUnavailable, "take a lease", message)
        .remedy("end the process that holds the file locked (`fuser`), and remove the file")
}

fn name_of(id: &SandboxId) -> String {
    format!("{id}{LEASE_SUFFIX}")
}

fn kill_name_of(id: &SandboxId) -> String {
    format!("{id}{KILL_SUFFIX}")
}

fn in_use(id: &SandboxId) -> Error {
    Error::new(ErrorCode::Invalid, "take a lease", format!("sandbox {id} exists already"))
        .remedy("take another id, or destroy that sandbox first")
}

fn is_gone(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstat(file)?.st_nlink == 0)
}

fn absent_is_none(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

impl LeaseHolding {
    /// The name goes first and the lock after it, so that no process finds the file unlocked.
    fn remove(self, operation: &'static str) -> Result<()> {
        let removed = self.dir.remove(&name_of(&self.body.id));
        removed.map_err(|error| Leases(Arc::clone(&self.dir)).failed(operation, error))
    }
}

impl Lease {
    /// What it says.
    pub fn body(&self) -> &LeaseBody {
        &self.0.body
    }

    /// A caller takes what was ready: the lease has its labels, and its time begins now. A concurrent
    /// reader sees the lease held, with its old or its new contents.
    pub fn hand_over(&mut self, labels: &BTreeMap<String, String>) -> Result<()> {
        const HAND_OVER: &str = "hand a lease over";
        let leases = Leases(Arc::clone(&self.0.dir));
        let (labels, created) = (labels.clone(), Timestamp::now());
        let body = LeaseBody { labels, created, ready: false, ..self.0.body.clone() };
        let json = leases.encode(HAND_OVER, &body)?;
        let placed = leases.place(&body.id, &json, Directory::rename);
        self.0._lock = placed.map_err(|error| leases.failed(HAND_OVER, error))?;
        self.0.body = body;
        Ok(())
    }

    /// Ends the lease: the sandbox is gone.
    pub fn release(self) -> Result<()> {
        self.0.remove("release a lease")
    }
}

impl Drop for KillRequest {
    fn drop(&mut self) {
        // What stays is cleared away by the next reaper.
        let _ = self.dir.remove(&self.name);
    }
}

impl StaleLease {
    /// What it says.
    pub fn body(&self) -> &LeaseBody {
        &self.0.body
    }

    /// Ends the lease: what its owner left is gone.
    pub fn finish(self) -> Result<()> {
        self.0.remove("finish a lease")
    }
}
