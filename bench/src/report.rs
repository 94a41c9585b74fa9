//! What a run measured: printed as it comes, and recorded in sections for the files that are written at the
//! end. No figure is recorded that was not printed.

use crate::plot::LinePlot;
use crate::table::{Figures, Row, Timing, format_figures, format_timings};

/// One table or sentence of a section, in the order in which it was printed.
#[derive(Debug, Clone)]
pub enum SectionItem {
    Note(String),
    Timings(Vec<Timing>),
    Figures(Figures),
}

/// What was printed under one title.
#[derive(Debug, Clone)]
pub struct ReportSection {
    pub measurement: &'static str,
    pub title: String,
    pub items: Vec<SectionItem>,
}

/// The record of a run.
#[derive(Debug, Default)]
pub struct BenchReport {
    /// Whether `density` also tries numbers that take minutes.
    pub many: bool,
    measurement: &'static str,
    sections: Vec<ReportSection>,
    plot: Option<LinePlot>,
}

impl BenchReport {
    pub fn new(many: bool) -> Self {
        Self { many, ..Self::default() }
    }

    /// Names the measurement to which the following sections belong.
    pub fn begin_measurement(&mut self, name: &'static str) {
        self.measurement = name;
    }

    /// Prints a title and begins a section.
    pub fn title(&mut self, text: impl Into<String>) {
        let title = text.into();
        println!("{title}");
        self.sections.push(ReportSection {
            measurement: self.measurement,
            title,
            items: Vec::new(),
        });
    }

    /// Prints a sentence.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("{text}");
        self.record(SectionItem::Note(text.trim().to_owned()));
    }

    /// Prints a table of times and their ratios.
    pub fn timings(&mut self, rows: &mut [Row]) {
        let timings: Vec<Timing> = rows.iter_mut().map(Row::timing).collect();
        println!("{}", format_timings(&timings));
        self.record(SectionItem::Timings(timings));
    }

    /// Prints a table of other numbers.
    pub fn figures(&mut self, figures: Figures) {
        println!("{}", format_figures(&figures));
        self.record(SectionItem::Figures(figures));
    }

    pub fn set_plot(&mut self, plot: LinePlot) {
        self.plot = Some(plot);
    }

    pub fn plot(&self) -> Option<&LinePlot> {
        self.plot.as_ref()
    }

    pub fn sections(&self) -> &[ReportSection] {
        &self.sections
    }

    fn record(&mut self, item: SectionItem) {
        let measurement = self.measurement;
        if self.sections.last().is_none_or(|section| section.measurement != measurement) {
            self.sections.push(ReportSection {
                measurement,
                title: String::new(),
                items: Vec::new(),
            });
        }
        if let Some(section) = self.sections.last_mut() {
            section.items.push(item);
        }
    }
}
