//! Which programs a shell line starts, where that is certain.
//!
//! Understands plain and quoted words, and lists of them joined by `;`, `&&`, `||`, `|` and newlines.
//! Expansions, redirections, groups, assignments and definitions are not guessed at: then nothing is known.
//! It must never know more than the shell does, so every doubt is the answer "nothing".

/// The simple commands of a line, in order, or nothing where there is any doubt.
pub(super) fn parse_commands(line: &str) -> Option<Vec<Vec<String>>> {
    let mut reader =
        ShellReader { rest: line, commands: Vec::new(), words: Vec::new(), due: false };
    while reader.parse_next()? {}
    reader.end_command(false)?;
    let certain = reader.commands.iter().all(|argv| is_plain_program(argv))
        && !moves_programs(&reader.commands);
    (certain && !reader.commands.is_empty()).then_some(reader.commands)
}

struct ShellReader<'a> {
    rest: &'a str,
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    /// Whether an operator is waiting for its right-hand side.
    due: bool,
}

impl ShellReader<'_> {
    /// Takes the next word or operator. Nothing: there is a doubt. False: the line is over.
    fn parse_next(&mut self) -> Option<bool> {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        let Some(first) = self.rest.chars().next() else {
            return Some(false);
        };
        match first {
            ';' | '\n' => {
                self.skip_bytes(1);
                if self.words.is_empty() {
                    // Empty lines mean nothing; two semicolons in a row mean something else.
                    return (first == '\n' && !self.due).then_some(true);
                }
                self.end_command(false)?;
            }
            '&' | '|' => {
                let double = self.rest.starts_with("&&") || self.rest.starts_with("||");
                if first == '&' && !double {
                    return None;
                }
                self.skip_bytes(if double { 2 } else { 1 });
                self.end_command(true)?;
            }
            _ => {
                let word = self.parse_word()?;
                self.words.push(word);
            }
        }
        Some(true)
    }

    fn skip_bytes(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// Ends the command that was being read. An empty one is a doubt, except at the very end.
    fn end_command(&mut self, more_is_due: bool) -> Option<()> {
        if self.words.is_empty() {
            let over = self.rest.is_empty() && !self.due && !more_is_due;
            return over.then_some(());
        }
        self.commands.push(std::mem::take(&mut self.words));
        self.due = more_is_due;
        Some(())
    }

    fn parse_word(&mut self) -> Option<String> {
        let mut word = String::new();
        while let Some(next) = self.rest.chars().next() {
            match next {
                '\'' => word.push_str(self.parse_quoted('\'', |_| true)?),
                '"' => word.push_str(self.parse_quoted('"', |c| !"$`\\!".contains(c))?),
                c if is_literal_char(c) => {
                    word.push(c);
                    self.skip_bytes(c.len_utf8());
                }
                ' ' | '\t' | '\n' | ';' | '&' | '|' => break,
                _ => return None,
            }
        }
        Some(word)
    }

    fn parse_quoted(&mut self, quote: char, certain: impl Fn(char) -> bool) -> Option<&str> {
        let inside = &self.rest[1..];
        let length = inside.find(quote)?;
        self.rest = &inside[length + 1..];
        let text = &inside[..length];
        text.chars().all(|c| certain(c) && c != '\0').then_some(text)
    }
}

/// What means itself to every shell, quoted or not.
fn is_literal_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./:,+@%^=".contains(c)
}

/// Keywords, and builtins that run their arguments, assign variables or change what later words mean.
/// Those of other shells than bash are among them: whose line it is, is not known for sure.
const NOT_PROGRAMS: &[&str] = &[
    "",
    ".",
    "alias",
    "autoload",
    "bg",
    "bind",
    "break",
    "builtin",
    "caller",
    "case",
    "chdir",
    "command",
    "compgen",
    "complete",
    "compopt",
    "continue",
    "coproc",
    "declare",
    "dirs",
    "disown",
    "do",
    "done",
    "elif",
    "else",
    "emulate",
    "enable",
    "end",
    "esac",
    "eval",
    "exec",
    "exit",
    "export",
    "fc",
    "fg",
    "fi",
    "float",
    "for",
    "foreach",
    "function",
    "functions",
    "getln",
    "getopts",
    "hash",
    "history",
    "if",
    "in",
    "integer",
    "jobs",
    "let",
    "local",
    "logout",
    "mapfile",
    "nameref",
    "nocorrect",
    "noglob",
    "popd",
    "print",
    "pushd",
    "read",
    "readarray",
    "readonly",
    "repeat",
    "return",
    "select",
    "set",
    "setvar",
    "shift",
    "shopt",
    "source",
    "suspend",
    "then",
    "time",
    "times",
    "trap",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "until",
    "vared",
    "wait",
    "whence",
    "while",
    "zmodload",
    "zparseopts",
];

