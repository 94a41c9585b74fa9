//! The spellings in which the value of a secret may stand in an answer: as it is, in base64 at any offset, in a URL,
//! in JSON, in HTML, each as the usual encoders write it. Another encoding is not found: the host that gets a secret is trusted with it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// Every spelling of a value that is looked for, each once.
pub fn list_spellings(value: &str) -> Vec<Vec<u8>> {
    let mut texts = vec![value.to_owned()];
    for upper_case in [true, false] {
        texts.extend(["", "/", "/+"].map(|kept| escape_for_url(value, upper_case, kept)));
    }
    for slashes in [true, false] {
        texts.extend([true, false].map(|markup| escape_for_json(value, slashes, markup)));
    }
    texts.extend(["&#39;", "&#x27;", "&apos;", "'"].map(|quote| escape_for_html(value, quote)));
    let mut spellings: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
    for offset in 0..3 {
        let standard = encode_inside(value.as_bytes(), offset);
        spellings.push(standard.iter().map(|sign| to_url_safe(*sign)).collect());
        spellings.push(escape_slashes(&standard));
        spellings.push(standard);
    }
    spellings.sort_unstable();
    spellings.dedup();
    spellings
}

/// The characters of base64 that depend on the value alone, where so many bytes stand before it (modulo 3).
fn encode_inside(value: &[u8], offset: usize) -> Vec<u8> {
    let padded = [&[0; 3][..offset], value].concat();
    let encoded = STANDARD_NO_PAD.encode(&padded);
    let first = (offset * 8).div_ceil(6);
    let last = padded.len() * 8 / 6;
    encoded.as_bytes()[first..last].to_vec()
}

/// The same character of base64 in the alphabet for URLs and file names.
fn to_url_safe(sign: u8) -> u8 {
    match sign {
        b'+' => b'-',
        b'/' => b'_',
        other => other,
    }
}

/// As some encoders of JSON write it.
fn escape_slashes(text: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| if *byte == b'/' { vec![b'\\', b'/'] } else { vec![*byte] };
    text.iter().flat_map(escape).collect()
}

/// Slashes are escaped by PHP, and what is markup in HTML by Go.
fn escape_for_json(value: &str, slashes: bool, markup: bool) -> String {
    let mut escaped = String::new();
    for character in value.chars() {
        match character {
            '"' | '\\' => escaped.extend(['\\', character]),
            '/' if slashes => escaped.push_str("\\/"),
            '<' if markup => escaped.push_str("\\u003c"),
            '>' if markup => escaped.push_str("\\u003e"),
            '&' if markup => escaped.push_str("\\u0026"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn escape_for_html(value: &str, quote: &str) -> String {
    let plain = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    plain.replace('"', "&quot;").replace('\'', quote)
}

/// `kept` stays as it is, beside what every encoder keeps. Where that has a plus, a space becomes one.
fn escape_for_url(value: &str, upper_case: bool, kept: &str) -> String {
    let mut escaped = String::new();
    for byte in value.bytes() {
        // Writing to a string does not fail.
        let _ = match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.write_char(char::from(byte))
            }
            b'/' if kept.contains('/') => escaped.write_char('/'),
            b' ' if kept.contains('+') => escaped.write_char('+'),
            other if upper_case => write!(escaped, "%{other:02X}"),
            other => write!(escaped, "%{other:02x}"),
        };
    }
    escaped
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    use super::*;

    const VALUE: &str = "a/b+c\"d\\e??>>~~f";

    fn is_found(text: &str) -> bool {
        let stands = |spelling: &Vec<u8>| text.contains(std::str::from_utf8(spelling).unwrap());
        list_spellings(VALUE).iter().any(stands)
    }

    #[test]
    fn a_value_is_found_in_every_spelling() {
        let url = "a%2Fb%2Bc%22d%5Ce%3F%3F%3E%3E~~f";
        let json = "{\"key\": \"a/b+c\\\"d\\\\e??>>~~f\"}";
        let by_others = [
            "a/b%2Bc%22d%5Ce%3F%3F%3E%3E~~f",
            r#"{"key": "a\/b+c\"d\\e??>>~~f"}"#,
            r#"{"key": "a/b+c\"d\\e??\u003e\u003e~~f"}"#,
            "a/b+c&quot;d\\e??&gt;&gt;~~f",
        ];
        for text in by_others {
            assert!(is_found(text), "{text}");
        }
        for text in [VALUE, url, json] {
            assert!(is_found(&format!("before {text} after")), "{text}");
        }
        assert!(is_found("a%2fb%2bc%22d%5ce%3f%3f%3e%3e~~f"));
        for before in ["", "x", "xy", "Bearer ", "user:"] {
            let text = format!("{before}{VALUE} and more");
            assert!(is_found(&STANDARD.encode(&text)), "{text}");
            assert!(is_found(&URL_SAFE.encode(&text)), "{text}");
        }
        assert!(!is_found("a/b+c") && !is_found(""));
    }

    #[test]
    fn a_plain_value_has_few_spellings() {
        assert_eq!(list_spellings("correct-horse").len(), 4);
    }
}
