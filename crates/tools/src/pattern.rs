//! The few patterns of rules: `*` within a word, `**` over directories. Linear in memory, and never
//! worse than the product of the two lengths in time.

/// Whether a word fits a pattern in which `*` stands for any text.
pub(crate) fn word_fits(pattern: &str, word: &str) -> bool {
    runs_fit(pattern.as_bytes(), word.as_bytes())
}

/// Whether a path fits a glob: `*` within one name, `**` for any number of directories.
pub(crate) fn path_fits(glob: &str, path: &str) -> bool {
    let globs: Vec<&str> = glob.split('/').collect();
    let names: Vec<&str> = path.split('/').collect();
    names_fit(&globs, &names)
}

/// The classic walk with one way back: to the last star.
fn runs_fit(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut back) = (0, 0, None);
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            back = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((after, from)) = back {
            back = Some((after, from + 1));
            (p, t) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The same walk over whole names, where `**` is the star.
fn names_fit(globs: &[&str], names: &[&str]) -> bool {
    let (mut g, mut n, mut back) = (0, 0, None);
    while n < names.len() {
        if globs.get(g) == Some(&"**") {
            back = Some((g + 1, n));
            g += 1;
        } else if globs.get(g).is_some_and(|glob| word_fits(glob, names[n])) {
            g += 1;
            n += 1;
        } else if let Some((after, from)) = back {
            back = Some((after, from + 1));
            (g, n) = (after, from + 1);
        } else {
            return false;
        }
    }
    globs[g..].iter().all(|glob| *glob == "**")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_fit_what_people_expect() {
        for (glob, path, fits) in [
            ("src/**", "src/a/b", true),
            ("src/**", "srcs/a", false),
            ("**/.env", ".env", true),
            ("**/.env", "a/b/.env", true),
            ("*.rs", "a/b.rs", false),
            ("**/*.rs", "a/b.rs", true),
            ("a/*/c", "a/b/c", true),
            ("a/*/c", "a/b/b/c", false),
            ("**", "anything/at/all", true),
        ] {
            assert_eq!(path_fits(glob, path), fits, "{glob} {path}");
        }
    }

    #[test]
    fn a_word_full_of_stars_takes_no_time() {
        let word = "a".repeat(5000);
        assert!(!word_fits(&format!("{}b", "*a".repeat(50)), &word));
    }
}
