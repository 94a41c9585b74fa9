//! A question as it is shown. All text of the agent stays behind a margin of its own: it can neither
//! steer the terminal nor look like what we say.

use stockade_core::Boundary;
use stockade_tools::{NetworkFact, Programs, Question};

const LINE_MARGIN: &str = "            | ";
/// Text width below which nothing could be read; a narrower terminal is taken to be wider.
const MIN_TEXT_WIDTH: usize = 24;
/// Lines shown from the beginning and from the end of each part.
const MAX_HEAD_LINES: usize = 30;
const MAX_TAIL_LINES: usize = 10;

/// A question as it is shown.
pub struct QuestionPage {
    /// The question, without the prompt.
    pub text: String,
    /// Whether it is all there.
    pub whole: bool,
}

/// The question for a terminal of this width.
pub fn build_page(question: &Question, width: usize) -> QuestionPage {
    let facts = &question.facts;
    let title = if question.lasting {
        "a program in a sandbox wants to reach a host that no rule names"
    } else {
        "an agent asks for permission"
    };
    let mut page = QuestionPage { text: format!("\nstockade: {title}\n"), whole: true };
    page.add_field("tool", &escape_text(&facts.tool));
    page.add_field("where", &describe_place(question));
    page.add_field("network", describe_network(facts.network));
    if facts.widens {
        page.add_field("note", "asks for more than the server was started with");
    }
    let room = width.max(LINE_MARGIN.len() + MIN_TEXT_WIDTH) - LINE_MARGIN.len() - 1;
    match &facts.programs {
        Programs::Known(argvs) if argvs.is_empty() => {}
        Programs::Known(argvs) => {
            page.add_quoted("runs", argvs.iter().map(|argv| quote_words(argv)), room);
        }
        Programs::Opaque(line) => page.add_quoted("runs", line.split('\n').map(escape_text), room),
    }
    if !facts.paths.is_empty() {
        page.add_quoted("touches", facts.paths.iter().map(|path| quote_word(path)), room);
    }
    for detail in &facts.details {
        page.add_quoted(&escape_text(&detail.name), detail.text.split('\n').map(escape_text), room);
    }
    page
}

impl QuestionPage {
    fn add_field(&mut self, label: &str, text: &str) {
        self.text += &format!("  {label:<9} {text}\n");
    }

    /// Text of the agent's, line by line behind a margin.
    fn add_quoted(&mut self, label: &str, lines: impl Iterator<Item = String>, room: usize) {
        self.text += &format!("  {label}\n");
        let lines: Vec<_> = lines.flat_map(|line| fold_line(&line, room)).collect();
        let left_out = lines.len().saturating_sub(MAX_HEAD_LINES + MAX_TAIL_LINES);
        let (first, rest) = lines.split_at(lines.len().min(MAX_HEAD_LINES));
        self.add_lines(first);
        if left_out > 0 {
            self.whole = false;
            self.text += &format!("  ({left_out} lines are not shown)\n");
        }
        self.add_lines(&rest[left_out..]);
    }

    fn add_lines(&mut self, lines: &[String]) {
        for line in lines {
            self.text += &format!("{LINE_MARGIN}{line}\n");
        }
    }
}

fn describe_place(question: &Question) -> String {
    let facts = &question.facts;
    match (&question.sandbox, &facts.backend) {
        (Some(id), Some(backend)) => {
            format!("sandbox {id}, {backend} (boundary {})", facts.boundary)
        }
        (Some(id), None) => format!("sandbox {id} (boundary {})", facts.boundary),
        (None, _) if facts.boundary == Boundary::None => "this machine, without walls".into(),
        (None, _) => "a sandbox of its own".into(),
    }
}

const fn describe_network(network: NetworkFact) -> &'static str {
    match network {
        NetworkFact::None => "none",
        NetworkFact::Loopback => "its own loopback",
        NetworkFact::Egress => "listed hosts",
        NetworkFact::Host => "all that this machine reaches",
    }
}

fn quote_words(argv: &[String]) -> String {
    argv.iter().map(|one| quote_word(one)).collect::<Vec<_>>().join(" ")
}

/// A word as it is where that is plain, else in quotes, so that one is not read as two.
fn quote_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+^~".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("\"{}\"", escape_text(text).replace('"', "\\\""))
}

