//! Credentials from the files and helpers that Docker, Podman and Skopeo share. Read when a registry asks for
//! them, never kept, never shown (C-41).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use crate::ImageError;

const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_HELPER_OUTPUT_BYTES: u64 = 64 << 10;
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// The name under which Docker keeps the credentials of its own registry.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";
/// The user name by which a helper says that its secret is a refresh token.
const TOKEN_USER: &str = "<token>";

/// The files in which credentials are looked for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialFiles(Vec<PathBuf>);

impl Default for CredentialFiles {
    /// The usual files of this process's user.
    fn default() -> Self {
        Self::usual(|name| std::env::var_os(name))
    }
}

impl CredentialFiles {
    /// The usual files: `$REGISTRY_AUTH_FILE`, `$XDG_RUNTIME_DIR/containers/auth.json`,
    /// `$XDG_CONFIG_HOME/containers/auth.json` and `$DOCKER_CONFIG/config.json`, with the latter two in
    /// `~/.config` and `~/.docker` otherwise.
    pub fn usual(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let dir = |name: &str| lookup(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = |below: &str| dir("HOME").map(|home| home.join(below));
        let containers = |dir: PathBuf| dir.join("containers/auth.json");
        let files = [
            dir("REGISTRY_AUTH_FILE"),
            dir("XDG_RUNTIME_DIR").map(containers),
            dir("XDG_CONFIG_HOME").or_else(|| home(".config")).map(containers),
            dir("DOCKER_CONFIG").or_else(|| home(".docker")).map(|dir| dir.join("config.json")),
        ];
        Self(files.into_iter().flatten().collect())
    }

    /// These files.
    pub fn at(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(files.into_iter().collect())
    }

    /// The credentials for a repository of a registry, from the first file that has any.
    pub(super) async fn find(
        &self,
        first: Option<&Path>,
        registry: &str,
        repository: &str,
    ) -> Result<Option<Credentials>, ImageError> {
        for path in first.into_iter().chain(self.0.iter().map(PathBuf::as_path)) {
            let Some(file) = read_file(path).map_err(|reason| wrong(registry, reason))? else {
                continue;
            };
            let found = file.find(registry, repository).await;
            if let Some(found) = found.map_err(|reason| wrong(registry, reason))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

fn wrong(registry: &str, reason: String) -> ImageError {
    ImageError::Credentials { registry: registry.to_owned(), reason }
}

/// What a registry is told about the user.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// A name and a password.
    Password { user: String, password: String },
    /// A refresh token.
    IdentityToken(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AuthFile {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// A file that is not there, or not for this user to read, has no credentials.
fn read_file(path: &Path) -> Result<Option<AuthFile>, String> {
    let Ok(file) = File::open(path) else { return Ok(None) };
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES).read_to_string(&mut text);
    read.map_err(|error| format!("`{}` cannot be read: {error}", path.display()))?;
    let parsed = serde_json::from_str(&text);
    // The parser's own words could have a part of a secret.
    parsed
        .map(Some)
        .map_err(|error| format!("`{}` makes no sense in line {}", path.display(), error.line()))
}

impl AuthFile {
    async fn find(&self, registry: &str, repository: &str) -> Result<Option<Credentials>, String> {
        let helper = self.cred_helpers.iter().find(|(key, _)| normalize_key(key) == registry);
        if let Some((key, helper)) = helper {
            return ask_helper(helper, key).await;
        }
        if let Some(found) = self.entry(registry, repository).and_then(AuthEntry::credentials) {
            return Ok(Some(found));
        }
        let key = if registry == "docker.io" { DOCKER_HUB_KEY } else { registry };
        match &self.creds_store {
            Some(helper) => ask_helper(helper, key).await,
            None => Ok(None),
        }
    }

    /// The entry with the longest name: of the repository, of a part of it, of the registry.
    fn entry(&self, registry: &str, repository: &str) -> Option<&AuthEntry> {
        let whole = format!("{registry}/{repository}");
        let ends = whole.match_indices('/').map(|(at, _)| at).chain([whole.len()]);
        let mut names: Vec<&str> = ends.map(|end| &whole[..end]).collect();
        names.reverse();
        let entry = |name: &str| {
            self.auths.iter().find(|(key, _)| normalize_key(key) == name).map(|(_, entry)| entry)
        };
        names.into_iter().find_map(entry)
    }
}

/// A key without scheme and API version: `https://index.docker.io/v1/` is `docker.io`.
fn normalize_key(key: &str) -> String {
    let key = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").or(key.strip_suffix("/v2")).unwrap_or(key);
    let (host, rest) = key.split_at(key.find('/').unwrap_or(key.len()));
    let host = match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    };
    format!("{host}{rest}")
}

impl AuthEntry {
    fn credentials(&self) -> Option<Credentials> {
        if let Some(token) = self.identitytoken.as_ref().filter(|token| !token.is_empty()) {
            return Some(Credentials::IdentityToken(token.clone()));
        }
        let decoded = self.auth.as_ref().and_then(|auth| STANDARD.decode(auth.trim()).ok());
        let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|pair| pair.split_once(':'));
        let named = self.username.as_deref().zip(self.password.as_deref());
        let (user, password) = pair.or(named)?;
        let password = password.trim_end_matches('\0').to_owned();
        Some(Credentials::Password { user: user.to_owned(), password })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Asks `docker-credential-HELPER get`.
async fn ask_helper(helper: &str, key: &str) -> Result<Option<Credentials>, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if helper.is_empty() || !helper.bytes().all(plain) {
        return Err("the name of their helper is none".to_owned());
    }
    let program = format!("docker-credential-{helper}");
    match timeout(HELPER_TIMEOUT, run_helper(&program, key)).await {
        Ok(answer) => answer.map_err(|reason| format!("`{program}` {reason}")),
        Err(_) => Err(format!("`{program}` did not answer within {} s", HELPER_TIMEOUT.as_secs())),
    }
}

async fn run_helper(program: &str, key: &str) -> Result<Option<Credentials>, String> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.kill_on_drop(true).spawn();
    let mut child = child.map_err(|error| format!("cannot be started: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read its question still answers or ends.
        let _ = stdin.write_all(key.as_bytes()).await;
    }
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(MAX_HELPER_OUTPUT_BYTES).read_to_end(&mut output).await;
        read.map_err(|error| format!("cannot be read: {error}"))?;
    }
    let status = child.wait().await.map_err(|error| format!("cannot be waited for: {error}"))?;
    if !status.success() {
        // Helpers say that they know nothing by failing.
        let unknown = String::from_utf8_lossy(&output).contains("credentials not found");
        return if unknown { Ok(None) } else { Err(format!("failed: {status}")) };
    }
    let answer: HelperAnswer = serde_json::from_slice(&output)
        .map_err(|_| "gave no answer that makes sense".to_owned())?;
    Ok(Some(match answer.username.as_str() {
        TOKEN_USER => Credentials::IdentityToken(answer.secret),
        _ => Credentials::Password { user: answer.username, password: answer.secret },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn find(text: &str, registry: &str, repository: &str) -> Option<Credentials> {
        let file: AuthFile = serde_json::from_str(text).unwrap();
        file.find(registry, repository).await.unwrap()
    }

    fn password(user: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::Password { user: user.to_owned(), password: password.to_owned() })
    }

    #[tokio::test]
    async fn the_longest_name_that_fits_has_the_credentials() {
        // a:1, b:2, c:3
        let text = r#"{ "auths": {
            "https://index.docker.io/v1/": { "auth": "YToxCg==" },
            "r.org": { "auth": "Yjoy" },
            "r.org/team": { "auth": "Yzoz" },
            "t.org": { "identitytoken": "secret" },
            "n.org": { "username": "u", "password": "p" }
        } }"#;
        assert_eq!(find(text, "docker.io", "library/x").await, password("a", "1\n"));
        assert_eq!(find(text, "r.org", "other/x").await, password("b", "2"));
        assert_eq!(find(text, "r.org", "team/x").await, password("c", "3"));
        assert_eq!(find(text, "r.org", "teams/x").await, password("b", "2"));
        assert_eq!(find(text, "n.org", "x").await, password("u", "p"));
        assert_eq!(
            find(text, "t.org", "x").await,
            Some(Credentials::IdentityToken("secret".into()))
        );
        assert_eq!(find(text, "r.org.evil.org", "x").await, None);
    }

    #[tokio::test]
    async fn a_helper_with_a_path_for_a_name_is_not_run() {
        let file: AuthFile =
            serde_json::from_str(r#"{ "credHelpers": { "r.org": "../../tmp/x" } }"#).unwrap();
        assert!(file.find("r.org", "x").await.unwrap_err().contains("helper"));
    }

    #[test]
    fn secrets_do_not_appear_in_debug_output() {
        let secret = Credentials::IdentityToken("secret".to_owned());
        assert!(!format!("{secret:?}").contains("secret"));
    }

    #[test]
    fn the_usual_files_are_looked_for_in_order() {
        let lookup = |name: &str| match name {
            "HOME" => Some("/home/u".into()),
            "XDG_RUNTIME_DIR" => Some("/run/u".into()),
            "DOCKER_CONFIG" => Some("relative".into()),
            _ => None,
        };
        let files = CredentialFiles::usual(lookup).0;
        let expected = [
            "/run/u/containers/auth.json",
            "/home/u/.config/containers/auth.json",
            "/home/u/.docker/config.json",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
    }
}
