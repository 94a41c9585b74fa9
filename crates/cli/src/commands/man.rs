//! `stockade man`: manual pages of all commands, made from the same definitions as `--help`, so that the two cannot
//! disagree. Hidden commands and flags have none.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command, CommandFactory};
use serde_json::json;
use stockade_core::{Error, ErrorCode, Result};

use crate::cli::Cli;
use crate::terminal::printer::Printer;

const MAN_OPERATION: &str = "man";
/// Heading of flags that have none of their own.
const OPTIONS_HEADING: &str = "Options";

/// Which pages, and where they go.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write the pages of all commands into this directory, such as ~/.local/share/man/man1.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
    /// Command whose page is printed, such as `run` or `workspace apply`. [default: stockade itself]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// One page.
struct ManPage {
    /// Its name, without the section.
    name: String,
    text: String,
}

/// Prints one page, or writes all.
pub fn man(args: &ManArgs, printer: &Printer) -> Result<i32> {
    let pages = build_pages();
    let Some(dir) = &args.dir else {
        let name = ["stockade".to_owned()].iter().chain(&args.command).cloned().collect::<Vec<_>>();
        let name = name.join("-");
        let page = pages.iter().find(|page| page.name == name);
        let page = page.ok_or_else(|| unknown_command_error(&args.command))?;
        printer.data(&page.text);
        return Ok(0);
    };
    write_pages(dir, &pages)?;
    let names: Vec<_> = pages.iter().map(|page| format!("{}.1", page.name)).collect();
    if printer.is_json() {
        printer.json(&json!({ "directory": dir, "pages": names }));
    } else {
        printer.note(&format!("{} pages written to `{}`", names.len(), dir.display()));
    }
    Ok(0)
}

fn unknown_command_error(words: &[String]) -> Error {
    let message = format!("there is no command `{}`", words.join(" ").escape_debug());
    Error::new(ErrorCode::NotFound, MAN_OPERATION, message).remedy("see `stockade --help`")
}

fn write_pages(dir: &Path, pages: &[ManPage]) -> Result<()> {
    let write = || {
        std::fs::create_dir_all(dir)?;
        pages
            .iter()
            .try_for_each(|page| std::fs::write(dir.join(format!("{}.1", page.name)), &page.text))
    };
    write().map_err(|error: std::io::Error| {
        let message = format!("`{}` cannot be written to", dir.display());
        Error::new(ErrorCode::Invalid, "--dir", message)
            .remedy("name a directory that you may write to")
            .source(error)
    })
}

fn build_pages() -> Vec<ManPage> {
    let mut root = Cli::command();
    root.build();
    let mut pages = Vec::new();
    add_pages(&mut root, "stockade", &mut pages);
    pages
}

/// Adds the page of a command and those of its subcommands.
fn add_pages(command: &mut Command, name: &str, pages: &mut Vec<ManPage>) {
    let text = render_page(command, name);
    pages.push(ManPage { name: name.to_owned(), text });
    for inner in command.get_subcommands_mut().filter(|inner| is_shown(inner)) {
        let name = format!("{name}-{}", inner.get_name());
        add_pages(inner, &name, pages);
    }
}

fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

fn render_page(command: &mut Command, name: &str) -> String {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let title = escape_roff(&name.to_uppercase());
    let version = escape_roff(env!("CARGO_PKG_VERSION"));
    let mut page = format!(".TH {title} 1 \"\" \"stockade {version}\" \"User Commands\"\n");
    let summary = about.trim_end_matches('.');
    page += &format!(".SH NAME\n{} \\- {}\n", escape_roff(name), escape_roff(summary));
    page += &format!(".SH SYNOPSIS\n{}\n", escape_roff(&usage));
    let long = command.get_long_about().map_or(about, ToString::to_string);
    page += &format!(".SH DESCRIPTION\n{}", render_paragraphs(&long));
    add_arguments(command, &mut page);
    add_subcommands(command, name, &mut page);
    page
}

