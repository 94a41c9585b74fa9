//! The report for machines that read JUnit XML.

use std::fmt::Write;

use crate::{CaseReport, Counts, Report, Status};

pub(super) fn render_junit(report: &Report) -> String {
    let Counts { failed, skipped, .. } = report.counts();
    let (name, tests) = (escape_xml(&report.subject), report.cases.len());
    let time: f64 = report.cases.iter().map(|case| case.took.as_secs_f64()).sum();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failed}\" errors=\"0\" \
         skipped=\"{skipped}\" time=\"{time:.3}\">"
    );
    report.cases.iter().for_each(|case| xml.push_str(&render_case(case)));
    xml + "  </testsuite>\n</testsuites>\n"
}

fn render_case(case: &CaseReport) -> String {
    let (name, clause, time) =
        (escape_xml(case.name), escape_xml(case.clause), case.took.as_secs_f64());
    let head = format!("    <testcase classname=\"{clause}\" name=\"{name}\" time=\"{time:.3}\"");
    match &case.status {
        Status::Passed => format!("{head}/>\n"),
        Status::Failed(message) => {
            format!("{head}><failure message=\"{}\"/></testcase>\n", escape_xml(message))
        }
        Status::Skipped(reason) => {
            format!("{head}><skipped message=\"{}\"/></testcase>\n", escape_xml(reason))
        }
    }
}

/// Text as it may stand in an attribute. XML 1.0 has no place at all for most control characters.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            control if control.is_control() || matches!(control, '\u{fffe}' | '\u{ffff}') => {
                escaped.push('\u{fffd}');
            }
            plain => escaped.push(plain),
        }
    }
    escaped
}

#[cfg(test)]
mod needs_python {
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Python script that parses the report and counts its elements.
    const PARSE_SCRIPT: &str = "import sys, xml.dom.minidom as m\n\
        d = m.parseString(sys.stdin.buffer.read())\n\
        print(*[len(d.getElementsByTagName(n)) for n in ('testcase', 'failure', 'skipped')])\n\
        print(d.getElementsByTagName('failure')[0].getAttribute('message')[:18])";

    #[test]
    fn the_report_is_read_back_by_an_xml_parser() {
        let mut python = Command::new("python3")
            .args(["-c", PARSE_SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        python
            .stdin
            .take()
            .unwrap()
            .write_all(crate::report::sample_report().junit().as_bytes())
            .unwrap();
        let answer = String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(answer, "3 1 1\nexpected <a> & \"b\"\n");
    }
}
