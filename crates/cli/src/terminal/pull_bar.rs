//! How far a pull or a push is, for a person at a terminal: one bar over all layers. Elsewhere it shows nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stockade::images::{Digest, PullEvent, PullProgress};
use stockade_core::Bytes;

use super::status_line;

/// Layers arrive in many small pieces: the line is drawn seldom enough to be read.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);
const BAR_WIDTH: u64 = 24;

/// Shows how far a pull or a push is.
#[derive(Debug)]
pub struct PullBar {
    is_shown: bool,
    verb: &'static str,
    state: Mutex<PullState>,
}

#[derive(Debug, Default)]
struct PullState {
    name: String,
    /// Bytes that have arrived of each layer, and all of them.
    layers: BTreeMap<Digest, (u64, u64)>,
    drawn: Option<Instant>,
}

impl Default for PullBar {
    fn default() -> Self {
        Self::with_verb("pulling")
    }
}

impl PullBar {
    /// The bar of a push.
    pub fn of_push() -> Self {
        Self::with_verb("pushing")
    }

    fn with_verb(verb: &'static str) -> Self {
        Self { is_shown: status_line::is_possible(), verb, state: Mutex::default() }
    }
}

impl PullProgress for PullBar {
    fn report(&self, event: PullEvent<'_>) {
        if !self.is_shown {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = state.next_line(&event, self.verb) {
            status_line::draw(&line);
        }
        if let PullEvent::Stored { .. } | PullEvent::Pushed { .. } = event {
            status_line::clear();
            *state = PullState::default();
        }
    }
}

impl PullState {
    /// What is to be shown from now on; nothing if that has not changed enough.
    fn next_line(&mut self, event: &PullEvent<'_>, verb: &str) -> Option<String> {
        match event {
            PullEvent::Resolved { reference, layers, .. } => {
                self.name = reference.familiar();
                let layers = layers.iter();
                self.layers = layers.map(|(digest, size)| (digest.clone(), (0, *size))).collect();
                Some(self.bar(verb))
            }
            PullEvent::Waiting { .. } => {
                Some(format!("stockade: waiting for another pull of {}", self.name))
            }
            PullEvent::LayerPresent { digest } | PullEvent::LayerFetched { digest } => {
                self.layers.entry((*digest).clone()).and_modify(|(got, all)| *got = *all);
                self.seldom(verb)
            }
            PullEvent::LayerProgress { digest, received, total } => {
                self.layers.insert((*digest).clone(), (*received, *total));
                self.seldom(verb)
            }
            PullEvent::Unpacking { number, count, .. } => {
                Some(format!("stockade: unpacking layer {number} of {count} of {}", self.name))
            }
            PullEvent::Stored { .. } | PullEvent::Pushed { .. } => None,
        }
    }

    fn seldom(&mut self, verb: &str) -> Option<String> {
        let now = Instant::now();
        if self.drawn.is_some_and(|drawn| now - drawn < DRAW_INTERVAL) {
            return None;
        }
        self.drawn = Some(now);
        Some(self.bar(verb))
    }

    fn bar(&self, verb: &str) -> String {
        let (got, all) = self.layers.values().fold((0, 0), |(got, all): (u64, u64), layer| {
            (got.saturating_add(layer.0), all.saturating_add(layer.1))
        });
        let filled = got.min(all).saturating_mul(BAR_WIDTH).checked_div(all).unwrap_or(BAR_WIDTH);
        let filled = usize::try_from(filled).unwrap_or_default();
        let rest = usize::try_from(BAR_WIDTH).unwrap_or_default().saturating_sub(filled);
        format!(
            "stockade: {verb} {} [{}{}] {} of {}",
            self.name,
            "#".repeat(filled),
            "-".repeat(rest),
            Bytes(got).rounded(),
            Bytes(all).rounded(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_over_all_layers_and_full_when_all_are_there() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let reference = "python:3.12".parse().unwrap();
        let layers = [(one.clone(), 100), (two.clone(), 300)];
        let mut state = PullState::default();
        let resolved =
            PullEvent::Resolved { reference: &reference, manifest: &one, layers: &layers };
        let line = state.next_line(&resolved, "pulling").unwrap();
        assert!(line.contains("pulling python:3.12 [------------------------]"), "{line}");
        state.next_line(&PullEvent::LayerPresent { digest: &one }, "pulling");
        assert!(state.bar("").contains("[######------------------]"), "{}", state.bar(""));
        // More than was promised is no longer bar.
        let more = PullEvent::LayerProgress { digest: &two, received: 900, total: 300 };
        state.next_line(&more, "pulling");
        assert!(state.bar("").contains("[########################]"), "{}", state.bar(""));
        assert!(PullState::default().bar("").contains('#'), "nothing to fetch is all of it");
    }
}
