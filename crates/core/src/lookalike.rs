//! Characters that some servers replace by one of ASCII, or leave out, before they look at a path: compatibility forms
//! (NFKC and the "best fit" of code pages turn a fullwidth dot into `.`) and characters that are not seen.
//!
//! Whole blocks are listed where most of their characters are such: a path is refused for one of them, so a character
//! too many does no harm.

/// First and last characters.
const LOOKALIKE_RANGES: [(char, char); 39] = [
    // Control characters, spaces and signs of Latin-1.
    ('\u{80}', '\u{bf}'),
    // Letters that stand for two, and the long s.
    ('\u{132}', '\u{133}'),
    ('\u{13f}', '\u{140}'),
    ('\u{149}', '\u{149}'),
    ('\u{17f}', '\u{17f}'),
    ('\u{1c4}', '\u{1cc}'),
    ('\u{1f1}', '\u{1f3}'),
    // Modifier letters and combining marks.
    ('\u{2b0}', '\u{36f}'),
    // Signs of Greek: its question mark is a `;`.
    ('\u{37a}', '\u{37a}'),
    ('\u{37e}', '\u{37e}'),
    ('\u{384}', '\u{385}'),
    // Characters of several scripts that are not seen.
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    // Phonetic letters and combining marks.
    ('\u{1d00}', '\u{1dff}'),
    ('\u{1e9a}', '\u{1e9a}'),
    // Accents of Greek that stand alone.
    ('\u{1fbd}', '\u{1fc1}'),
    ('\u{1fcd}', '\u{1fcf}'),
    ('\u{1fdd}', '\u{1fdf}'),
    ('\u{1fed}', '\u{1fef}'),
    ('\u{1ffd}', '\u{1ffe}'),
    // Punctuation, spaces, raised and enclosed letters, operators (the division slash) and symbols.
    ('\u{2000}', '\u{2bff}'),
    ('\u{2c7c}', '\u{2c7d}'),
    // Space and stops of Chinese and Japanese, enclosed and squared forms.
    ('\u{3000}', '\u{3003}'),
    ('\u{309b}', '\u{309c}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{3200}', '\u{33ff}'),
    ('\u{a7f1}', '\u{a7f4}'),
    // Private use, ligatures and presentation forms, small and fullwidth forms.
    ('\u{e000}', '\u{f8ff}'),
    ('\u{fb00}', '\u{fb4f}'),
    ('\u{fc5e}', '\u{fc63}'),
    ('\u{fdfa}', '\u{ffff}'),
    // The same beyond the first plane.
    ('\u{10780}', '\u{107bf}'),
    ('\u{1bca0}', '\u{1d7ff}'),
    ('\u{1f100}', '\u{1f1ff}'),
    ('\u{1fbf0}', '\u{1fbff}'),
    ('\u{e0000}', '\u{10ffff}'),
];

/// Whether a server may take a character for one of ASCII, or leave it out.
pub(crate) fn is_lookalike(character: char) -> bool {
    let covers = |(first, last): &(char, char)| (*first..=*last).contains(&character);
    LOOKALIKE_RANGES.iter().any(covers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_forms_and_invisible_characters_are_found_and_letters_are_not() {
        for character in [
            '\u{ff0e}',
            '\u{ff0f}',
            '\u{ff3c}',
            '\u{ff1b}',
            '\u{ff41}',
            '\u{2024}',
            '\u{2025}',
            '\u{2044}',
            '\u{2215}',
            '\u{fe52}',
            '\u{3002}',
            '\u{ff61}',
            '\u{37e}',
            '\u{212a}',
            '\u{85}',
            '\u{a0}',
            '\u{ad}',
            '\u{200b}',
            '\u{2028}',
            '\u{3000}',
            '\u{feff}',
            '\u{301}',
            '\u{1d41a}',
            '\u{f05c}',
            '\u{e002e}',
        ] {
            assert!(is_lookalike(character), "{character:?}");
        }
        for character in "az/.~éüßøñłžıİЯжλאעربहिไทย漢字かな한글".chars()
        {
            assert!(!is_lookalike(character), "{character:?}");
        }
    }
}
