//! The everyday subset of a Dockerfile: its stages and their steps. What is not known is an error with its line.

use serde::Deserialize;

use super::lines::{LogicalLine, split_lines};
use super::words::split_words;

/// Upper bound of the steps of a Dockerfile.
const MAX_STEPS: usize = 1000;

/// Why a Dockerfile is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {instruction}: {reason}")]
pub struct DockerfileError {
    /// The line, from 1.
    pub line: usize,
    /// The instruction.
    pub instruction: String,
    /// What is wrong.
    pub reason: String,
}

impl DockerfileError {
    /// An error of an instruction.
    pub fn new(line: usize, instruction: &str, reason: impl Into<String>) -> Self {
        Self { line, instruction: instruction.to_owned(), reason: reason.into() }
    }
}

/// A Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// `ARG` before the first `FROM`: names with their defaults, as written.
    pub global_args: Vec<(String, Option<String>)>,
    /// The stages, in order.
    pub stages: Vec<BuildStage>,
    /// The escape character.
    pub escape: char,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildStage {
    /// The line of its `FROM`.
    pub line: usize,
    /// The image or stage that it begins with, as written.
    pub from: String,
    /// Its name.
    pub name: Option<String>,
    /// What is done.
    pub steps: Vec<BuildStep>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildStep {
    /// Its first line.
    pub line: usize,
    /// As written, on one line.
    pub text: String,
    /// What it does.
    pub instruction: Instruction,
}

/// A command of `RUN`, `CMD` or `ENTRYPOINT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandForm {
    /// A line for the shell.
    Shell(String),
    /// A program and its arguments.
    Exec(Vec<String>),
}

/// What `COPY` and `ADD` copy. Words are as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyStep {
    /// The stage or image that files come from; the context otherwise.
    pub from: Option<String>,
    /// The mode of files, instead of their own.
    pub chmod: Option<u32>,
    /// What is copied.
    pub sources: Vec<String>,
    /// Where to.
    pub destination: String,
    /// Whether this is `ADD`.
    pub is_add: bool,
}

/// What a step does. Words that may have variables are as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// Runs a command.
    Run(CommandForm),
    /// Copies files.
    Copy(CopyStep),
    /// Sets variables.
    Env(Vec<(String, String)>),
    /// Sets the working directory, which is made if need be.
    Workdir(String),
    /// Sets the user.
    User(String),
    /// Declares arguments, with their defaults.
    Arg(Vec<(String, Option<String>)>),
    /// Sets the command.
    Cmd(CommandForm),
    /// Sets the entry point.
    Entrypoint(CommandForm),
    /// Sets labels.
    Label(Vec<(String, String)>),
    /// Records ports.
    Expose(Vec<String>),
    /// Sets the shell of shell forms.
    Shell(Vec<String>),
}

impl BuildStep {
    /// The arguments that it declares.
    pub fn declared_args(&self) -> &[(String, Option<String>)] {
        if let Instruction::Arg(args) = &self.instruction { args } else { &[] }
    }

    /// The stage or image that it copies from.
    pub fn copied_from(&self) -> Option<&str> {
        let Instruction::Copy(copy) = &self.instruction else { return None };
        copy.from.as_deref()
    }
}

impl Dockerfile {
    /// Reads a Dockerfile.
    pub fn parse(text: &str) -> Result<Self, DockerfileError> {
        let (lines, escape) = split_lines(text)?;
        let mut file = Self { global_args: Vec::new(), stages: Vec::new(), escape };
        if lines.len() > MAX_STEPS {
            let reason = format!("there are more than {MAX_STEPS} instructions");
            return Err(DockerfileError::new(lines[MAX_STEPS].number, "", reason));
        }
        for line in lines {
            file.add_line(line)?;
        }
        match file.stages.is_empty() {
            true => Err(DockerfileError::new(1, "FROM", "there is none")),
            false => Ok(file),
        }
    }