/// The arguments by their headings, in the order in which help has them.
fn add_arguments(command: &Command, page: &mut String) {
    let heading = |arg: &Arg| -> String {
        let given = arg.get_help_heading().unwrap_or(OPTIONS_HEADING);
        if arg.is_positional() { "Arguments".to_owned() } else { given.to_owned() }
    };
    let shown: Vec<(String, &Arg)> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .map(|arg| (heading(arg), arg))
        .collect();
    let mut headings: Vec<&str> = Vec::new();
    for (heading, _) in &shown {
        if !headings.contains(&heading.as_str()) {
            headings.push(heading);
        }
    }
    for heading in headings {
        let _ = writeln!(page, ".SH {}", escape_roff(&heading.to_uppercase()));
        for (_, arg) in shown.iter().filter(|(of, _)| of == heading) {
            let _ = write!(page, ".TP\n{}\n{}", render_flags(arg), render_help(arg));
        }
    }
}

/// `-m, --mem SIZE`
fn render_flags(arg: &Arg) -> String {
    let bold = |text: String| format!("\\fB{}\\fR", escape_roff(&text));
    let short = arg.get_short().map(|short| bold(format!("-{short}")));
    let long = arg.get_long().map(|long| bold(format!("--{long}")));
    let flags: Vec<_> = short.into_iter().chain(long).collect();
    let values = match (arg.get_action().takes_values(), arg.get_value_names()) {
        (false, _) => String::new(),
        (true, Some(names)) => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
        (true, None) => arg.get_id().as_str().to_uppercase(),
    };
    let values = match values.is_empty() {
        true => values,
        false => format!("\\fI{}\\fR", escape_roff(&values)),
    };
    let parts = [flags.join(", "), values];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn render_help(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help;
    if arg.get_action().takes_values() {
        let possible = arg.get_possible_values();
        let names: Vec<_> = possible.iter().map(|value| value.get_name()).collect();
        if !names.is_empty() {
            help += &format!(" [possible values: {}]", names.join(", "));
        }
        let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
        let defaults = defaults.collect::<Vec<_>>().join(" ");
        if !defaults.is_empty() {
            help += &format!(" [default: {defaults}]");
        }
    }
    render_paragraphs(help.trim())
}

fn add_subcommands(command: &Command, name: &str, page: &mut String) {
    let shown: Vec<_> = command.get_subcommands().filter(|inner| is_shown(inner)).collect();
    if shown.is_empty() {
        return;
    }
    page.push_str(".SH COMMANDS\n");
    for inner in shown {
        let title = escape_roff(&format!("{name}-{}", inner.get_name()));
        let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, ".TP\n\\fB{title}\\fR(1)\n{}", render_paragraphs(&about));
    }
}

/// Text of several paragraphs, each filled by the reader.
fn render_paragraphs(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| escape_roff(paragraph.trim()) + "\n");
    paragraphs.collect::<Vec<_>>().join(".PP\n")
}

/// Text that roff prints as it is: no line of it is a request, and nothing in it an escape.
fn escape_roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = escaped.lines().map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_help_lists_has_a_page_with_its_flags() {
        let pages = build_pages();
        let page = |name: &str| &pages.iter().find(|page| page.name == name).unwrap().text;
        for name in ["stockade", "stockade-run", "stockade-clean", "stockade-workspace-apply"] {
            assert!(page(name).starts_with(".TH STOCKADE"), "{name}");
        }
        assert!(page("stockade-run").contains("\\fB\\-m\\fR, \\fB\\-\\-mem\\fR \\fISIZE\\fR"));
        assert!(page("stockade-run").contains(".SH LIMITS\n"));
        assert!(page("stockade").contains("\\fBstockade\\-run\\fR(1)"));
        assert!(!pages.iter().any(|page| page.name.ends_with("-supervise")));
    }

    #[test]
    fn no_text_is_taken_for_a_request_or_an_escape() {
        assert_eq!(escape_roff(".so /etc/passwd\n'x\n\\fB"), "\\&.so /etc/passwd\n\\&'x\n\\efB");
        for page in build_pages() {
            let requests = [".TH ", ".SH ", ".TP", ".PP"];
            for line in page.text.lines().filter(|line| line.starts_with(['.', '\''])) {
                assert!(requests.iter().any(|one| line.starts_with(one)), "{}: {line}", page.name);
            }
        }
    }
}
