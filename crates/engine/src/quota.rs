//! Quotas on executions: how many a tenant runs at once, and how many starts it has within a minute. They hold over
//! all engines that share the state directory. A slot is a locked file, which the kernel frees when its engine dies.
//! What is counted by the hour is in a file of the same directory that is locked while it changes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use stockade_core::{Error, ErrorCode, Result, TenantName};
use stockade_fs::{Directory, LOCK_TIMEOUT, Locked, Sharing, StateDir, find_foreign_file};

use crate::config::Quota;
use crate::hourly_use::{HOURLY_FILE_BYTES, HourlyUse, NUMBER_DIGITS, parse_number};

const QUOTA_DIR: &str = "quotas";
pub(crate) const QUOTA_OPERATION: &str = "check the quota";
/// Slots that are looked at for one execution. A higher quota holds as this one.
const MAX_EXECUTION_SLOTS: u32 = 4096;
const MINUTE_MICROS: u64 = 60_000_000;
/// Digits of the time that is stored.
const TIME_DIGITS: usize = NUMBER_DIGITS;
const NOT_WRITTEN_HERE: &str = "it was not written by Stockade";

/// What tenants have used of their quotas.
#[derive(Debug)]
pub(crate) struct QuotaLedger {
    state_dir: PathBuf,
    /// Opened when the first quota is checked: most engines have none.
    dir: OnceLock<Directory>,
}

/// The place of one execution among those of its tenant. Free again when it is dropped.
#[derive(Debug)]
pub(crate) struct ExecutionSlot {
    _lock: Locked,
}

impl QuotaLedger {
    pub(crate) fn new(state_dir: PathBuf) -> Self {
        Self { state_dir, dir: OnceLock::new() }
    }

    /// Counts one start of a tenant, and takes a slot for its execution; none where there is no quota on them.
    pub(crate) fn begin_execution(
        &self,
        tenant: &TenantName,
        quota: Quota,
    ) -> Result<Option<ExecutionSlot>> {
        // The slot first: a start that is refused for want of one is not counted.
        let slot = quota.executions.map(|most| self.take_slot(tenant, most)).transpose()?;
        self.check_cpu(tenant, quota)?;
        self.count_start(tenant, quota)?;
        Ok(slot)
    }

    /// Counts one start of a tenant. Fails where it had as many within a minute as it may.
    pub(crate) fn count_start(&self, tenant: &TenantName, quota: Quota) -> Result<()> {
        let Some(most) = quota.starts_per_minute else { return Ok(()) };
        let counted = self.count_in_minute("starts", tenant, most);
        counted.map_err(|error| self.failed(error))?.map_err(|delay| {
            let message =
                format!("tenant {tenant} may start {most} sandboxes and commands a minute");
            Error::new(ErrorCode::QuotaExceeded, QUOTA_OPERATION, message)
                .remedy("wait, or raise the quota")
                .retry_in(delay)
        })
    }

    fn take_slot(&self, tenant: &TenantName, most: u32) -> Result<ExecutionSlot> {
        let taken = self.take_slot_file(tenant, most).map_err(|error| self.failed(error))?;
        taken.ok_or_else(|| {
            let message = format!("tenant {tenant} runs {most} of at most {most} commands");
            Error::new(ErrorCode::QuotaExceeded, QUOTA_OPERATION, message)
                .remedy("wait until one has ended, cancel one, or raise the quota")
        })
    }

    fn take_slot_file(&self, tenant: &TenantName, most: u32) -> io::Result<Option<ExecutionSlot>> {
        let slots = most.min(MAX_EXECUTION_SLOTS);
        let found = self.lock_slot("execution", tenant, slots, 0)?;
        Ok(found.map(|(_, lock)| ExecutionSlot { _lock: lock }))
    }

    /// Locks one of so many files that no process has locked, and tells its number. Looks from the first one on.
    pub(crate) fn lock_slot(
        &self,
        prefix: &str,
        tenant: &TenantName,
        slots: u32,
        first: u32,
    ) -> io::Result<Option<(u32, Locked)>> {
        for offset in 0..slots {
            let number = (first % slots).wrapping_add(offset) % slots;
            let file = self.open_file(&format!("{prefix}-{number}-{tenant}"))?;
            if let Ok(lock) = Locked::attempt(file, Sharing::Exclusive)? {
                return Ok(Some((number, lock)));
            }
        }
        Ok(None)
    }

    /// Counts one more of what a tenant may have so many of in a minute; answers how long to wait where it had them.
    pub(crate) fn count_in_minute(
        &self,
        prefix: &str,
        tenant: &TenantName,
        most: u32,
    ) -> io::Result<Result<(), Duration>> {
        let name = format!("{prefix}-{tenant}");
        let lock = self.lock_file(&name)?;
        let due = read_time(lock.file())?.ok_or_else(|| damaged(&name, NOT_WRITTEN_HERE))?;
        let admitted = admit_start(now_micros(), due, most);
        let Ok(due) = admitted else { return Ok(admitted.map(drop)) };
        lock.file().write_all_at(format!("{due:0TIME_DIGITS$}").as_bytes(), 0)?;
        Ok(Ok(()))
    }

