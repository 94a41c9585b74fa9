//! Pages of lists. Each is bounded by entries and by bytes, whatever the guests and callers have put into them.

use serde::Serialize;
use serde_json::{Value, json};
use stockade_core::ErrorCode;

use super::failure::ApiFailure;

/// Entries of one page, unless the request says how many.
const DEFAULT_PAGE_ENTRIES: usize = 100;
pub(crate) const MAX_PAGE_ENTRIES: usize = 1000;
/// Bytes of the entries of one page. A longer entry is a page of its own.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// A page that is being filled. `K` is what the next one begins after.
#[derive(Debug)]
pub(crate) struct PageBuilder<K> {
    max_entries: usize,
    room_bytes: usize,
    entries: Vec<Value>,
    last: Option<K>,
    /// Whether an entry did not fit.
    full: bool,
}

impl<K: Serialize> PageBuilder<K> {
    /// An empty page of this many entries.
    pub(crate) fn new(limit: Option<usize>) -> Self {
        let max_entries = limit.unwrap_or(DEFAULT_PAGE_ENTRIES).clamp(1, MAX_PAGE_ENTRIES);
        Self {
            max_entries,
            room_bytes: MAX_PAGE_BYTES,
            entries: Vec::new(),
            last: None,
            full: false,
        }
    }

    /// Takes one more entry. False where the page is full and the entry belongs to the next one.
    pub(crate) fn push(&mut self, key: K, entry: &impl Serialize) -> Result<bool, ApiFailure> {
        if self.entries.len() == self.max_entries {
            self.full = true;
            return Ok(false);
        }
        let json = serde_json::to_value(entry).map_err(|error| {
            ApiFailure::new(ErrorCode::System, format!("an entry cannot be told: {error}"))
        })?;
        let length = json.to_string().len();
        if length > self.room_bytes && !self.entries.is_empty() {
            self.full = true;
            return Ok(false);
        }
        self.room_bytes = self.room_bytes.saturating_sub(length);
        self.entries.push(json);
        self.last = Some(key);
        Ok(true)
    }

    /// Ends the page here, though more may fit: the next one begins after this.
    pub(crate) fn stop_at(&mut self, key: K) {
        self.last = Some(key);
        self.full = true;
    }

    /// The page: its entries under a name, and what the next one begins after.
    pub(crate) fn finish(self, name: &str) -> Value {
        let next = self.last.filter(|_| self.full);
        json!({ name: self.entries, "next": next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a page with texts of this length; how many fit, and what is next.
    fn fill(limit: Option<usize>, count: usize, length: usize) -> (usize, Value) {
        let mut page = PageBuilder::new(limit);
        let text = "x".repeat(length);
        let taken = (0..count).take_while(|at| page.push(*at, &text).unwrap()).count();
        let page = page.finish("texts");
        assert_eq!(page["texts"].as_array().unwrap().len(), taken);
        (taken, page["next"].clone())
    }

    #[test]
    fn a_page_ends_with_its_entries_or_with_the_list() {
        assert_eq!(fill(Some(3), 5, 1), (3, json!(2)));
        assert_eq!(fill(Some(3), 3, 1), (3, Value::Null));
        assert_eq!(fill(None, 0, 1), (0, Value::Null));
        assert_eq!(fill(Some(0), 5, 1), (1, json!(0)));
        assert_eq!(fill(Some(usize::MAX), 5000, 1).0, MAX_PAGE_ENTRIES);
    }

    #[test]
    fn a_page_has_no_more_bytes_than_it_may_and_always_gets_on() {
        let (taken, next) = fill(None, 100, MAX_PAGE_BYTES / 4);
        assert_eq!((taken, next), (3, json!(2)));
        assert_eq!(fill(None, 2, 2 * MAX_PAGE_BYTES), (1, json!(0)));
    }
}
