//! Files of a sandbox of a daemon. Paths are resolved on that side; names, sizes and modes are its word.

use async_trait::async_trait;
use bytes::{Bytes as Data, BytesMut};
use serde::Deserialize;
use serde_json::json;
use stockade_core::{Entry, ErrorCode, Files, Result, SandboxPath};

use super::client::{DaemonCall, DaemonClient, daemon_error, encode_query, protocol_error};

/// Bytes that one request carries.
const PART_BYTES: usize = 1 << 20;
/// Entries of a directory.
const MAX_ENTRIES: usize = 100_000;
const MAX_NAME_BYTES: usize = 4096;
/// Permission bits that a file may have.
const MODE_BITS: u32 = 0o7777;

#[derive(Deserialize)]
struct EntryPage {
    entries: Vec<Entry>,
    /// The last name of this page, if there are more.
    next: Option<String>,
}

/// Files of a sandbox of a daemon.
pub(super) struct DaemonFiles {
    client: DaemonClient,
    /// Where they are in the API.
    base: String,
}

impl DaemonFiles {
    pub(super) fn new(client: DaemonClient, base: String) -> Self {
        Self { client, base }
    }

    fn at(&self, what: &str, path: &SandboxPath) -> String {
        format!("{}{what}?path={}", self.base, encode_query(path.as_str()))
    }

    async fn read_part(&self, path: &SandboxPath, offset: u64, length: usize) -> Result<Data> {
        let query = format!("{}&offset={offset}&length={length}", self.at("/part", path));
        let call = DaemonCall::get("read", query).answered_in(length);
        self.client.ask(call).await
    }

    /// The entries of a directory that come after this name, as many as one answer has.
    async fn list_page(&self, path: &SandboxPath, after: Option<&str>) -> Result<EntryPage> {
        let after = after.map(|name| format!("&after={}", encode_query(name))).unwrap_or_default();
        let query = format!("{}{after}", self.at("/list", path));
        let page: EntryPage = self.client.ask_json(DaemonCall::get("list", query)).await?;
        match page.next.is_some() && page.entries.is_empty() {
            false => Ok(page),
            true => Err(protocol_error("list", "it lists a directory without end")),
        }
    }

    async fn write_part(&self, path: &SandboxPath, part: Data, append: bool) -> Result<()> {
        let query = format!("{}&append={append}", self.at("/part", path));
        self.client.ask(DaemonCall::post("write", query).bytes(part)).await.map(drop)
    }
}

#[async_trait]
impl Files for DaemonFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        let call = DaemonCall::get("stat", self.at("/stat", path));
        check_entry("stat", self.client.ask_json(call).await?)
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let (mut entries, mut after) = (Vec::new(), None);
        loop {
            let page = self.list_page(path, after.as_deref()).await?;
            entries.extend(page.entries);
            if entries.len() > MAX_ENTRIES {
                let message = format!("`{path}` has more than {MAX_ENTRIES} entries");
                return Err(daemon_error(ErrorCode::TooLarge, "list", message));
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        entries.into_iter().map(check_child).collect()
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        let mut whole = BytesMut::new();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        loop {
            let length = (most - whole.len()).min(PART_BYTES);
            let from = offset.saturating_add(whole.len() as u64);
            let part = self.read_part(path, from, length).await?;
            whole.extend_from_slice(&part);
            if part.len() < length || whole.len() >= most {
                return Ok(whole.freeze());
            }
        }
    }

    async fn write(&self, path: &SandboxPath, mut data: Data, append: bool) -> Result<()> {
        let mut append = append;
        loop {
            let part = data.split_to(data.len().min(PART_BYTES));
            self.write_part(path, part, append).await?;
            append = true;
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        let body = json!({ "path": path, "mode": format!("{:o}", mode & 0o777) });
        let call = DaemonCall::post("set the mode", format!("{}/mode", self.base)).json(&body);
        self.client.ask(call).await.map(drop)
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        let call = DaemonCall::post("make a directory", format!("{}/directory", self.base));
        self.client.ask(call.json(&json!({ "path": path }))).await.map(drop)
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let call = DaemonCall::post("move", format!("{}/move", self.base));
        self.client.ask(call.json(&json!({ "from": from, "to": to }))).await.map(drop)
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.client.ask(DaemonCall::delete("remove", self.at("", path))).await.map(drop)
    }
}

/// An entry whose name is one of a file, with no more than permission bits.
fn check_entry(operation: &'static str, mut entry: Entry) -> Result<Entry> {
    entry.mode &= MODE_BITS;
    match entry.name.len() <= MAX_NAME_BYTES && !entry.name.contains('\0') {
        true => Ok(entry),
        false => Err(protocol_error(operation, "it tells of a file that can have no such name")),
    }
}

/// The same of an entry of a directory, whose name leads nowhere else.
fn check_child(entry: Entry) -> Result<Entry> {
    let entry = check_entry("list", entry)?;
    match matches!(entry.name.as_str(), "" | "." | "..") || entry.name.contains('/') {
        false => Ok(entry),
        true => Err(protocol_error("list", "it tells of a file that can have no such name")),
    }
}
