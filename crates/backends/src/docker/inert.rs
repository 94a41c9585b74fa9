//! An image is only files: what it declares has no effect, and its links lead no mount elsewhere.
//!
//! An engine makes a volume for each path that an image declares as one (disk of the host that no limit
//! counts), and resolves the target of each mount inside the image: a link there can lead it into the
//! workspace, where the runtime then makes directories on the host, or away from where the agent belongs.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use bollard::models::{ContainerCreateBody, HealthConfig, HostConfig};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use serde_json::Value;
use stockade_core::{Error, ErrorCode, Result};

use super::container::Container;
use super::images::DockerImage;
use super::list::{ApiFailure, EngineConnection, percent_encode};
use super::socket::EngineHandle;
use super::{NAME, agent, plan};
use crate::linux::trial_id;

/// The most volumes that an image may declare.
const MAX_VOLUMES: usize = 64;
/// The most links on the way to one target.
const MAX_LINKS: usize = 16;
/// The bit of a link in a mode as engines tell it.
const MODE_SYMLINK: u64 = 1 << 27;
/// The same bit of directories.
const MODE_DIRECTORY: u64 = 1 << 31;
/// The HTTP header in which engines describe a file.
const PATH_STAT_HEADER: &str = "X-Docker-Container-Path-Stat";
/// Mount options of the tmpfs that covers a declared volume: empty and read-only.
const EMPTY_VOLUME_OPTIONS: &str = "ro,noexec,nosuid,nodev,size=4096,mode=555";

/// Disables an image's health check: it would be a program that the caller has not asked for.
pub(super) fn no_health_check() -> HealthConfig {
    HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }
}

/// Covers each volume that an image declares with nothing, beside the mounts that were asked for.
pub(super) fn cover_volumes(host: &mut HostConfig, volumes: &[String]) -> Result<()> {
    let targets = list_mount_targets(host);
    if volumes.len() > MAX_VOLUMES {
        return Err(image_refused(&format!("declares more than {MAX_VOLUMES} volumes")));
    }
    for volume in volumes {
        let volume = normalize_path(volume).ok_or_else(|| {
            image_refused(&format!(
                "declares a volume at `{}`, which is no path",
                volume.escape_debug()
            ))
        })?;
        if targets.contains(&volume) {
            continue;
        }
        if let Some(target) = targets.iter().find(|target| is_overlapping(target, &volume)) {
            let what = format!("declares a volume at `{volume}`, in the way of `{target}`");
            return Err(image_refused(&what));
        }
        host.tmpfs.get_or_insert_default().insert(volume, EMPTY_VOLUME_OPTIONS.into());
    }
    Ok(())
}

/// Where anything is mounted in a container.
pub(super) fn list_mount_targets(host: &HostConfig) -> BTreeSet<String> {
    let mounts = host.mounts.iter().flatten().filter_map(|mount| mount.target.clone());
    let in_memory = host.tmpfs.iter().flat_map(HashMap::keys).cloned();
    mounts.chain(in_memory).collect()
}

/// A path of plain parts, without detours; nothing for the root and for what leads elsewhere.
fn normalize_path(path: &str) -> Option<String> {
    let parts: Vec<_> =
        path.strip_prefix('/')?.split('/').filter(|part| !part.is_empty()).collect();
    let fits = !parts.is_empty() && !parts.iter().any(|part| matches!(*part, "." | ".."));
    let printable = !path.contains(char::is_control);
    (fits && printable).then(|| format!("/{}", parts.join("/")))
}

/// Whether one lies in the other.
fn is_overlapping(one: &str, other: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    within(one, other) || within(other, one)
}

