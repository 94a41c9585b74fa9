//! Foreign text (from a guest, a peer, an engine), made safe to store and to show.

/// The most characters of foreign text in a message.
pub const MAX_FOREIGN_CHARS: usize = 1000;

/// Foreign text in one line: cut to [`MAX_FOREIGN_CHARS`], white space as single spaces, and nothing left that
/// a terminal would obey or that changes how its neighbours are shown.
pub fn clean_foreign(text: &str) -> String {
    let safe = |c: char| if is_unsafe_to_show(c) { char::REPLACEMENT_CHARACTER } else { c };
    let mut shown = String::new();
    let mut room = MAX_FOREIGN_CHARS;
    for word in text.split_whitespace() {
        let space = if shown.is_empty() { "" } else { " " };
        let needed = word.chars().take(room + 1).count() + space.len();
        shown.push_str(space);
        shown.extend(word.chars().take(room.saturating_sub(space.len())).map(safe));
        if needed > room {
            shown.push('…');
            break;
        }
        room -= needed;
    }
    shown
}

/// Whether a terminal would obey this character, or it changes how its neighbours are shown.
pub fn is_unsafe_to_show(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let shown = clean_foreign("a\x1b]0;title\x07b\u{9b}2J\u{202e}c\r\n\td  ");
        assert_eq!(shown, "a\u{fffd}]0;title\u{fffd}b\u{fffd}2J\u{fffd}c d");
        assert!(!shown.chars().any(is_unsafe_to_show));
    }

    #[test]
    fn a_flood_is_cut() {
        for flood in ["x".repeat(1 << 20), " ".repeat(1 << 20) + "y", "z ".repeat(1 << 20)] {
            assert!(clean_foreign(&flood).chars().count() <= MAX_FOREIGN_CHARS + 2);
        }
        assert_eq!(clean_foreign("Größe 5 µm — ok"), "Größe 5 µm — ok");
    }
}
