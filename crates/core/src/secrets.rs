//! Words that look like secrets, for places that are kept and shown: labels are in records, listings and
//! the journal (C-41). A guess, and on the safe side: what looks like one is refused, never shortened.

/// Words that names of secrets contain.
const SECRET_NAME_PARTS: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "bearer",
    "authorization",
];
/// Prefixes of secrets of well-known issuers, and the least length of such a secret.
const ISSUED_SECRET_PREFIXES: [(&str, usize); 21] = [
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("sk-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("xoxa-", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("xoxs-", 16),
    ("AKIA", 20),
    ("ASIA", 20),
    ("AIza", 30),
    ("npm_", 20),
    ("pypi-", 20),
    ("eyJ", 40),
];
/// Header of a key in a file.
const PEM_HEADER: &str = "-----BEGIN ";
/// What separates a name and a password in an address.
const IN_ADDRESS: &str = "://";

/// Whether this looks like a secret, by its name or by what it is.
pub(crate) fn looks_secret(name: &str, value: &str) -> bool {
    (names_secret(name) && !value.is_empty()) || is_issued(value) || is_issued(name)
}

fn names_secret(name: &str) -> bool {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    SECRET_NAME_PARTS.iter().any(|secret| plain.contains(secret))
}

fn is_issued(text: &str) -> bool {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, '=' | ',' | ';' | '"'));
    let known = |word: &str| {
        ISSUED_SECRET_PREFIXES
            .iter()
            .any(|(start, least)| word.starts_with(start) && word.len() >= *least)
    };
    text.contains(PEM_HEADER) || words.into_iter().any(known) || has_password(text)
}

/// Whether it is an address with a password in it: `https://user:password@host`.
fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once(IN_ADDRESS) else { return false };
    let authority = rest.split('/').next().unwrap_or(rest);
    authority.rsplit_once('@').is_some_and(|(user, _)| {
        user.split_once(':').is_some_and(|(_, password)| !password.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_known_by_name_or_by_form() {
        for (name, value) in [
            ("api_key", "x"),
            ("API-KEY", "x"),
            ("db.password", "hunter2"),
            ("GITHUB_TOKEN", "x"),
            ("note", "ghp_0123456789abcdefghij0123456789abcdef"),
            ("note", "key=AKIAIOSFODNN7EXAMPLE"),
            ("note", "-----BEGIN OPENSSH PRIVATE KEY-----"),
            ("origin", "https://me:hunter2@host.example/x"),
            ("sk-0123456789abcdefghij", "x"),
        ] {
            assert!(looks_secret(name, value), "{name}={value}");
        }
    }

    #[test]
    fn ordinary_labels_are_left_alone() {
        for (name, value) in [
            ("team", "build"),
            ("job", "7f0c2b6a5d3e4f1a9b8c7d6e5f4a3b2c"),
            ("commit", "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"),
            ("token", ""),
            ("origin", "https://host.example/a@b"),
            ("task", "sk-1"),
            ("teleported-from", "abcdefghijklmnop"),
        ] {
            assert!(!looks_secret(name, value), "{name}={value}");
        }
    }
}