    fn add_line(&mut self, line: LogicalLine) -> Result<(), DockerfileError> {
        let (keyword, rest) = line.text.split_once(char::is_whitespace).unwrap_or((&line.text, ""));
        let keyword = keyword.to_ascii_uppercase();
        let failed = |reason: String| DockerfileError::new(line.number, &keyword, reason);
        let reader = InstructionReader { escape: self.escape, rest: rest.trim() };
        if keyword == "FROM" {
            let stage = reader.read_from(line.number).map_err(failed)?;
            if let Some(name) = &stage.name
                && self.stages.iter().any(|other| other.name.as_ref() == Some(name))
            {
                return Err(failed(format!("there are two stages `{name}`")));
            }
            self.stages.push(stage);
            return Ok(());
        }
        let instruction = reader.read_instruction(&keyword).map_err(failed)?;
        match (self.stages.last_mut(), instruction) {
            (None, Instruction::Arg(args)) => self.global_args.extend(args),
            (None, _) => return Err(failed("stands before the first FROM".to_owned())),
            (Some(stage), instruction) => {
                let text = on_one_line(&line.text);
                stage.steps.push(BuildStep { line: line.number, text, instruction });
            }
        }
        Ok(())
    }
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reads the arguments of one instruction.
struct InstructionReader<'l> {
    escape: char,
    rest: &'l str,
}

