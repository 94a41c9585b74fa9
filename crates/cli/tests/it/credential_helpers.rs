//! Credentials of registries by a helper, `docker-credential-NAME`, as the command runs it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use crate::common::{CliPlace, finish};

/// A registry that wants a password, has nothing, and keeps what it was sent as one.
struct PasswordRegistry {
    port: u16,
    sent: Arc<Mutex<Vec<Option<String>>>>,
}

impl PasswordRegistry {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sent);
        // It lives as long as the test's process.
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let lines = BufReader::new(&client).lines().map_while(Result::ok);
                let head: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                let authorization = head.iter().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
                });
                let status = match authorization {
                    None => "401 X\r\nWWW-Authenticate: Basic realm=\"test\"",
                    Some(_) => "404 X",
                };
                kept.lock().unwrap().push(authorization);
                let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                // The client may be gone.
                let _ = client.write_all(reply.as_bytes());
            }
        });
        Self { port, sent }
    }

    fn sent(&self) -> Vec<Option<String>> {
        self.sent.lock().unwrap().clone()
    }
}

/// Pulls with a helper of the given text, named for the registry.
fn pull_with(
    place: &CliPlace,
    registry: &PasswordRegistry,
    helper: &str,
) -> crate::common::CliDone {
    let bin = place.path("helpers");
    fs::create_dir_all(&bin).unwrap();
    let program = bin.join("docker-credential-test");
    fs::write(&program, format!("#!/bin/sh\n{helper}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let name = format!("127.0.0.1:{}", registry.port);
    let config = place.path("home/.docker");
    fs::create_dir_all(&config).unwrap();
    let text = format!("{{\"credHelpers\": {{\"{name}\": \"test\"}}}}");
    fs::write(config.join("config.json"), text).unwrap();
    let mut command = place.command(&["image", "pull", &format!("{name}/team/x:1")]);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    finish(command)
}

#[test]
fn a_helper_is_asked_for_the_registry_and_what_it_says_is_sent() {
    let (place, registry) = (CliPlace::new(), PasswordRegistry::start());
    let asked = place.path("asked");
    let helper = format!(
        "echo \"$1 $(cat)\" >> '{}'\necho '{{\"Username\": \"alice\", \"Secret\": \"secret\"}}'",
        asked.display()
    );
    let done = pull_with(&place, &registry, &helper);
    done.is_refused(&["is not in its registry"]);
    assert!(!done.stderr.contains("secret"), "{done:?}");
    let expected = format!("get 127.0.0.1:{}\n", registry.port);
    assert_eq!(fs::read_to_string(asked).unwrap(), expected);
    // `alice:secret`, sent only where it was asked for.
    assert_eq!(registry.sent(), [None, Some("Basic YWxpY2U6c2VjcmV0".to_owned())]);
}

#[test]
fn a_helper_that_knows_nothing_is_not_an_error_and_one_that_fails_is_named() {
    let (place, registry) = (CliPlace::new(), PasswordRegistry::start());
    let unknown = "cat > /dev/null; echo 'credentials not found in native keychain'; exit 1";
    pull_with(&place, &registry, unknown).is_refused(&["does not let this user read"]);
    for helper in ["cat > /dev/null; exit 3", "cat > /dev/null; echo nonsense"] {
        pull_with(&place, &registry, helper).is_refused(&["docker-credential-test"]);
    }
    let endless = "exec yes";
    pull_with(&place, &registry, endless).is_refused(&["docker-credential-test"]);
    assert!(registry.sent().iter().all(Option::is_none), "{:?}", registry.sent());
}