/// Conversions of `printf` that only print. `%n` assigns to the variable that an argument names.
const PRINTING_CONVERSIONS: &str = "diouxXeEfFgGaAcsbqQ%";

/// Whether the first word is a program, or a builtin that leaves the shell as it is.
fn is_plain_program(argv: &[String]) -> bool {
    let Some((word, arguments)) = argv.split_first() else {
        return false;
    };
    let assigns = match word.as_str() {
        // `-v` makes it assign, and so does `%n` in its format.
        "printf" => arguments.iter().any(|one| one.starts_with("-v") || !only_prints(one)),
        // `-v` and `-R` evaluate what stands in the brackets after a variable's name.
        "test" => arguments.iter().any(|one| one.starts_with("-v") || one.starts_with("-R")),
        _ => false,
    };
    // `%1` continues a job.
    let job = word.starts_with('%');
    !word.contains('=') && !NOT_PROGRAMS.contains(&word.as_str()) && !assigns && !job
}

/// Whether a text, if it is a format, only prints. What is not known to is a doubt.
fn only_prints(format: &str) -> bool {
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        let spec = rest[at + 1..]
            .trim_start_matches(|c: char| "-+ #0'*.$hlLjzt".contains(c) || c.is_ascii_digit());
        // A format for times, in parentheses.
        let spec = match spec.strip_prefix('(') {
            Some(time) => match time.split_once(")T") {
                Some((_, after)) => {
                    rest = after;
                    continue;
                }
                None => return false,
            },
            None => spec,
        };
        match spec.chars().next() {
            Some(c) if PRINTING_CONVERSIONS.contains(c) => rest = &spec[c.len_utf8()..],
            // At the very end it is an error, not a conversion.
            None => return true,
            Some(_) => return false,
        }
    }
    true
}

/// Whether a line changes the directory before it starts a program that is named from there: such a
/// name says nothing about which program it is.
fn moves_programs(commands: &[Vec<String>]) -> bool {
    let moved = commands.iter().position(|argv| argv.first().is_some_and(|word| word == "cd"));
    moved.is_some_and(|at| commands[at..].iter().any(|argv| is_relative(argv)))
}