impl InstructionReader<'_> {
    fn words(&self) -> Result<Vec<String>, String> {
        split_words(self.rest, self.escape).map_err(str::to_owned)
    }

    fn read_instruction(&self, keyword: &str) -> Result<Instruction, String> {
        if self.rest.is_empty() && !keyword.is_empty() && is_known(keyword) {
            return Err("needs arguments".to_owned());
        }
        Ok(match keyword {
            "RUN" => Instruction::Run(self.read_run()?),
            "COPY" => Instruction::Copy(self.read_copy(false)?),
            "ADD" => Instruction::Copy(self.read_copy(true)?),
            "ENV" => Instruction::Env(self.read_pairs()?),
            "LABEL" => Instruction::Label(self.read_pairs()?),
            "WORKDIR" => Instruction::Workdir(self.rest.to_owned()),
            "USER" => Instruction::User(self.rest.to_owned()),
            "ARG" => Instruction::Arg(self.read_args()?),
            "CMD" => Instruction::Cmd(self.read_command()?),
            "ENTRYPOINT" => Instruction::Entrypoint(self.read_command()?),
            "EXPOSE" => Instruction::Expose(self.words()?),
            "SHELL" => match self.read_command()? {
                CommandForm::Exec(words) if !words.is_empty() => Instruction::Shell(words),
                CommandForm::Exec(_) | CommandForm::Shell(_) => {
                    return Err("is written as a list: [\"/bin/sh\", \"-c\"]".to_owned());
                }
            },
            "HEALTHCHECK" | "ONBUILD" | "VOLUME" | "STOPSIGNAL" | "MAINTAINER" => {
                return Err("is not supported".to_owned());
            }
            _ => return Err("is no instruction that is known".to_owned()),
        })
    }

    fn read_from(&self, line: usize) -> Result<BuildStage, String> {
        let words = self.words()?;
        if let Some(flag) = words.first().filter(|word| word.starts_with("--")) {
            return Err(format!("the flag `{flag}` is not supported"));
        }
        let (from, name) = match words.as_slice() {
            [from] => (from, None),
            [from, r#as, name] if r#as.eq_ignore_ascii_case("as") => (from, Some(name)),
            _ => return Err("is written as `FROM IMAGE [AS NAME]`".to_owned()),
        };
        let name = name.map(|name| name.to_ascii_lowercase());
        let is_plain = |name: &String| {
            name.starts_with(|first: char| first.is_ascii_lowercase())
                && name.chars().all(|one| one.is_ascii_alphanumeric() || "-_.".contains(one))
        };
        if let Some(name) = name.as_ref().filter(|name| !is_plain(name)) {
            return Err(format!("`{}` is no name of a stage", name.escape_debug()));
        }
        Ok(BuildStage { line, from: from.clone(), name, steps: Vec::new() })
    }

    fn read_run(&self) -> Result<CommandForm, String> {
        if let Some(flag) =
            self.rest.split_whitespace().next().filter(|word| word.starts_with("--"))
        {
            return Err(format!("the flag `{flag}` is not supported"));
        }
        self.refuse_here_documents()?;
        self.read_command()
    }

    fn refuse_here_documents(&self) -> Result<(), String> {
        let is_one = |word: &str| {
            word.strip_prefix("<<").is_some_and(|rest| !rest.is_empty() && !rest.starts_with('<'))
        };
        match self.rest.split_whitespace().any(is_one) {
            true => Err("here-documents are not supported".to_owned()),
            false => Ok(()),
        }
    }

    /// A list of words as JSON, or a line for the shell.
    fn read_command(&self) -> Result<CommandForm, String> {
        let list = self.rest.starts_with('[').then(|| read_list(self.rest)).flatten();
        Ok(match list {
            Some(words) => CommandForm::Exec(words),
            None => CommandForm::Shell(self.rest.to_owned()),
        })
    }

    fn read_copy(&self, is_add: bool) -> Result<CopyStep, String> {
        self.refuse_here_documents()?;
        let (mut from, mut chmod, mut rest) = (None, None, self.rest);
        while let Some((flag, after)) = rest.split_once(char::is_whitespace)
            && flag.starts_with("--")
        {
            match flag.split_once('=') {
                Some(("--from", stage)) if !is_add => from = Some(stage.to_owned()),
                Some(("--chmod", mode)) => chmod = Some(read_mode(mode)?),
                Some(("--chown", _)) => {
                    return Err(
                        "the flag `--chown` is not supported: every file has one owner".to_owned()
                    );
                }
                _ => return Err(format!("the flag `{flag}` is not supported")),
            }
            rest = after.trim_start();
        }
        let list = rest.starts_with('[').then(|| read_list(rest)).flatten();
        let words = list.map_or_else(|| split_words(rest, self.escape), Ok)?;
        let Some((destination, sources)) = words.split_last().filter(|(_, rest)| !rest.is_empty())
        else {
            return Err("needs a source and a destination".to_owned());
        };
        if let Some(url) = sources.iter().find(|source| is_add && is_remote(source)) {
            return Err(format!("`{}` is not a local file", url.escape_debug()));
        }
        let (sources, destination) = (sources.to_vec(), destination.clone());
        Ok(CopyStep { from, chmod, sources, destination, is_add })
    }

    /// `NAME=value …`, or the old form `NAME the rest`.
    fn read_pairs(&self) -> Result<Vec<(String, String)>, String> {
        let words = self.words()?;
        if !words[0].contains('=') {
            let (name, value) = self.rest.split_once(char::is_whitespace).ok_or("needs a value")?;
            return Ok(vec![(name.to_owned(), value.trim().to_owned())]);
        }
        let pair = |word: String| match word.split_once('=') {
            Some(("", _)) | None => Err(format!("`{}` is no NAME=VALUE", word.escape_debug())),
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        };
        words.into_iter().map(pair).collect()
    }

    fn read_args(&self) -> Result<Vec<(String, Option<String>)>, String> {
        let pair = |word: String| match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        Ok(self.words()?.into_iter().map(pair).collect())
    }
}

fn is_known(keyword: &str) -> bool {
    const KNOWN: [&str; 12] = [
        "RUN",
        "COPY",
        "ADD",
        "ENV",
        "LABEL",
        "WORKDIR",
        "USER",
        "ARG",
        "CMD",
        "ENTRYPOINT",
        "EXPOSE",
        "SHELL",
    ];
    KNOWN.contains(&keyword)
}

