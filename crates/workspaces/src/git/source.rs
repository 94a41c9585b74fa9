//! Addresses of repositories, and what of them may be told.

use sha2::{Digest, Sha256};

use super::GitFault;
use super::led_elsewhere::check_repository;

/// Schemes that git may be given. Others could run programs that an address names.
const ALLOWED_SCHEMES: [&str; 5] = ["https", "http", "ssh", "git", "file"];

/// A repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GitSource {
    /// What git is given: without a password, in any case.
    pub(crate) address: String,
    /// What may be written down: without a user, a password, a query or a fragment.
    pub(crate) public: String,
    /// A user and password that were part of a web address.
    pub(crate) login: Option<(String, String)>,
}

impl GitSource {
    pub(crate) fn parse(given: &str) -> Result<Self, GitFault> {
        let wrong = |problem| {
            Err(GitFault::BadSource {
                source_name: without_user(given).escape_debug().to_string(),
                problem,
            })
        };
        if given.is_empty() || given.len() > 4096 || given.chars().any(char::is_control) {
            return wrong("is no repository");
        }
        if given.starts_with('-') {
            return wrong("begins with `-`");
        }
        if let Some((scheme, rest)) = given.split_once("://") {
            let scheme = scheme.to_ascii_lowercase();
            return match ALLOWED_SCHEMES.contains(&scheme.as_str()) {
                true if scheme == "file" => Self::file_url(given, rest),
                true => Ok(Self::url(&scheme, rest)),
                false => wrong("has a scheme that is not https, http, ssh, git or file"),
            };
        }
        if given.contains("::") && !given.starts_with(['/', '.']) {
            return wrong("names a helper program");
        }
        let before_slash = given.split('/').next().unwrap_or_default();
        match before_slash.split_once(':') {
            Some((host, _)) if !host.is_empty() => Ok(Self::shell(given)),
            Some(_) | None => Self::directory(given),
        }
    }

    fn url(scheme: &str, rest: &str) -> Self {
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, host) =
            authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        let path_only = path.split(['?', '#']).next().unwrap_or_default();
        let public = format!("{scheme}://{host}{path_only}");
        let (name, password) =
            user.map_or(("", ""), |user| user.split_once(':').unwrap_or((user, "")));
        match scheme {
            "http" | "https" => {
                let login = user.map(|_| (decode_percent(name), decode_percent(password)));
                Self { address: format!("{scheme}://{host}{path}"), public, login }
            }
            // The user's name is part of the way there; a password is not.
            _ if !name.is_empty() => {
                Self { address: format!("{scheme}://{name}@{host}{path}"), public, login: None }
            }
            _ => Self { address: format!("{scheme}://{host}{path}"), public, login: None },
        }
    }

    /// The short form: `user@host:path`.
    fn shell(given: &str) -> Self {
        Self { address: given.to_owned(), public: without_user(given), login: None }
    }

    /// A directory of this host, by an address: git is given the address, and the directory is looked at.
    fn file_url(given: &str, rest: &str) -> Result<Self, GitFault> {
        if !rest.starts_with('/') {
            return Err(bad_source(given, "names a host: `file` is followed by three slashes"));
        }
        let path = std::fs::canonicalize(decode_percent(rest));
        let path = path.map_err(|_| bad_source(given, "is not there"))?;
        check_repository(&path).map_err(|problem| bad_source(given, problem))?;
        Ok(Self::url("file", rest))
    }

    fn directory(given: &str) -> Result<Self, GitFault> {
        let wrong = |problem| bad_source(given, problem);
        let real = std::fs::canonicalize(given).map_err(|_| wrong("is not there"))?;
        check_repository(&real).map_err(wrong)?;
        let path = real.into_os_string().into_string().map_err(|_| wrong("is not valid UTF-8"))?;
        Ok(Self { address: path.clone(), public: path, login: None })
    }

    /// Whether the way there is ssh.
    pub(crate) fn by_ssh(&self) -> bool {
        let scheme = self.address.split_once("://").map(|(scheme, _)| scheme);
        scheme.map_or(!self.address.starts_with('/'), |scheme| scheme == "ssh")
    }

    /// The name of its store. Two people's logins make two stores: one must not see what only the
    /// other may fetch.
    pub(crate) fn key(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(&self.address);
        if let Some((user, _)) = &self.login {
            hash.update([0]);
            hash.update(user);
        }
        short_hex(&hash.finalize())
    }
}

fn bad_source(given: &str, problem: &'static str) -> GitFault {
    GitFault::BadSource { source_name: given.escape_debug().to_string(), problem }
}

/// The first 20 hexadecimal digits of a hash.
pub(crate) fn short_hex(hash: &[u8]) -> String {
    hash.iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}

/// An address without what stands before the last `@` of its host.
fn without_user(given: &str) -> String {
    let (scheme, rest) = given.split_once("://").map_or(("", given), |(s, r)| (s, r));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if scheme.is_empty() { format!("{host}{path}") } else { format!("{scheme}://{host}{path}") }
}

fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = hex.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(code) if byte == b'%' => {
                bytes.push(code);
                rest = &after[2..];
            }
            Some(_) | None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A branch's, tag's or commit's name that means nothing else to git.
pub(crate) fn check_rev(rev: &str) -> Result<&str, GitFault> {
    let plain = |c: char| c.is_alphanumeric() || "/-_.+#=,%".contains(c);
    let problem = match rev {
        "" => "is empty",
        rev if rev.len() > 256 => "is too long",
        rev if rev.starts_with('-') => "begins with `-`",
        rev if rev.contains("..") || !rev.chars().all(plain) => "is no branch, tag or commit",
        rev => return Ok(rev),
    };
    Err(GitFault::BadRev { rev: rev.escape_debug().to_string(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_told_has_no_user_in_it() {
        for (given, address, public) in [
            ("https://u:p@h.example/a?t=1#f", "https://h.example/a?t=1#f", "https://h.example/a"),
            ("https://tok@h/a", "https://h/a", "https://h/a"),
            ("ssh://git:pw@h:22/a", "ssh://git@h:22/a", "ssh://h:22/a"),
            ("git@h:a/b.git", "git@h:a/b.git", "h:a/b.git"),
        ] {
            let source = GitSource::parse(given).unwrap();
            assert_eq!((source.address.as_str(), source.public.as_str()), (address, public));
        }
        let login = GitSource::parse("https://u:p%40x@h/a").unwrap().login;
        assert_eq!(login, Some(("u".into(), "p@x".into())));
    }

    #[test]
    fn addresses_that_run_programs_are_refused_without_telling_the_password() {
        for given in ["ext::sh -c id", "-u", "--upload-pack=x", "", "ftp://h/a", "a\nb", "fd::17"] {
            assert!(GitSource::parse(given).is_err(), "{given}");
        }
        let error = GitSource::parse("ftp://me:secret@h/a").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn revisions_are_names_only() {
        for rev in ["", "-x", "a..b", "a:b", "HEAD^{tree}", "a b", "@{u}", "a\nb"] {
            assert!(check_rev(rev).is_err(), "{rev}");
        }
        for rev in ["main", "feature/x-1", "v1.2.3", "deadbeef"] {
            assert!(check_rev(rev).is_ok(), "{rev}");
        }
    }
}
