//! Bearer tokens: whom the API serves over TCP. A token belongs to one tenant and has rights. Only its SHA-256
//! is stored, which is enough since a token is 256 random bits; the token itself is shown once and never again.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stockade_core::{Error, ErrorCode, Result, TenantName, TokenName};
use stockade_fs::{
    Directory, LOCK_TIMEOUT, Locked, Sharing, StateDir, Survives, Timestamp, write_atomically,
};

use crate::secret::{hash_hex, is_same_hash, random_hex};

const TOKEN_DIR: &str = "tokens";
const TOKEN_FILE: &str = "tokens.json";
const DRAFT_FILE: &str = "tokens.draft";
const LOCK_FILE: &str = "lock";
/// What a token begins with, so that people and scanners recognise one.
const TOKEN_PREFIX: &str = "stockade_";
/// Tokens at once: each is compared with every request.
const MAX_TOKENS: usize = 1000;
const MAX_TOKEN_FILE_BYTES: u64 = 1 << 20;
const TOKEN_OPERATION: &str = "token";

/// What the holder of a token may do with what belongs to its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenRight {
    /// Make sandboxes, run programs in them, change files, take them down.
    Run,
    /// List and read.
    Read,
    /// Both, and read the metrics of the whole daemon.
    Admin,
}

/// What is stored about a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRecord {
    /// What it is called by.
    pub name: TokenName,
    /// Whose sandboxes its holder works with.
    pub tenant: TenantName,
    /// What its holder may do.
    pub rights: BTreeSet<TokenRight>,
    /// When it was made.
    pub created: Timestamp,
    /// Its SHA-256 in hexadecimal.
    sha256: String,
}

/// The tokens of a state directory.
#[derive(Debug)]
pub struct TokenStore {
    dir: Directory,
    cached: Mutex<Option<CachedTokens>>,
}

/// What a file held that had this stamp.
#[derive(Debug)]
struct CachedTokens {
    stamp: TokenFileStamp,
    tokens: Vec<TokenRecord>,
}

/// What changes whenever the file is replaced.
type TokenFileStamp = (u64, u64, i64, i64);

impl TokenStore {
    /// Opens the tokens of a state directory.
    pub fn open(state: &StateDir) -> Result<Self> {
        Ok(Self { dir: state.subdirectory(TOKEN_DIR)?, cached: Mutex::default() })
    }

    /// Makes a token and stores its hash. The text that is returned is nowhere else.
    pub fn issue(
        &self,
        name: TokenName,
        tenant: TenantName,
        rights: BTreeSet<TokenRight>,
    ) -> Result<(TokenRecord, String)> {
        let random = random_hex().map_err(|error| self.failed("be made", error))?;
        let secret = format!("{TOKEN_PREFIX}{random}");
        let sha256 = hash_hex(secret.as_bytes());
        let record = TokenRecord { name, tenant, rights, created: Timestamp::now(), sha256 };
        self.change(|tokens| {
            check_room(tokens, &record.name)?;
            tokens.push(record.clone());
            Ok(())
        })?;
        Ok((record, secret))
    }

    /// Every token, the oldest first.
    pub fn list(&self) -> Result<Vec<TokenRecord>> {
        self.read().map_err(|error| self.failed("be read", error))
    }

