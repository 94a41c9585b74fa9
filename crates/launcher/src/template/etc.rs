//! The sandbox's `/etc`: what programs need to run, name by name, and nothing else. Never shadow
//! files, keys, tokens, machine ids or the host's list of users.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::SANDBOX_HOME;
use super::piece::{Made, Piece, find_piece};

/// Entries taken over from the host's `/etc`, with why. A name that ends in `*` stands for all that
/// begin like it. Copied where it is a file, mounted read-only where it is a directory.
const HOST_ETC_ENTRIES: &[(&str, &str)] = &[
    ("alternatives", "links behind commands such as cc, awk, java"),
    ("bash.bashrc", "interactive shells"),
    ("ca-certificates", "local additions to the trusted certificates"),
    ("crypto-policies", "TLS libraries of Fedora's family refuse to start without"),
    ("debian_version", "what the system calls itself"),
    ("fonts", "rendering"),
    ("gai.conf", "order of addresses"),
    ("host.conf", "name lookups"),
    ("inputrc", "line editing"),
    ("java*", "a Java runtime's configuration is linked from its home"),
    ("ld.so.cache", "the dynamic loader finds libraries by it"),
    ("ld.so.conf", "likewise"),
    ("ld.so.conf.d", "likewise"),
    ("locale.alias", "locales"),
    ("locale.conf", "locales"),
    ("localtime", "the local time zone"),
    ("magic", "file types"),
    ("maven/logging", "Maven does not start without; its settings beside may hold passwords"),
    ("maven/m2.conf", "likewise"),
    ("mime.types", "file types"),
    ("networks", "network names"),
    ("nsswitch.conf", "where names are looked up"),
    ("os-release", "what the system calls itself"),
    ("perl", "the interpreter's configuration"),
    ("pki/ca-trust", "trusted certificates of Fedora's family"),
    ("pki/tls/certs", "likewise"),
    ("profile", "login shells"),
    ("protocols", "protocol numbers"),
    ("python*", "the interpreter's site configuration"),
    ("services", "port names"),
    ("shells", "which programs are shells"),
    ("ssl/certs", "trusted certificates"),
    ("ssl/openssl.cnf", "TLS defaults"),
    ("terminfo", "terminals"),
    ("timezone", "the time zone's name"),
];

const HOSTS_TEXT: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

/// Names are asked of the network helper, which answers in sandboxes that may reach other hosts.
const RESOLV_CONF_TEXT: &str = "nameserver 127.63.0.53\n";

/// Files that are written for the sandbox.
pub(super) fn generate_files(uid: u32, gid: u32) -> Vec<Piece> {
    let file = |target: &str, text: String| Piece {
        target: PathBuf::from(target),
        made: Made::File(text.into_bytes()),
    };
    let mounts = PathBuf::from("/proc/self/mounts");
    vec![
        file("/etc/passwd", format_passwd(uid, gid)),
        file("/etc/group", format_group(gid)),
        file("/etc/hosts", HOSTS_TEXT.to_owned()),
        file("/etc/resolv.conf", RESOLV_CONF_TEXT.to_owned()),
        Piece { target: PathBuf::from("/etc/mtab"), made: Made::Link(mounts) },
    ]
}

fn format_passwd(uid: u32, gid: u32) -> String {
    let mut text = String::new();
    if uid != 0 {
        text += "root:x:0:0:root:/root:/usr/sbin/nologin\n";
    }
    let name = if uid == 0 { "root" } else { "sandbox" };
    text += &format!("{name}:x:{uid}:{gid}:{name}:{SANDBOX_HOME}:/bin/sh\n");
    if uid != 65534 {
        text += "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
    }
    text
}

fn format_group(gid: u32) -> String {
    let mut text = String::new();
    if gid != 0 {
        text += "root:x:0:\n";
    }
    let name = if gid == 0 { "root" } else { "sandbox" };
    text += &format!("{name}:x:{gid}:\n");
    if gid != 65534 {
        text += "nogroup:x:65534:\n";
    }
    text
}

/// What the host has of the list.
pub(super) fn list_kept_files() -> Vec<Piece> {
    list_paths().iter().filter_map(|inside| find_piece(Path::new("/"), inside)).collect()
}

/// The list with its patterns filled in and without what the host lacks, from the host's root.
pub(super) fn list_paths() -> Vec<String> {
    let names = list_host_etc();
    let expanded =
        HOST_ETC_ENTRIES.iter().flat_map(|(entry, _)| expand_pattern(entry, names.as_ref()));
    expanded.map(|inside| format!("etc/{inside}")).collect()
}

fn expand_pattern(entry: &str, names: Option<&BTreeSet<String>>) -> Vec<String> {
    let top = entry.split('/').next().unwrap_or(entry);
    match (entry.strip_suffix('*'), names) {
        (Some(start), Some(names)) => {
            names.iter().filter(|name| name.starts_with(start)).cloned().collect()
        }
        (Some(_), None) => Vec::new(),
        // One listing is cheaper than a look for each that is missing.
        (None, Some(names)) if !names.contains(top) => Vec::new(),
        (None, Some(_) | None) => vec![entry.to_owned()],
    }
}

/// The names in the host's `/etc`; none where it cannot be listed, and then nothing is kept by pattern.
fn list_host_etc() -> Option<BTreeSet<String>> {
    let entries = std::fs::read_dir("/etc").ok()?;
    Some(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_from_the_listing_and_by_trial_where_there_is_none() {
        let listed = BTreeSet::from(["java-17".to_owned(), "pki".to_owned(), "magic".to_owned()]);
        let of = |entry| expand_pattern(entry, Some(&listed));
        assert_eq!(of("java*"), ["java-17"]);
        assert_eq!(of("magic"), ["magic"]);
        assert_eq!(of("pki/tls/certs"), ["pki/tls/certs"]);
        assert!(of("fonts").is_empty());
        assert_eq!(expand_pattern("fonts", None), ["fonts"]);
        assert!(expand_pattern("java*", None).is_empty());
    }

    #[test]
    fn a_directory_with_passwords_is_never_kept_as_a_whole() {
        let kept = |name: &str| HOST_ETC_ENTRIES.iter().any(|(entry, _)| *entry == name);
        assert!(kept("maven/m2.conf") && kept("maven/logging"));
        assert!(!kept("maven") && !kept("maven/settings.xml"));
        assert!(kept("ssl/certs") && !kept("ssl"));
    }
}
