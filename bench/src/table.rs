//! Rows of measured times: the least, the median and the 99th percentile of each, and ratios of the medians.

use std::fmt::Write as _;
use std::time::Duration;

/// One contestant and how long each of its rounds took.
pub struct Row {
    name: &'static str,
    baseline: bool,
    times: Vec<Duration>,
}

impl Row {
    pub fn new(name: &'static str) -> Self {
        Self { name, baseline: false, times: Vec::new() }
    }

    /// Has the pages compare the other rows with this one. Without a baseline they compare with every row.
    pub fn into_baseline(mut self) -> Self {
        self.baseline = true;
        self
    }

    pub fn add(&mut self, time: Duration) {
        self.times.push(time);
    }

    pub fn len(&self) -> usize {
        self.times.len()
    }

    pub fn timing(&mut self) -> Timing {
        self.times.sort();
        Timing {
            name: self.name,
            baseline: self.baseline,
            least_ms: self.percentile(0),
            p50_ms: self.percentile(50),
            p99_ms: self.percentile(99),
            rounds: self.times.len(),
        }
    }

    /// A percentile of sorted times; not a number if there are none.
    fn percentile(&self, percent: usize) -> f64 {
        let at = (self.times.len() * percent / 100).min(self.times.len().saturating_sub(1));
        self.times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }
}

/// What is told of a row.
#[derive(Debug, Clone)]
pub struct Timing {
    pub name: &'static str,
    pub baseline: bool,
    pub least_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub rounds: usize,
}

impl Timing {
    /// How many times the other's median this one's is, if both are known.
    pub fn ratio_to(&self, other: &Timing) -> Option<f64> {
        let ratio = self.p50_ms / other.p50_ms;
        ratio.is_finite().then_some(ratio)
    }
}

/// The text for a terminal: each row beside all rows it can be compared with.
pub fn format_timings(timings: &[Timing]) -> String {
    let mut text = format!("{:>16} {:>10} {:>10} {:>10}", "", "least ms", "p50 ms", "p99 ms");
    for timing in timings {
        let _ = write!(text, " {:>13}", format!("÷ {}", timing.name));
    }
    for timing in timings {
        let Timing { name, least_ms, p50_ms, p99_ms, .. } = timing;
        let _ = write!(text, "\n{name:>16} {least_ms:>10.3} {p50_ms:>10.3} {p99_ms:>10.3}");
        for other in timings {
            let _ = write!(text, " {:>13.2}", p50_ms / other.p50_ms);
        }
    }
    text
}

/// A column of numbers that are not times of a row.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub width: usize,
    pub decimals: usize,
}

impl Column {
    pub const fn new(name: &'static str, width: usize, decimals: usize) -> Self {
        Self { name, width, decimals }
    }
}

/// A table of such columns, with a name before each row.
#[derive(Debug, Clone)]
pub struct Figures {
    pub label: &'static str,
    pub columns: Vec<Column>,
    pub rows: Vec<(String, Vec<f64>)>,
}

const LABEL_WIDTH: usize = 12;

impl Figures {
    pub fn new(label: &'static str, columns: &[Column]) -> Self {
        Self { label, columns: columns.to_vec(), rows: Vec::new() }
    }

    pub fn add(&mut self, name: impl Into<String>, values: Vec<f64>) {
        self.rows.push((name.into(), values));
    }
}

/// The text for a terminal.
pub fn format_figures(figures: &Figures) -> String {
    let mut text = format!("{:>LABEL_WIDTH$}", figures.label);
    for Column { name, width, .. } in &figures.columns {
        let _ = write!(text, "  {name:>width$}");
    }
    for (name, values) in &figures.rows {
        let _ = write!(text, "\n{name:>LABEL_WIDTH$}");
        for (Column { width, decimals, .. }, value) in figures.columns.iter().zip(values) {
            let _ = write!(text, "  {value:>width$.decimals$}");
        }
    }
    text
}
