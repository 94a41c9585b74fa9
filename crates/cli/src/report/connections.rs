//! A connection of a sandbox to another host, in one line.

use stockade_core::Bytes;
use stockade_engine::{EgressVerdict, Event};

/// `pypi.org:443 (151.101.0.223) allowed by pypi.org:443, 1.2k sent, 40k received`; nothing for events that are not
/// about connections.
pub fn describe_connection(event: &Event) -> Option<String> {
    if let Event::ConnectionsOmitted { count, .. } = event {
        return Some(format!("{count} more connections"));
    }
    let Event::Connection { host, port, address, verdict, rule, reason, sent, received, .. } =
        event
    else {
        return None;
    };
    let target = match port {
        Some(port) if host.contains(':') => format!("[{host}]:{port}"),
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    };
    // An address that the program asked for is not told twice.
    let address = address.map(|address| address.to_string()).filter(|address| address != host);
    let address = address.map(|address| format!(" ({address})")).unwrap_or_default();
    let what = match (verdict, rule) {
        (EgressVerdict::Allowed, Some(rule)) => format!("allowed by {rule}"),
        (EgressVerdict::Allowed, None) => "allowed".to_owned(),
        (EgressVerdict::Denied, _) => "denied".to_owned(),
        (EgressVerdict::Failed, _) => "failed".to_owned(),
    };
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let bytes = match (verdict, sent, received) {
        (EgressVerdict::Denied | EgressVerdict::Failed, 0, 0) => String::new(),
        _ => format!(", {} sent, {} received", format_bytes(*sent), format_bytes(*received)),
    };
    Some(format!("{target}{address} {what}{reason}{bytes}"))
}

/// `1.2k`, `40k`: no digit that says nothing.
fn format_bytes(bytes: u64) -> String {
    Bytes(bytes).rounded().replace(".0", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(verdict: EgressVerdict, rule: Option<&str>, reason: Option<&str>) -> Event {
        let has_address = verdict == EgressVerdict::Allowed;
        Event::Connection {
            sandbox: "boxa".parse().unwrap(),
            host: "pypi.org".into(),
            port: Some(443),
            address: has_address.then(|| "151.101.0.223".parse().unwrap()),
            begun: std::time::SystemTime::UNIX_EPOCH.into(),
            request: None,
            verdict,
            rule: rule.map(str::to_owned),
            reason: reason.map(str::to_owned),
            sent: if has_address { 1230 } else { 0 },
            received: if has_address { 40 * 1024 } else { 0 },
        }
    }

    #[test]
    fn a_connection_is_one_line_that_tells_what_became_of_it() {
        let rule = Some("pypi.org:443");
        for (event, line) in [
            (
                connection(EgressVerdict::Allowed, rule, None),
                "pypi.org:443 (151.101.0.223) allowed by pypi.org:443, 1.2k sent, 40k received",
            ),
            (
                connection(EgressVerdict::Denied, None, Some("no rule allows it")),
                "pypi.org:443 denied: no rule allows it",
            ),
            (
                connection(EgressVerdict::Failed, rule, Some("no such name")),
                "pypi.org:443 failed: no such name",
            ),
        ] {
            assert_eq!(describe_connection(&event).as_deref(), Some(line));
        }
    }
}