/// Whether a program is named from the directory the shell is in.
pub(super) fn is_relative(argv: &[String]) -> bool {
    argv.first().is_some_and(|word| word.contains('/') && !word.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn simple_lists_are_understood() {
        let argv = |line| parse_commands(line).unwrap_or_default();
        assert_eq!(argv("git status"), [["git", "status"]]);
        assert_eq!(argv("a 'b c' \"d e\"f"), [["a", "b c", "d ef"]]);
        assert_eq!(argv("a && b | c; d\ne").len(), 5);
        assert_eq!(argv("a;").len(), 1);
        assert_eq!(argv("a ''"), [["a", ""]]);
        assert_eq!(argv("printf '%s %5d %-3.2f %% %(%F)T %q\\n' x; a").len(), 2);
        assert_eq!(argv("cd x; make; /bin/a").len(), 3);
        assert_eq!(argv("./a; cd x").len(), 2);
    }

    /// Builtins of bash that neither assign nor run nor change anything but the directory.
    const HARMLESS_BUILTINS: &[&str] =
        &[":", "[", "cd", "echo", "false", "help", "kill", "printf", "pwd", "test", "true", "type"];

    #[test]
    fn every_builtin_and_keyword_of_bash_was_thought_about() {
        let out = std::process::Command::new("/bin/bash")
            .args(["-c", "compgen -b; compgen -k"])
            .output()
            .unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        assert!(said.lines().count() > 60, "{said}");
        for name in said.lines() {
            // What has such characters in it is never understood as a word.
            let understood = name.chars().all(is_literal_char);
            let known = NOT_PROGRAMS.contains(&name) || HARMLESS_BUILTINS.contains(&name);
            assert!(!understood || known, "{name}");
        }
    }

    /// Every line that is understood and passes for harmless leaves the shell's variables as they were.
    #[test]
    fn no_line_that_is_understood_assigns() {
        for line in ["printf '%n' PATH", "printf 'ab%s%n' x PATH", "printf '%2$n' x PATH"] {
            let script = format!("{line} >/dev/null 2>&1; echo \"$PATH\"");
            let out = std::process::Command::new("/bin/bash")
                .args(["-c", &script])
                .env("PATH", "/bin")
                .output()
                .unwrap();
            let same = String::from_utf8_lossy(&out.stdout).trim() == "/bin";
            assert!(same || parse_commands(line).is_none(), "{line}");
        }
    }

    #[test]
    fn whatever_a_shell_might_read_differently_is_not_understood() {
        for line in [
            "a $b",
            "a `b`",
            "a \"$b\"",
            "a > b",
            "a < b",
            "a &",
            "a &&",
            "&& a",
            "a ;; b",
            "a ;;",
            "printf -v PATH . ; a",
            "printf '%n' PATH; ls",
            "printf '%5n' PATH; ls",
            "printf '%s%ln' x PATH; ls",
            "printf -- '%*n' 1 PATH; ls",
            "printf '%(%s)T%n' 0 PATH; ls",
            "printf '%(%n' PATH; ls",
            "printf '%%%n' PATH; ls",
            "test -R x",
            "wait -p PATH",
            "read PATH; ls",
            "mapfile PATH",
            "readarray PATH",
            "getopts a PATH",
            "unset PATH",
            "complete -C a b",
            "pushd x",
            "history -s x",
            "%1",
            "cd evil; ./a",
            "cd evil && bin/a",
            "test -v 'a[$(b)]'",
            "a\n;",
            "| a",
            "(a)",
            "{ a; }",
            "a *",
            "a ?",
            "a [b]",
            "~/a",
            "a ~",
            "A=b c",
            "eval a",
            ". a",
            "a \\\nb",
            "if a; then b; fi",
            "a # b",
            "! a",
            "a\\ b",
            "a 'b",
            "a \"b",
            "a {b,c}",
            "",
            "  ",
            ";",
            "exec a",
            "jobs -x a",
            "command a",
            "time a",
            "a | | b",
            "a\rb",
            "a\u{a0}b",
        ] {
            assert_eq!(parse_commands(line), None, "{line:?}");
        }
    }

    /// A program that says how it was called, as the shell saw it.
    fn witness() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let script = "#!/bin/sh\nprintf '%s\\0' \"$#\" \"$@\"\n";
        for name in ["aa", "bb"] {
            let path = dir.path().join(name);
            std::fs::write(&path, script).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    /// Parts that lines are made of: mostly plain things, and each thing that makes a doubt.
    const LINE_PARTS: &[&str] = &[
        " ", " ", "a", "b.c", "-x", "'b c'", "\"d e\"", ";", "&&", "\n", "bb", " bb ", "''", "=",
        ",", "$x", "*", "'", "\"", "\\", "#", "!", "~", "{a,b}", "(", "&", ";;",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn what_is_understood_is_what_the_shell_does(
            parts in proptest::collection::vec(proptest::sample::select(LINE_PARTS), 0..10),
        ) {
            let line = format!("aa {}", parts.concat());
            let known = parse_commands(&line);
            let Some(known) = known.filter(|argvs| argvs.iter().all(|argv| ["aa", "bb"].contains(&argv[0].as_str()))) else {
                return Ok(());
            };
            let dir = witness();
            let out = std::process::Command::new("/bin/sh").arg("-c").arg(&line)
                .env_clear().env("PATH", dir.path()).current_dir(dir.path()).output().unwrap();
            let mut expected = Vec::new();
            for argv in known {
                expected.push((argv.len() - 1).to_string());
                expected.extend(argv.into_iter().skip(1));
            }
            let said: String = expected.iter().map(|word| format!("{word}\0")).collect();
            prop_assert_eq!(String::from_utf8_lossy(&out.stdout), said, "{:?}", line);
        }
    }
}
