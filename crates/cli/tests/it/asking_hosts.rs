//! `--net ask`: a person at the terminal is asked about hosts that no rule names.

use std::fs;

use crate::common::lasting::Lasting;
use crate::common::screen::Screen;
use crate::common::{CliPlace, wait};
use crate::network::{Internet, KNOWN_NAME, fetch_program};

const HOST_PROMPT: &str = "n: never [y/s/N] ";

#[test]
fn without_a_person_it_is_refused_with_the_remedy() {
    let place = Lasting::new();
    place.stockade(&["run", "--net", "ask", "--", "true"]).is_refused(&["terminal", "list the"]);
    for command in [&["create", "--net", "ask"][..], &["run", "-d", "--net", "ask", "--", "true"]] {
        place.stockade(command).is_refused(&["a person", "list the hosts instead"]);
    }
    let both = ["run", "-i", "--net", "ask,a.org", "--", "true"];
    place.stockade(&both).is_refused(&["excludes -i and -t"]);
    Internet::start().configure(&place);
    let id = place.create(&["--net", "a.test"]);
    place.stockade(&["net", &id, "--allow", "ask"]).is_refused(&["a person"]);
    place.stockade(&["net", &id]).is(0, "a.test\n", "");
}

mod needs_python {
    use super::*;

    /// Fetches a page twice at a terminal, with these answers to the questions about it.
    fn fetch_twice(answers: &[&str]) -> (String, usize, String) {
        let (place, internet) = (CliPlace::new(), Internet::start());
        internet.configure(&place);
        let port = internet.port;
        let net = format!("ask,127.0.0.1:{port}");
        let once = fetch_program(KNOWN_NAME, port, true);
        let program = format!("{once}\n{once}\nprint('end of it')");
        let mut screen = Screen::new();
        let run = ["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program];
        let child = screen.start_in_front(&place, &run);
        for answer in answers {
            let page = screen.until(HOST_PROMPT);
            assert!(page.contains(&format!("| {KNOWN_NAME}:{port}")), "{page}");
            screen.keys(answer);
        }
        let shown = screen.until("end of it");
        assert_eq!(wait(child).code, 0);
        let files = fs::read_dir(place.state().join("journal")).unwrap().flatten();
        let journal = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
        (shown, internet.visits(), journal)
    }

    #[test]
    fn a_host_is_reached_once_or_in_this_sandbox_or_never_as_the_person_says() {
        for (answers, visits, recorded) in [
            (&["y\n", "y\n"][..], 2, "this once"),
            (&["s\n"], 2, "from this sandbox"),
            (&["n\n"], 0, "never from this sandbox"),
            // Closed, and asked again.
            (&["\u{4}", "y\n"], 1, "this once"),
        ] {
            let (shown, visited, journal) = fetch_twice(answers);
            assert_eq!(visited, visits, "{answers:?}: {shown}");
            assert!(journal.contains(recorded), "{answers:?}: {journal}");
        }
    }
}