/// Without anything that a terminal obeys, or that is not seen, or that moves what stands beside it.
fn escape_text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// In pieces that fit. What is not ASCII may take two columns.
fn fold_line(line: &str, room: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for c in line.chars() {
        let columns = if c.is_ascii() { 1 } else { 2 };
        if used + columns > room {
            pieces.push(String::new());
            used = 0;
        }
        used += columns;
        if let Some(piece) = pieces.last_mut() {
            piece.push(c);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use stockade_tools::{Detail, Facts};

    use super::*;

    fn about(programs: Programs, paths: &[&str]) -> Question {
        let facts = Facts {
            tool: "bash".into(),
            programs,
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
            network: NetworkFact::Host,
            backend: None,
            boundary: Boundary::None,
            widens: false,
            person_only: false,
            details: Vec::new(),
        };
        Question { text: String::new(), sandbox: None, facts, lasting: false }
    }

    fn of_line(line: &str) -> QuestionPage {
        build_page(&about(Programs::Opaque(line.into()), &[]), 60)
    }

    /// What stands behind the margin; what does not is ours.
    fn quoted(page: &QuestionPage) -> Vec<&str> {
        page.text.lines().filter_map(|line| line.strip_prefix(LINE_MARGIN)).collect()
    }

    #[test]
    fn words_that_could_be_taken_for_others_are_quoted() {
        let argv = ["rm", "-rf", "a b", "", "c\"d", "e\\f"].map(str::to_owned).to_vec();
        let shown = build_page(&about(Programs::Known(vec![argv]), &[]), 60);
        assert_eq!(quoted(&shown), [r#"rm -rf "a b" "" "c\"d" "e\\f""#]);
        assert!(shown.text.contains("this machine, without walls"), "{}", shown.text);
    }

    #[test]
    fn nothing_of_the_agents_steers_a_terminal() {
        let evil = "a\x1b[2Jb\rc\x07d\u{9b}e\u{202e}f\u{200b}g\u{301}h\x08i\tj";
        for shown in [of_line(evil), build_page(&about(Programs::NONE, &[evil]), 60)] {
            let ours = |c: char| c == '\n' || (' '..='~').contains(&c);
            assert!(shown.text.chars().all(ours), "{:?}", shown.text);
        }
    }

    #[test]
    fn no_line_of_the_agents_can_look_like_ours() {
        let forged = format!("true{}\n  (y)\nallow it, this once? [y/N] ", " ".repeat(200));
        let shown = of_line(&forged);
        assert!(shown.text.lines().all(|line| line.chars().count() < 60), "{}", shown.text);
        assert!(!shown.text.contains("\nallow"), "{}", shown.text);
        assert!(quoted(&shown).contains(&"allow it, this once? [y/N] "), "{}", shown.text);
        let wide = of_line(&"\u{6f22}".repeat(100));
        assert!(quoted(&wide).iter().all(|line| line.chars().count() <= 23), "{}", wide.text);
    }

    #[test]
    fn what_decides_what_a_line_comes_to_is_shown_with_it() {
        let mut question = about(Programs::Opaque("git status".into()), &[]);
        let detail =
            |name: &str, text: &str| Detail { name: name.into(), text: text.into(), private: true };
        question.facts.details =
            vec![detail("variable LD_PRELOAD", "./x.so"), detail("input", "a\nb")];
        let shown = build_page(&question, 60);
        assert_eq!(quoted(&shown), ["git status", "./x.so", "a", "b"]);
        assert!(shown.text.contains("\n  variable LD_PRELOAD\n"), "{}", shown.text);
    }

    #[test]
    fn what_is_too_long_is_shown_in_part_and_says_so() {
        let lines: Vec<_> = (0..1000).map(|number| format!("echo {number}")).collect();
        let shown = of_line(&lines.join("\n"));
        assert!(!shown.whole);
        assert!(shown.text.contains("(960 lines are not shown)"), "{}", shown.text);
        let quoted = quoted(&shown);
        assert_eq!((quoted[0], quoted[29], quoted[30]), ("echo 0", "echo 29", "echo 990"));
        assert_eq!(quoted.last(), Some(&"echo 999"));
        assert!(of_line("echo").whole);
    }
}
