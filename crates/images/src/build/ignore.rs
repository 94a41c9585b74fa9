//! `.dockerignore`: which files of a context are left out. The last rule that fits decides.

/// Upper bounds, so that matching stays quick.
const MAX_RULES: usize = 1000;
const MAX_RULE_BYTES: usize = 4096;

/// The rules of a `.dockerignore`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoreRules(Vec<IgnoreRule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct IgnoreRule {
    /// Components, `**` for any number of them.
    parts: Vec<String>,
    /// `!`: taken again.
    includes: bool,
}

impl IgnoreRules {
    /// Reads the rules.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rules: Vec<_> = lines.filter_map(parse_rule).collect();
        let too_long =
            |rule: &IgnoreRule| rule.parts.iter().map(String::len).sum::<usize>() > MAX_RULE_BYTES;
        match rules.len() > MAX_RULES || rules.iter().any(too_long) {
            true => Err("there are more than 1000 rules, or one is longer than 4 KiB"),
            false => Ok(Self(rules)),
        }
    }

    /// Whether a path of the context, with slashes, is left out. A rule for a directory is one for all in it.
    pub fn is_ignored(&self, path: &str) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        let mut ignored = false;
        for rule in &self.0 {
            let fits = (1..=parts.len()).any(|end| fits(&rule.parts, &parts[..end]));
            if fits {
                ignored = !rule.includes;
            }
        }
        ignored
    }

    /// Whether something in a directory that is left out may be taken again.
    pub fn may_include_below(&self) -> bool {
        self.0.iter().any(|rule| rule.includes)
    }
}

fn parse_rule(line: &str) -> Option<IgnoreRule> {
    let (line, includes) = match line.strip_prefix('!') {
        Some(rest) => (rest.trim(), true),
        None => (line, false),
    };
    let mut parts: Vec<String> = Vec::new();
    for part in line.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part.to_owned()),
        }
    }
    (!parts.is_empty()).then_some(IgnoreRule { parts, includes })
}

/// Whether components fit those of a pattern.
fn fits(pattern: &[String], parts: &[&str]) -> bool {
    match (pattern.split_first(), parts.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((first, rest)), _) if first == "**" => {
            (0..=parts.len()).any(|skipped| fits(rest, &parts[skipped..]))
        }
        (Some(_), None) => false,
        (Some((first, rest)), Some((part, others))) => {
            fits_component(first, part) && fits(rest, others)
        }
    }
}

/// Whether a component is a pattern.
pub(super) fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

/// Whether a name fits a component that is a pattern.
pub(super) fn fits_component(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    fits_part(&pattern, &name)
}

/// Whether one component fits a pattern with `*`, `?`, `[a-z]` and `\x`. Without recursion: a `*` goes back at most
/// to where the last one stood.
fn fits_part(pattern: &[char], part: &[char]) -> bool {
    let (mut p, mut s, mut star) = (0, 0, None);
    while s < part.len() {
        match match_one(&pattern[p..], part[s]) {
            Some(used) => (p, s) = (p + used, s + 1),
            None if pattern.get(p) == Some(&'*') => {
                star = Some((p, s));
                p += 1;
            }
            None => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, s) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == '*')
}

/// How much of a pattern one letter fits; nothing where it does not.
fn match_one(pattern: &[char], letter: char) -> Option<usize> {
    match pattern {
        ['*', ..] | [] => None,
        ['?', ..] => Some(1),
        ['\\', escaped, ..] => (*escaped == letter).then_some(2),
        ['[', rest @ ..] => {
            let end = rest.iter().skip(1).position(|letter| *letter == ']')? + 1;
            let (set, negated) = match rest[..end].split_first() {
                Some(('^' | '!', set)) => (set, true),
                _ => (&rest[..end], false),
            };
            (in_set(set, letter) != negated).then_some(end + 2)
        }
        [plain, ..] => (*plain == letter).then_some(1),
    }
}

fn in_set(set: &[char], letter: char) -> bool {
    let mut at = 0;
    while at < set.len() {
        match set[at..] {
            [low, '-', high, ..] => {
                if (low..=high).contains(&letter) {
                    return true;
                }
                at += 3;
            }
            [one, ..] if one == letter => return true,
            _ => at += 1,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rule_that_fits_decides() {
        let rules =
            "# no\n*.log\n!keep.log\n/target\n**/cache\ndocs/**/*.md\n!docs/README.md\na?c\n[x-z]1";
        let rules = IgnoreRules::parse(rules).unwrap();
        for (path, ignored) in [
            ("a.log", true),
            ("keep.log", false),
            ("sub/a.log", false),
            ("target", true),
            ("target/deep/file", true),
            ("sub/target", false),
            ("cache", true),
            ("a/b/cache/c", true),
            ("docs/a.md", true),
            ("docs/a/b/c.md", true),
            ("docs/README.md", false),
            ("docs/a.txt", false),
            ("abc", true),
            ("abbc", false),
            ("y1", true),
            ("w1", false),
            ("# no", false),
        ] {
            assert_eq!(rules.is_ignored(path), ignored, "{path}");
        }
    }

    #[test]
    fn everything_but_a_few_is_written_with_a_star() {
        let rules = IgnoreRules::parse("*\n!src\n!src/../Cargo.toml\nsrc/secret").unwrap();
        assert!(rules.is_ignored("README") && rules.is_ignored("src/secret/key"));
        assert!(!rules.is_ignored("src/main.rs") && !rules.is_ignored("Cargo.toml"));
        assert!(rules.may_include_below());
        let stars = "*a".repeat(200);
        assert!(!IgnoreRules::parse(&stars).unwrap().is_ignored(&"b".repeat(200)));
        assert!(IgnoreRules::parse(&"x\n".repeat(1001)).is_err());
    }
}
