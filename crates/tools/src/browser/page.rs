//! What a page tells about itself, by functions that run in it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The functions, as one object.
const PAGE_FUNCTIONS: &str = include_str!("page.js");
/// Most text of a page in an answer, and most elements of it that can be used.
const MAX_TEXT_CHARS: usize = 30_000;
const MAX_ELEMENTS: usize = 100;
/// Longest address and title, longest selector, and longest of the other words about one element.
const MAX_TITLE_CHARS: usize = 2_000;
const MAX_SELECTOR_CHARS: usize = 1_000;
const MAX_WORD_CHARS: usize = 500;

/// A page as an agent sees it.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageReport {
    pub url: String,
    pub title: String,
    /// The text that is visible.
    pub text: String,
    /// How many characters are left out at the end of `text`.
    pub text_left_out: u64,
    /// What can be clicked or typed into.
    pub elements: Vec<PageElement>,
    /// How many of those are left out.
    pub elements_left_out: u64,
    /// What happened that the text does not show, such as a dialog.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Whether it was not loaded yet.
    #[serde(default)]
    pub loading: bool,
}

/// Something on a page that can be used.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct PageElement {
    /// Names it and no other.
    pub selector: String,
    pub kind: String,
    pub label: String,
    pub value: Option<String>,
    pub href: Option<String>,
}

/// The middle of an element, in pixels from the upper left of the window.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct ElementPosition {
    pub x: f64,
    pub y: f64,
}

/// What became of a field that is to get text.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct FocusedField {
    /// Whether it was a list, whose option is selected already.
    pub selected: bool,
}

/// An expression that calls one of the functions in the page.
pub(super) fn call_expression(function: &str, argument: &Value) -> String {
    // JSON is a part of JavaScript, also where it has line separators.
    format!("({PAGE_FUNCTIONS}).{function}({argument})")
}

/// The argument of `report`: about the whole page, or one element of it.
pub(super) fn report_argument(selector: Option<&str>) -> Value {
    json!({ "selector": selector, "maxText": MAX_TEXT_CHARS, "maxElements": MAX_ELEMENTS })
}

impl PageReport {
    /// The same within its bounds, which the page may not have kept.
    pub(super) fn bounded(mut self) -> Self {
        let cut = |text: &mut String, most: usize| {
            if let Some((end, _)) = text.char_indices().nth(most) {
                text.truncate(end);
            }
        };
        cut(&mut self.text, MAX_TEXT_CHARS);
        let told = self.elements.len();
        // A part of a selector names something else.
        self.elements.retain(|element| element.selector.chars().count() <= MAX_SELECTOR_CHARS);
        self.elements.truncate(MAX_ELEMENTS);
        let dropped = (told - self.elements.len()) as u64;
        self.elements_left_out = self.elements_left_out.saturating_add(dropped);
        cut(&mut self.url, MAX_TITLE_CHARS);
        cut(&mut self.title, MAX_TITLE_CHARS);
        for element in &mut self.elements {
            let PageElement { selector: _, kind, label, value, href } = element;
            let words = [Some(kind), Some(label), value.as_mut(), href.as_mut()];
            words.into_iter().flatten().for_each(|word| cut(word, MAX_WORD_CHARS));
        }
        self
    }

    /// The same for a reader.
    pub(super) fn to_text(&self) -> String {
        let mut lines = vec![format!("{} — {}", self.url, self.title)];
        lines.extend(self.loading.then(|| "(not loaded yet)".to_owned()));
        lines.extend(self.notes.iter().map(|note| format!("({note})")));
        lines.push(self.text.clone());
        if self.text_left_out > 0 {
            lines.push(format!(
                "… {} characters left out; name a part by `selector` …",
                self.text_left_out
            ));
        }
        if !self.elements.is_empty() {
            lines.push("\nelements:".to_owned());
        }
        lines.extend(self.elements.iter().map(PageElement::to_line));
        if self.elements_left_out > 0 {
            lines.push(format!("… {} elements left out …", self.elements_left_out));
        }
        lines.join("\n")
    }
}

impl PageElement {
    fn to_line(&self) -> String {
        let value = self.value.as_ref().map(|value| format!(" = {value:?}")).unwrap_or_default();
        let href = self.href.as_ref().map(|href| format!(" -> {href}")).unwrap_or_default();
        format!("{}  [{}] {}{value}{href}", self.selector, self.kind, self.label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded_whatever_the_page_says() {
        let long = "ä".repeat(100_000);
        let element = json!({
            "selector": "a", "kind": long, "label": long, "value": long, "href": null,
        });
        let unnamed = json!({
            "selector": long, "kind": "a", "label": "", "value": null, "href": null,
        });
        let elements = [vec![unnamed; 10], vec![element; 990]].concat();
        let report: PageReport = serde_json::from_value(json!({
            "url": long, "title": long, "text": long, "textLeftOut": u64::MAX,
            "elements": elements, "elementsLeftOut": 7,
        }))
        .unwrap();
        let report = report.bounded();
        assert_eq!(report.text.chars().count(), MAX_TEXT_CHARS);
        assert_eq!((report.elements.len(), report.elements_left_out), (MAX_ELEMENTS, 907));
        let most = MAX_TEXT_CHARS + 2 * MAX_TITLE_CHARS + 4 * MAX_ELEMENTS * MAX_WORD_CHARS;
        assert!(report.to_text().chars().count() < most + 10_000);
    }

    #[test]
    fn what_an_agent_says_stays_a_string_in_the_page() {
        let expression =
            call_expression("locate", &json!({ "selector": "\"})); alert(1); //\u{2028}" }));
        assert!(expression.ends_with(").locate({\"selector\":\"\\\"})); alert(1); //\u{2028}\"})"));
    }
}
