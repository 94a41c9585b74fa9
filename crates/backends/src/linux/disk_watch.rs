//! Adds up what is written to the host's directories while an execution runs: often enough to notice before
//! much more than the limit is written, and seldom enough that a large tree costs little.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::disk::{self, DiskUsage};
use super::running::LiveWalls;

/// The interval between scans of a disk that is not written to, where scans are quick.
const MIN_SCAN_INTERVAL: Duration = Duration::from_millis(250);
/// The same interval where scans take long, unless they would then do nothing else.
const MAX_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// How long a poll waits for its scan. The result of a slower one is taken at a later poll.
const MAX_SCAN_WAIT: Duration = Duration::from_millis(10);

/// What a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// There is room, or it is not the time to look.
    Within,
    /// As much as there may be: nothing more fits.
    AllThereMayBe,
    /// More, at every look for this long.
    Beyond(Duration),
    /// More, but an execution has ended since it was less: it may be that one's.
    BeyondByEnded,
}

/// Adds up what is written to the host's directories, from the first look on.
#[derive(Default)]
pub(super) struct DiskWatch {
    before: Option<DiskUsage>,
    /// How many executions had been ended for their disk limit when `before` was counted.
    breaches: u64,
    /// The first of the looks in a row that have found too much.
    beyond: Option<Instant>,
    /// How many executions had ended when the last scan began that found no more than there may be.
    ended: u64,
    last: Option<(Instant, u64)>,
    next: Option<Instant>,
    scan: Option<Scan>,
}

/// A scan of the directories that is under way.
struct Scan {
    started: Instant,
    /// How many executions had ended then.
    ended: u64,
    counting: JoinHandle<Option<DiskUsage>>,
    /// The scan stops when this is dropped: a large tree must not hold up the end of a sandbox, or of the engine.
    _wanted: Arc<()>,
}

impl Scan {
    fn start(roots: Vec<PathBuf>, ended: u64) -> Self {
        let wanted = Arc::new(());
        let watched = Arc::downgrade(&wanted);
        let counting = tokio::task::spawn_blocking(move || add_up(&roots, &watched));
        Self { started: Instant::now(), ended, counting, _wanted: wanted }
    }
}

impl DiskWatch {
    /// Looks, if it is time to. A scan of a large tree goes on in the background, so that the other limits are
    /// looked at meanwhile.
    pub(super) async fn poll_usage(&mut self, running: &LiveWalls) -> Written {
        self.measure_written(running).await.unwrap_or(Written::Within)
    }

    async fn measure_written(&mut self, running: &LiveWalls) -> Option<Written> {
        let (roots, most) = (running.written.clone(), running.limits.disk?);
        if self.scan.is_none() {
            if roots.is_empty() || self.next.is_some_and(|next| Instant::now() < next) {
                return None;
            }
            self.reset_after_breach(running.disk_breaches.load(Ordering::SeqCst));
            self.scan = Some(Scan::start(roots, running.executions.count_ended()));
        }
        let scan = self.scan.as_mut()?;
        let counted = timeout(MAX_SCAN_WAIT, &mut scan.counting).await.ok()?;
        let Scan { started, ended, .. } = self.scan.take()?;
        // What was counted while another execution was ended for it is that one's.
        if self.breaches != running.disk_breaches.load(Ordering::SeqCst) {
            return None;
        }
        let found = self.compare_usage(started, &counted.ok()??, most.0)?;
        Some(self.consider_ended(found, ended, running.executions.count_ended()))
    }

    /// Tells whether an execution that has ended may have written it. `ended`: how many had when the scan began.
    fn consider_ended(&mut self, found: Written, ended: u64, ended_by_now: u64) -> Written {
        match found {
            Written::Beyond(_) if ended_by_now != self.ended => Written::BeyondByEnded,
            Written::Beyond(_) => found,
            Written::Within | Written::AllThereMayBe | Written::BeyondByEnded => {
                self.ended = ended;
                found
            }
        }
    }

    /// What is there now is no longer counted: it may be that of an execution which has ended.
    pub(super) fn forget_written(&mut self) {
        (self.before, self.beyond, self.next) = (None, None, None);
    }