fn read_list(text: &str) -> Option<Vec<String>> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let words = Vec::<String>::deserialize(&mut reader).ok()?;
    reader.end().ok().map(|()| words)
}

fn read_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("`--chmod={}` is no mode such as 755", text.escape_debug()))
}

fn is_remote(source: &str) -> bool {
    source.contains("://") || source.starts_with("git@")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        Dockerfile::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn stages_and_steps_are_read_with_their_lines() {
        let text = "ARG V=1\nFROM a:$V AS Build\nRUN make \\\n  all\nRUN [\"x\", \"y z\"]\n\
                    FROM scratch\nCOPY --from=build --chmod=755 a b /d/\nENV A=1 B=\"2 3\"\nENV C d e\n\
                    ENTRYPOINT [\"/d/a\"]\nEXPOSE 80 443/tcp\n";
        let file = Dockerfile::parse(text).unwrap();
        assert_eq!(file.global_args, [("V".to_owned(), Some("1".to_owned()))]);
        let [build, last] = file.stages.as_slice() else { panic!("{file:?}") };
        assert_eq!((build.name.as_deref(), build.from.as_str()), (Some("build"), "a:$V"));
        assert_eq!((build.steps[0].line, build.steps[0].text.as_str()), (3, "RUN make all"));
        let exec = CommandForm::Exec(vec!["x".to_owned(), "y z".to_owned()]);
        assert_eq!(build.steps[1].instruction, Instruction::Run(exec));
        let Instruction::Copy(copy) = &last.steps[0].instruction else { panic!("{last:?}") };
        assert_eq!((copy.from.as_deref(), copy.chmod), (Some("build"), Some(0o755)));
        assert_eq!((copy.sources.join(" "), copy.destination.as_str()), ("a b".to_owned(), "/d/"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let both = vec![pair("A", "1"), pair("B", "\"2 3\"")];
        assert_eq!(last.steps[1].instruction, Instruction::Env(both));
        assert_eq!(last.steps[2].instruction, Instruction::Env(vec![pair("C", "d e")]));
    }

    #[test]
    fn what_is_not_known_is_named_with_its_line() {
        for (text, expected) in [
            ("FROM a\n\nFETCH x", "line 3: FETCH: is no instruction that is known"),
            ("FROM a\nHEALTHCHECK NONE", "line 2: HEALTHCHECK: is not supported"),
            ("FROM a\nRUN --mount=type=cache x", "line 2: RUN: the flag `--mount=type=cache`"),
            ("FROM a\nRUN <<EOF\nx\nEOF", "line 2: RUN: here-documents are not supported"),
            ("FROM a\nCOPY --chown=1 a b", "line 2: COPY: the flag `--chown` is not supported"),
            ("FROM a\nADD https://x/y z", "line 2: ADD: `https://x/y` is not a local file"),
            ("FROM a\nADD --from=x y z", "line 2: ADD: the flag `--from=x`"),
            ("FROM a\nCOPY a", "line 2: COPY: needs a source and a destination"),
            ("FROM a\nRUN", "line 2: RUN: needs arguments"),
            ("FROM --platform=x a", "line 1: FROM: the flag"),
            ("FROM a b", "line 1: FROM: is written as"),
            ("FROM a AS 0x", "line 1: FROM: `0x` is no name"),
            ("FROM a AS b\nFROM c AS B", "line 2: FROM: there are two stages"),
            ("RUN x\nFROM a", "line 1: RUN: stands before the first FROM"),
            ("FROM a\nENV \"A=b", "line 2: ENV: a quote is not closed"),
            ("# nothing\n", "line 1: FROM: there is none"),
        ] {
            let error = error_of(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_shift_and_a_here_string_are_no_here_documents() {
        assert!(Dockerfile::parse("FROM a\nRUN echo $((1 << 2)) && cat <<<x").is_ok());
    }
}