    /// Changes what a tenant has used within the hour, while no other engine does. The change is told the time
    /// since the epoch.
    pub(crate) fn change_hourly_use<T>(
        &self,
        prefix: &str,
        tenant: &TenantName,
        change: impl FnOnce(&mut HourlyUse, Duration) -> T,
    ) -> Result<T> {
        let name = format!("{prefix}-{tenant}");
        self.change_hourly_file(&name, change).map_err(|error| self.failed(error))
    }

    fn change_hourly_file<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut HourlyUse, Duration) -> T,
    ) -> io::Result<T> {
        let lock = self.lock_file(name)?;
        let now = time_since_epoch();
        let mut text = Vec::new();
        lock.file().take(HOURLY_FILE_BYTES as u64 + 1).read_to_end(&mut text)?;
        let parsed = HourlyUse::parse(&text, now);
        let mut used = parsed.ok_or_else(|| damaged(name, NOT_WRITTEN_HERE))?;
        let answer = change(&mut used, now);
        let changed = used.encode();
        if changed != text {
            lock.file().write_all_at(&changed, 0)?;
        }
        Ok(answer)
    }

    fn lock_file(&self, name: &str) -> io::Result<Locked> {
        let file = self.open_file(name)?;
        let locked = Locked::within(file, Sharing::Exclusive, LOCK_TIMEOUT)?;
        Ok(locked.ok_or(io::ErrorKind::ResourceBusy)?)
    }

    /// Opens a file that this user made, or makes it.
    fn open_file(&self, name: &str) -> io::Result<File> {
        let file = self.dir()?.open(name, OFlags::RDWR | OFlags::CREATE)?;
        match find_foreign_file(&file)? {
            Some(problem) => Err(damaged(name, &problem)),
            None => Ok(file),
        }
    }

    fn dir(&self) -> io::Result<&Directory> {
        if let Some(dir) = self.dir.get() {
            return Ok(dir);
        }
        let state = StateDir::open(&self.state_dir).map_err(io::Error::other)?;
        let dir = state.subdirectory(QUOTA_DIR).map_err(io::Error::other)?;
        Ok(self.dir.get_or_init(|| dir))
    }

    /// What cannot be counted is not allowed.
    fn failed(&self, error: io::Error) -> Error {
        let path = self.state_dir.join(QUOTA_DIR);
        let (why, remedy) = if error.kind() == io::ErrorKind::InvalidData {
            (format!(": {error}"), "remove that file: what it counts begins anew")
        } else {
            (String::new(), "make the directory writable for this user, with some space left")
        };
        let message = format!("`{}` cannot be used{why}", path.display());
        Error::new(ErrorCode::StateUnavailable, QUOTA_OPERATION, message)
            .remedy(remedy)
            .source(error)
    }
}

/// Refuses copies of a sandbox with its memory where the programs that run in it, and go on in each copy, are more than
/// its tenant may run at once.
pub(crate) fn check_copied_executions(
    tenant: &TenantName,
    quota: Quota,
    running: usize,
    copies: usize,
) -> Result<()> {
    let Some(most) = quota.executions else { return Ok(()) };
    let needed = running.saturating_mul(copies.saturating_add(1));
    if running == 0 || u32::try_from(needed).is_ok_and(|needed| needed <= most) {
        return Ok(());
    }
    let message = format!(
        "{running} commands run in it and go on in each copy, and tenant {tenant} may run {most}"
    );
    Err(Error::new(ErrorCode::QuotaExceeded, QUOTA_OPERATION, message)
        .remedy("make fewer copies, end commands first, or raise the quota"))
}

/// A file that is not as it was made: nothing is counted by it.
fn damaged(name: &str, problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("`{name}`: {problem}"))
}

/// The time since the epoch, as what is used is counted by.
pub(crate) fn time_since_epoch() -> Duration {
    Duration::from_micros(now_micros())
}

fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2)
}

/// The time that a file holds; that of the epoch for one that was just made, and none for another file.
fn read_time(file: &File) -> io::Result<Option<u64>> {
    let mut digits = Vec::new();
    file.take(TIME_DIGITS as u64 + 1).read_to_end(&mut digits)?;
    if digits.is_empty() {
        return Ok(Some(0));
    }
    Ok(std::str::from_utf8(&digits).ok().and_then(parse_number))
}

