//! The logical lines of a Dockerfile: directives, comments and continuations.

use super::DockerfileError;

/// The character that continues a line, unless a directive says otherwise.
const DEFAULT_ESCAPE: char = '\\';
/// Upper bound of a Dockerfile.
pub(super) const MAX_DOCKERFILE_BYTES: usize = 1 << 20;

/// One instruction with its arguments, on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogicalLine {
    /// The number of its first line, from 1.
    pub number: usize,
    pub text: String,
}

/// The lines of a Dockerfile, and its escape character.
pub(super) fn split_lines(text: &str) -> Result<(Vec<LogicalLine>, char), DockerfileError> {
    if text.len() > MAX_DOCKERFILE_BYTES {
        return Err(DockerfileError::new(1, "", "the file is larger than 1 MiB"));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let escape = read_escape(text)?;
    let (mut lines, mut open): (Vec<LogicalLine>, Option<LogicalLine>) = (Vec::new(), None);
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            // Both may stand within a continued line.
            continue;
        }
        let (piece, continues) = match line.trim_end().strip_suffix(escape) {
            Some(piece) => (piece, true),
            None => (line, false),
        };
        let current = open.get_or_insert(LogicalLine { number: at + 1, text: String::new() });
        current.text.push_str(piece);
        if !continues {
            lines.extend(open.take());
        }
    }
    lines.extend(open);
    for line in &mut lines {
        line.text = line.text.trim().to_owned();
    }
    Ok((lines, escape))
}

/// The escape character of the directives, which stand before everything else.
fn read_escape(text: &str) -> Result<char, DockerfileError> {
    for (at, line) in text.lines().enumerate() {
        let Some(comment) = line.trim().strip_prefix('#') else { break };
        let Some((name, value)) = comment.split_once('=') else { break };
        match (name.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("escape", "\\") => return Ok('\\'),
            ("escape", "`") => return Ok('`'),
            ("escape", _) => {
                let reason = "the escape character is `\\` or a backtick";
                return Err(DockerfileError::new(at + 1, "# escape", reason));
            }
            // What reads the file, and how strictly: this does, and strictly.
            ("syntax" | "check", _) => {}
            _ => break,
        }
    }
    Ok(DEFAULT_ESCAPE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<(usize, String)> {
        let lines = split_lines(text).unwrap().0;
        lines.into_iter().map(|line| (line.number, line.text)).collect()
    }

    #[test]
    fn lines_are_continued_past_comments_and_empty_lines() {
        let text = "# syntax=docker/dockerfile:1\n\nFROM a\nRUN x \\\n# no\n\n  && y\nCMD z \\";
        let expected = [(3, "FROM a"), (4, "RUN x   && y"), (8, "CMD z")];
        assert_eq!(texts(text), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn the_escape_character_is_a_directive_only_at_the_top() {
        assert_eq!(texts("# escape=`\nRUN a `\n b"), [(2, "RUN a  b".to_owned())]);
        assert_eq!(texts("# hello\n# escape=`\nRUN a \\\n b"), [(3, "RUN a  b".to_owned())]);
        assert_eq!(split_lines("# escape=x\n").unwrap_err().line, 1);
    }
}