    /// Forgets a token: requests with it are refused from now on.
    pub fn revoke(&self, name: &TokenName) -> Result<()> {
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.name != *name);
            match tokens.len() < before {
                true => Ok(()),
                false => Err(Error::new(
                    ErrorCode::NotFound,
                    TOKEN_OPERATION,
                    format!("there is no token `{name}`"),
                )
                .remedy("`stockade token ls` lists the ones there are")),
            }
        })
    }

    /// The token that this is; none where it is no token, or none any more.
    pub fn authenticate(&self, given: &str) -> Result<Option<TokenRecord>> {
        let hash = hash_hex(given.as_bytes());
        self.with_current(|tokens| {
            // All of them, so that the time taken does not tell which one it was.
            let same = tokens.iter().filter(|token| is_same_hash(&token.sha256, &hash));
            same.collect::<Vec<_>>().first().map(|token| (*token).clone())
        })
    }

    /// Whether a token that was known is one still.
    pub fn is_known(&self, token: &TokenRecord) -> Result<bool> {
        self.with_current(|tokens| tokens.contains(token))
    }

    /// Looks at the tokens that there are now. The file is read again where it was replaced.
    fn with_current<T>(&self, look: impl FnOnce(&[TokenRecord]) -> T) -> Result<T> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.read_stamp().map_err(|error| self.failed("be read", error))?;
        if cached.as_ref().map(|cached| cached.stamp) != stamp {
            // Stamped before it is read: what replaces the file meanwhile is read with the next request.
            let tokens = self.list()?;
            *cached = stamp.map(|stamp| CachedTokens { stamp, tokens });
        }
        Ok(look(cached.as_ref().map(|cached| cached.tokens.as_slice()).unwrap_or_default()))
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<TokenRecord>) -> Result<()>) -> Result<()> {
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        edit(&mut tokens)?;
        self.write(&tokens).map_err(|error| self.failed("be written", error))
    }

    fn lock(&self) -> Result<Locked> {
        let open = || -> io::Result<Option<Locked>> {
            let file = self.dir.open(LOCK_FILE, OFlags::RDWR | OFlags::CREATE)?;
            Locked::within(file, Sharing::Exclusive, LOCK_TIMEOUT)
        };
        let busy = || self.failed("be locked", io::ErrorKind::ResourceBusy.into());
        open().map_err(|error| self.failed("be locked", error))?.ok_or_else(busy)
    }

    fn read(&self) -> io::Result<Vec<TokenRecord>> {
        let file = match self.dir.open(TOKEN_FILE, OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut json = Vec::new();
        file.take(MAX_TOKEN_FILE_BYTES).read_to_end(&mut json)?;
        Ok(serde_json::from_slice(&json)?)
    }

    fn write(&self, tokens: &[TokenRecord]) -> io::Result<()> {
        let mut json = serde_json::to_vec_pretty(tokens)?;
        writeln!(json)?;
        let path = self.dir.path_of(TOKEN_FILE);
        write_atomically(&path, DRAFT_FILE, &json, 0o600, Survives::Power)
    }

    fn read_stamp(&self) -> io::Result<Option<TokenFileStamp>> {
        let stamp = |meta: Metadata| (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
        match std::fs::symlink_metadata(self.dir.path_of(TOKEN_FILE)) {
            Ok(meta) => Ok(Some(stamp(meta))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn failed(&self, what: &str, error: io::Error) -> Error {
        let path = self.dir.path_of(TOKEN_FILE);
        let message = format!("the tokens in `{}` cannot {what}", path.display());
        Error::new(ErrorCode::StateUnavailable, TOKEN_OPERATION, message)
            .remedy("make the file readable and writable for this user, or remove it")
            .source(error)
    }
}

fn check_room(tokens: &[TokenRecord], name: &TokenName) -> Result<()> {
    if tokens.iter().any(|token| token.name == *name) {
        let message = format!("there is a token `{name}` already");
        return Err(Error::new(ErrorCode::Invalid, TOKEN_OPERATION, message)
            .remedy(format!("choose another name, or `stockade token revoke {name}` first")));
    }
    if tokens.len() >= MAX_TOKENS {
        let message = format!("there are {MAX_TOKENS} tokens, and no more are kept");
        return Err(Error::new(ErrorCode::TooLarge, TOKEN_OPERATION, message)
            .remedy("revoke those that are not used any more"));
    }
    Ok(())
}

impl TokenRecord {
    /// Whether its holder may do this.
    pub fn has(&self, right: TokenRight) -> bool {
        self.rights.contains(&right) || self.rights.contains(&TokenRight::Admin)
    }
}

impl TokenRight {
    /// The name used in flags, JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for TokenRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TokenRight {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let all = [Self::Run, Self::Read, Self::Admin];
        all.into_iter()
            .find(|right| right.name() == given)
            .ok_or_else(|| format!("`{}` is not one of run, read, admin", given.escape_debug()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(store: &TokenStore, name: &str) -> Result<String> {
        let rights = BTreeSet::from([TokenRight::Read]);
        let issued = store.issue(name.parse().unwrap(), "team".parse().unwrap(), rights)?;
        Ok(issued.1)
    }

    #[test]
    fn a_token_is_known_until_it_is_revoked_and_its_text_is_stored_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let (store, another) =
            (TokenStore::open(&state).unwrap(), TokenStore::open(&state).unwrap());
        assert_eq!(store.authenticate("anything").unwrap(), None);
        let (first, second) = (issue(&another, "a").unwrap(), issue(&another, "b").unwrap());
        assert_eq!(store.authenticate(&first).unwrap().unwrap().name.as_str(), "a");
        assert_eq!(store.authenticate(&second).unwrap().unwrap().name.as_str(), "b");
        for wrong in ["", &first[..first.len() - 1], &format!("{first}0"), &first.to_uppercase()] {
            assert_eq!(store.authenticate(wrong).unwrap(), None, "{wrong}");
        }
        let file = dir.path().join("tokens/tokens.json");
        assert!(!std::fs::read_to_string(&file).unwrap().contains(&first));
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let known = store.authenticate(&first).unwrap().unwrap();
        assert!(store.is_known(&known).unwrap());
        another.revoke(&"a".parse().unwrap()).unwrap();
        assert_eq!(store.authenticate(&first).unwrap(), None);
        assert!(!store.is_known(&known).unwrap());
        assert!(store.authenticate(&second).unwrap().is_some());
    }

    #[test]
    fn names_are_given_once_and_only_known_ones_are_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::open(&StateDir::open(dir.path()).unwrap()).unwrap();
        issue(&store, "a").unwrap();
        assert_eq!(issue(&store, "a").unwrap_err().code(), ErrorCode::Invalid);
        let unknown = store.revoke(&"b".parse().unwrap()).unwrap_err();
        assert_eq!(unknown.code(), ErrorCode::NotFound);
        assert_eq!(store.list().unwrap().len(), 1);
    }

    #[test]
    fn admin_has_every_right() {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::open(&StateDir::open(dir.path()).unwrap()).unwrap();
        let rights = BTreeSet::from([TokenRight::Admin]);
        let name = "a".parse().unwrap();
        let (admin, _) = store.issue(name, TenantName::default(), rights).unwrap();
        assert!(
            [TokenRight::Run, TokenRight::Read, TokenRight::Admin].iter().all(|r| admin.has(*r))
        );
        let read = TokenRecord { rights: BTreeSet::from([TokenRight::Read]), ..admin };
        assert!(read.has(TokenRight::Read) && !read.has(TokenRight::Run));
    }
}