/// Refuses an image in which a link leads one of these targets into another, or the agent's anywhere. Looked up
/// by a container without mounts, which is never started.
pub(super) async fn check_links(
    engine: &EngineHandle,
    image: &DockerImage,
    targets: &BTreeSet<String>,
) -> Result<()> {
    let id = trial_id();
    let mut host = HostConfig { network_mode: Some("none".into()), ..HostConfig::default() };
    cover_volumes(&mut host, &image.volumes)?;
    let body = ContainerCreateBody {
        image: Some(image.id.clone()),
        entrypoint: Some(vec![agent::AGENT_PATH.into()]),
        cmd: Some(Vec::new()),
        healthcheck: Some(no_health_check()),
        network_disabled: Some(true),
        labels: Some(plan::build_labels(&id, None)),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    };
    let container = Container::create(&engine.api, &id, body).await?;
    let checked = check_in(engine, &container.hash, targets).await;
    // A container that is left is removed at the next connect.
    container.remove_unstarted().await;
    checked
}

async fn check_in(
    engine: &EngineHandle,
    container: &str,
    targets: &BTreeSet<String>,
) -> Result<()> {
    let mut files = ImageFiles::of(&engine.socket, container).await.map_err(unknown_contents)?;
    for target in targets {
        let resolved = files.resolve_links(target).await?;
        let elsewhere = resolved != *target;
        let into = targets.iter().find(|other| is_overlapping(other, &resolved));
        if elsewhere && (target == agent::AGENT_PATH || into.is_some()) {
            let what = format!("has a link at `{target}`, which would lead the mount elsewhere");
            return Err(image_refused(&what));
        }
    }
    Ok(())
}

/// The files of a container. Asked without the client library, which does not tell of a link that leads nowhere.
struct ImageFiles<'a> {
    connection: EngineConnection,
    container: &'a str,
}

impl<'a> ImageFiles<'a> {
    async fn of(socket: &Path, container: &'a str) -> Result<Self, ApiFailure> {
        Ok(Self { connection: EngineConnection::open(socket).await?, container })
    }

    /// Where a path leads to.
    async fn resolve_links(&mut self, path: &str) -> Result<String> {
        let mut left: Vec<String> = split_reversed(path);
        let (mut at, mut links) = (String::new(), 0);
        while let Some(part) = left.pop() {
            if part == ".." {
                at.truncate(at.rfind('/').unwrap_or(0));
                continue;
            }
            let next = format!("{at}/{part}");
            let target = match self.stat_file(&next).await.map_err(unknown_contents)? {
                ImageFile::Link(target) => target,
                // The engine fails when it is asked for what lies in a file.
                ImageFile::Plain if !left.is_empty() => {
                    let what = format!("has a file at `{next}`, where `{path}` needs a directory");
                    return Err(image_refused(&what));
                }
                ImageFile::Unresolvable => {
                    let what = format!(
                        "has at `{next}` what the engine cannot resolve, such as a link in a circle"
                    );
                    return Err(image_refused(&what));
                }
                ImageFile::Plain | ImageFile::Directory | ImageFile::Missing => {
                    at = next;
                    continue;
                }
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(image_refused(&format!("has too many links at `{path}`")));
            }
            if target.starts_with('/') {
                at.clear();
            }
            left.extend(split_reversed(&target));
        }
        Ok(if at.is_empty() { "/".into() } else { at })
    }

    async fn stat_file(&mut self, path: &str) -> Result<ImageFile, ApiFailure> {
        let url =
            format!("/v1.40/containers/{}/archive?path={}", self.container, percent_encode(path));
        let request = Request::head(url).header("Host", "engine").body(Empty::<Bytes>::new())?;
        let response = self.connection.sender.send_request(request).await?;
        let status = response.status();
        // Also beside an error, for a link that leads nowhere.
        let Some(told) = response.headers().get(PATH_STAT_HEADER) else {
            return match status {
                StatusCode::NOT_FOUND => Ok(ImageFile::Missing),
                StatusCode::INTERNAL_SERVER_ERROR => Ok(ImageFile::Unresolvable),
                _ => Err(format!("it answered {status}").into()),
            };
        };
        let stat: Value = serde_json::from_slice(&from_base64(told.as_bytes()))?;
        let mode = stat["mode"].as_u64().ok_or("it does not tell what a file is")?;
        // Some engines name the thing itself where it is no link.
        let target = stat["linkTarget"].as_str().filter(|target| *target != path);
        Ok(match target.filter(|_| mode & MODE_SYMLINK != 0) {
            Some(target) => ImageFile::Link(target.to_owned()),
            // A link that names itself is passed over, as one that leads nowhere.
            None if mode & (MODE_DIRECTORY | MODE_SYMLINK) != 0 => ImageFile::Directory,
            None => ImageFile::Plain,
        })
    }
}