    /// What a scan has found, compared with what was there before.
    fn compare_usage(&mut self, started: Instant, used: &DiskUsage, most: u64) -> Option<Written> {
        let bytes = used.bytes();
        // Nothing that a later count could be compared with.
        let counted = (!used.is_endless()).then_some(used);
        if self.before.is_none() {
            self.before = counted.cloned();
        }
        let written = self.before.as_ref().map_or(u64::MAX, |before| used.since(before));
        let room = most.saturating_sub(written);
        let grown = self.last.map(|(then, had)| (started - then, bytes.saturating_sub(had)));
        self.last = counted.map(|used| (started, used.bytes()));
        self.next = Some(Instant::now() + until_next(started.elapsed(), room, grown));
        let now = Instant::now();
        self.beyond = (written > most).then(|| self.beyond.unwrap_or(now));
        Some(match self.beyond {
            None if written > 0 && written == most => Written::AllThereMayBe,
            None => Written::Within,
            Some(since) => Written::Beyond(now - since),
        })
    }

    /// What is there after another execution was ended for it is that one's.
    fn reset_after_breach(&mut self, breaches: u64) {
        if self.breaches != breaches {
            (self.before, self.breaches, self.beyond) = (None, breaches, None);
        }
    }
}

/// When to look again: before what is left would be full at the pace it was filled at last. Looking takes
/// a tenth of the time where little is written, and never more than a quarter; but a look that took long,
/// as one does on a busy machine, does not leave the guest alone for long.
fn until_next(took: Duration, room: u64, grown: Option<(Duration, u64)>) -> Duration {
    let soonest = took * 3;
    let latest = (took * 10).clamp(MIN_SCAN_INTERVAL, MAX_SCAN_INTERVAL).max(soonest);
    let full = match grown {
        // The growth rate is not known yet.
        None => Duration::ZERO,
        Some((_, 0)) => latest,
        Some((time, bytes)) => {
            let full = time.as_secs_f64() * room as f64 / bytes as f64;
            Duration::try_from_secs_f64(full).unwrap_or(latest)
        }
    };
    full.clamp(soonest, latest)
}

