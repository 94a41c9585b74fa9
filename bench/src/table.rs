//! Rows of measurements, printed with the least, medians, 99th percentiles, and ratios of the medians.

use std::time::Duration;

pub struct Row {
    name: &'static str,
    times: Vec<Duration>,
}

impl Row {
    pub fn new(name: &'static str) -> Self {
        Self { name, times: Vec::new() }
    }

    pub fn add(&mut self, time: Duration) {
        self.times.push(time);
    }

    pub fn len(&self) -> usize {
        self.times.len()
    }

    fn percentile(&mut self, percent: usize) -> f64 {
        self.times.sort();
        let at = (self.times.len() * percent / 100).min(self.times.len().saturating_sub(1));
        self.times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }
}

/// Each row beside all rows it can be compared with.
pub fn print(rows: &mut [Row]) {
    let medians: Vec<(&'static str, f64)> =
        rows.iter_mut().map(|row| (row.name, row.percentile(50))).collect();
    print!("{:>16} {:>10} {:>10} {:>10}", "", "least ms", "p50 ms", "p99 ms");
    medians.iter().for_each(|(name, _)| print!(" {:>13}", format!("÷ {name}")));
    println!();
    for (row, (name, median)) in rows.iter_mut().zip(&medians) {
        let (least, most) = (row.percentile(0), row.percentile(99));
        print!("{name:>16} {least:>10.3} {median:>10.3} {most:>10.3}");
        medians.iter().for_each(|(_, other)| print!(" {:>13.2}", median / other));
        println!();
    }
}