/// What lies at a path of an image.
enum ImageFile {
    Missing,
    /// A link, and where it points to.
    Link(String),
    Directory,
    /// Anything else.
    Plain,
    /// What the engine fails at, such as a link in a circle.
    Unresolvable,
}

/// Text of base64 as it was written by an engine. What is no such text gives other bytes, which then are no JSON.
fn from_base64(text: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.iter().filter_map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|four| {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - four.len()));
        let [_, bytes @ ..] = bits.to_be_bytes();
        bytes.into_iter().take(four.len() - 1)
    });
    bytes.collect()
}

fn unknown_contents(error: ApiFailure) -> Error {
    let why = stockade_core::clean_foreign(&error.to_string());
    let message = format!("the engine does not tell what is in the image: {why}");
    Error::new(ErrorCode::Unavailable, "create", message)
        .backend(NAME)
        .remedy("see whether the engine still runs, and try again")
}

/// The parts of a path, the first one last.
fn split_reversed(path: &str) -> Vec<String> {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    parts.rev().map(str::to_owned).collect()
}

/// Whether an engine has made a volume all the same.
pub(super) async fn check_no_volume(container: &Container) -> Result<()> {
    match container.find_volume().await? {
        None => Ok(()),
        Some(path) => {
            let path = stockade_core::clean_foreign(&path);
            Err(image_refused(&format!("was given a volume at `{path}`, which was not requested")))
        }
    }
}

fn image_refused(what: &str) -> Error {
    Error::new(ErrorCode::Denied, "create", format!("image: it {what}")).backend(NAME).remedy(
        "make an image of its files alone: `docker export` a container of it, and `docker import`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(volumes: &[&str]) -> Result<Vec<String>> {
        let place = |path: &str| (path.to_owned(), String::new());
        let tmpfs = Some(HashMap::from([place("/tmp"), place("/var/tmp"), place("/workspace")]));
        let mut host = HostConfig { tmpfs, ..HostConfig::default() };
        let volumes: Vec<_> = volumes.iter().map(|path| (*path).to_owned()).collect();
        cover_volumes(&mut host, &volumes)?;
        let mut nothing: Vec<_> = host.tmpfs.unwrap().into_iter().collect();
        nothing.retain(|(_, options)| options == EMPTY_VOLUME_OPTIONS);
        let mut paths: Vec<_> = nothing.into_iter().map(|(path, _)| path).collect();
        paths.sort();
        Ok(paths)
    }

    #[test]
    fn base64_reads_back() {
        let pairs =
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob")];
        for (text, bytes) in pairs {
            assert_eq!(from_base64(text.as_bytes()), bytes.as_bytes(), "{text}");
        }
        assert_eq!(from_base64(b"+/+/"), [0xfb, 0xff, 0xbf]);
        from_base64(b"!!!A");
    }

    #[test]
    fn volumes_are_covered_or_in_the_way_of_what_was_asked_for() {
        assert_eq!(covered(&["/data", "/srv//db/", "/tmp"]).unwrap(), ["/data", "/srv/db"]);
        for wrong in ["/", "data", "/a/../b", "/var", "/workspace/x", "/tmp/a", "/a\nb", ""] {
            let error = covered(&[wrong]).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Denied, "{wrong:?}");
        }
        let many: Vec<_> = (0..=MAX_VOLUMES).map(|at| format!("/v{at}")).collect();
        assert!(covered(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_err());
    }
}