/// Admits one more start where `due` is when the starts so far would be over, evenly spread; answers when they are
/// with this one, or how long to wait. So a tenant that had none for a minute may have all at once.
fn admit_start(now: u64, due: u64, most_per_minute: u32) -> Result<u64, Duration> {
    let latest = now.saturating_add(MINUTE_MICROS);
    let Some(interval) = MINUTE_MICROS.checked_div(most_per_minute.into()) else {
        return Err(Duration::from_micros(MINUTE_MICROS));
    };
    // A clock that was set back locks no tenant out for more than a minute.
    let due = due.clamp(now, latest).saturating_add(interval);
    if due <= latest { Ok(due) } else { Err(Duration::from_micros(due - latest)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantName {
        name.parse().unwrap_or_default()
    }

    fn ledger(dir: &tempfile::TempDir) -> QuotaLedger {
        QuotaLedger::new(dir.path().to_owned())
    }

    #[test]
    fn starts_are_as_many_in_a_minute_as_may_be_and_then_one_by_one() {
        let (mut due, now) = (0, 1_000_000_000);
        for _ in 0..60 {
            due = admit_start(now, due, 60).unwrap();
        }
        assert_eq!(admit_start(now, due, 60), Err(Duration::from_secs(1)));
        let later = now + 1_000_000;
        due = admit_start(later, due, 60).unwrap();
        assert_eq!(admit_start(later, due, 60), Err(Duration::from_secs(1)));
        assert!(admit_start(now + 2 * MINUTE_MICROS, due, 60).is_ok());
        assert!(admit_start(now, 0, 0).is_err());
        assert_eq!(admit_start(now, u64::MAX, 1), Err(Duration::from_secs(60)));
    }

    #[test]
    fn slots_are_shared_by_engines_and_free_again() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (ledger(&dir), ledger(&dir));
        let quota = Quota { executions: Some(2), ..Quota::default() };
        let begin = |ledger: &QuotaLedger, name: &str| ledger.begin_execution(&tenant(name), quota);
        let first = begin(&one, "a").unwrap().unwrap();
        let _second = begin(&other, "a").unwrap().unwrap();
        let refused = begin(&one, "a").unwrap_err();
        assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
        assert!(begin(&one, "b").unwrap().is_some());
        drop(first);
        assert!(begin(&other, "a").unwrap().is_some());
    }

    #[test]
    fn copies_are_refused_where_their_programs_are_more_than_may_run() {
        let check = |most, running, copies| {
            let quota = Quota { executions: most, ..Quota::default() };
            check_copied_executions(&tenant("a"), quota, running, copies)
        };
        check(Some(6), 2, 2).unwrap();
        check(Some(0), 0, 1000).unwrap();
        check(None, 1000, 1000).unwrap();
        for (running, copies) in [(2, 3), (7, 1), (1, usize::MAX), (usize::MAX, 1)] {
            let refused = check(Some(6), running, copies).unwrap_err();
            assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
        }
    }

    #[test]
    fn starts_are_counted_over_engines_and_only_where_there_is_a_quota() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (ledger(&dir), ledger(&dir));
        assert!(one.begin_execution(&tenant("a"), Quota::default()).unwrap().is_none());
        assert!(!dir.path().join(QUOTA_DIR).exists());
        // One in a minute: no clock of a test gets that far between two lines.
        let quota = Quota { starts_per_minute: Some(1), ..Quota::default() };
        one.count_start(&tenant("a"), quota).unwrap();
        let refused = other.count_start(&tenant("a"), quota).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
        assert!(refused.retry_delay().is_some_and(|delay| delay <= Duration::from_secs(60)));
        other.count_start(&tenant("b"), quota).unwrap();
    }

    #[test]
    fn a_count_of_starts_that_was_not_written_here_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = ledger(&dir);
        let quota = Quota { starts_per_minute: Some(100), ..Quota::default() };
        ledger.count_start(&tenant("a"), quota).unwrap();
        let file = dir.path().join(QUOTA_DIR).join("starts-a");
        let good = std::fs::read_to_string(&file).unwrap();
        for wrong in [&good[1..], &format!("{good}0"), "99999999999999999999", "garbage"] {
            std::fs::write(&file, wrong).unwrap();
            let error = ledger.count_start(&tenant("a"), quota).unwrap_err();
            assert_eq!(error.code(), ErrorCode::StateUnavailable);
            assert!(error.message().contains("starts-a") && error.hint().is_some(), "{error}");
        }
        std::fs::write(&file, good).unwrap();
        ledger.count_start(&tenant("a"), quota).unwrap();
    }

    mod needs_root {
        use super::*;

        #[test]
        fn a_counter_of_another_user_is_refused_by_its_name() {
            let dir = tempfile::tempdir().unwrap();
            let ledger = ledger(&dir);
            let quota =
                Quota { cpu_seconds_per_hour: Some(1), executions: Some(1), ..Quota::default() };
            drop(ledger.begin_execution(&tenant("a"), quota).unwrap());
            for name in ["cpu-a", "execution-0-a"] {
                let file = dir.path().join(QUOTA_DIR).join(name);
                std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
                let error = ledger.begin_execution(&tenant("a"), quota).unwrap_err();
                assert_eq!(error.code(), ErrorCode::StateUnavailable);
                assert!(error.message().contains(name), "{error}");
                std::fs::remove_file(&file).unwrap();
            }
            ledger.begin_execution(&tenant("a"), quota).unwrap();
        }
    }
}