fn add_up(roots: &[PathBuf], wanted: &Weak<()>) -> Option<DiskUsage> {
    let mut counted =
        roots.iter().map(|root| disk::measure_usage(root, || wanted.strong_count() > 0));
    counted.try_fold(DiskUsage::default(), |sum, used| Some(sum.merge_with(used?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_MIB: u64 = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn a_scan_that_does_not_end_holds_up_no_look_at_other_limits() {
        let group = tempfile::tempdir().unwrap();
        let running = super::super::limit_monitor::tests::running(group.path());
        let counting = tokio::spawn(std::future::pending());
        let scan = Scan { started: Instant::now(), ended: 0, counting, _wanted: Arc::new(()) };
        let mut watch = DiskWatch { scan: Some(scan), ..DiskWatch::default() };
        for _ in 0..3 {
            assert_eq!(watch.poll_usage(&running).await, Written::Within);
        }
        assert!(watch.scan.is_some_and(|scan| scan.started.elapsed() <= 3 * MAX_SCAN_WAIT));
    }

    #[tokio::test]
    async fn what_a_scan_has_found_is_heard_at_a_later_look() {
        let group = tempfile::tempdir().unwrap();
        let running = super::super::limit_monitor::tests::running(group.path());
        let (tell, told) = tokio::sync::oneshot::channel();
        let counting = tokio::spawn(async { told.await.ok() });
        let scan = Scan { started: Instant::now(), ended: 0, counting, _wanted: Arc::new(()) };
        let mut watch = DiskWatch { scan: Some(scan), ..DiskWatch::default() };
        assert_eq!(watch.poll_usage(&running).await, Written::Within);
        tell.send(DiskUsage::default()).unwrap();
        while watch.scan.is_some() {
            watch.poll_usage(&running).await;
        }
        assert!(watch.before.is_some() && watch.next.is_some());
    }

    #[test]
    fn what_could_not_be_counted_is_nothing_that_a_later_count_is_compared_with() {
        let mut watch = DiskWatch::default();
        let mut compare = |used: &DiskUsage| watch.compare_usage(Instant::now(), used, ONE_MIB);
        let dir = tempfile::tempdir().unwrap();
        let count = || disk::measure_usage(dir.path(), || true).unwrap();
        let (empty, mut endless) = (count(), DiskUsage::default());
        endless.make_endless();
        assert!(matches!(compare(&endless), Some(Written::Beyond(_))));
        assert_eq!(compare(&empty), Some(Written::Within));
        std::fs::write(dir.path().join("full"), vec![1; 2 << 20]).unwrap();
        std::fs::File::open(dir.path().join("full")).unwrap().sync_all().unwrap();
        assert!(matches!(compare(&count()), Some(Written::Beyond(_))));
    }

    #[tokio::test]
    async fn what_was_counted_while_another_execution_was_ended_for_it_is_not_blamed_on_this_one() {
        let group = tempfile::tempdir().unwrap();
        let mut running = super::super::limit_monitor::tests::running(group.path());
        let written = Arc::get_mut(&mut running).unwrap();
        written.limits.disk = Some(stockade_core::Bytes(ONE_MIB));
        written.written = vec![group.path().to_owned()];
        let mut watch = DiskWatch::default();
        let look = async |watch: &mut DiskWatch| loop {
            watch.next = None;
            let found = watch.poll_usage(&running).await;
            if watch.scan.is_none() {
                return found;
            }
        };
        assert_eq!(look(&mut watch).await, Written::Within);
        std::fs::write(group.path().join("big"), vec![1; 3 << 20]).unwrap();
        assert!(matches!(look(&mut watch).await, Written::Beyond(_)));
        // A scan is under way when the other one is ended.
        watch.scan = Some(Scan::start(running.written.clone(), 0));
        running.disk_breaches.fetch_add(1, Ordering::SeqCst);
        assert_eq!(look(&mut watch).await, Written::Within);
        assert_eq!(look(&mut watch).await, Written::Within);
        std::fs::write(group.path().join("more"), vec![1; 3 << 20]).unwrap();
        assert!(matches!(look(&mut watch).await, Written::Beyond(_)));
        // One that ends by itself may have written it.
        watch.forget_written();
        assert_eq!(look(&mut watch).await, Written::Within);
        let other = running.executions.begin(super::super::executions::KnownProgram::Unknown);
        std::fs::write(group.path().join("yet-more"), vec![1; 3 << 20]).unwrap();
        running.executions.end(other, stockade_core::Span::millis(0));
        assert_eq!(look(&mut watch).await, Written::BeyondByEnded);
        watch.forget_written();
        assert_eq!(look(&mut watch).await, Written::Within);
        std::fs::write(group.path().join("even-more"), vec![1; 3 << 20]).unwrap();
        assert!(matches!(look(&mut watch).await, Written::Beyond(_)));
    }

    fn millis(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn what_is_filled_fast_is_looked_at_before_it_is_full() {
        let next = |grown| until_next(millis(1), 64 * ONE_MIB, grown);
        assert_eq!(next(None), millis(3), "the pace is not known yet");
        assert_eq!(next(Some((millis(100), 0))), MIN_SCAN_INTERVAL);
        assert_eq!(next(Some((millis(100), 64 * ONE_MIB))), millis(100));
        assert_eq!(next(Some((millis(1), 640 * ONE_MIB))), millis(3));
        assert_eq!(until_next(millis(1), 0, Some((millis(9), 1))), millis(3));
    }

    #[test]
    fn a_large_tree_is_looked_at_seldom() {
        assert_eq!(until_next(millis(100), u64::MAX, Some((millis(1), 1))), millis(1000));
        assert_eq!(until_next(millis(100), 1, Some((millis(1), u64::MAX))), millis(300));
    }

    #[test]
    fn one_look_that_took_long_is_no_leave_to_write() {
        assert_eq!(until_next(millis(600), u64::MAX, Some((millis(1), 1))), millis(1800));
        assert_eq!(until_next(millis(200), u64::MAX, Some((millis(1), 1))), MAX_SCAN_INTERVAL);
    }
}
