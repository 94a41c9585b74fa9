//! Images: the engine's own by name, and those made from what lies on this host, which are made once
//! and kept under a name that tells their content.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use bollard::models::ImageSummary;
use bollard::query_parameters::{
    CreateImageOptions, ImportImageOptions, ListImagesOptions, RemoveImageOptions, TagImageOptions,
};
use bollard::{Docker as Api, body_try_stream};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use stockade_core::{
    Admitted, Error, ErrorCode, HostPath, Image as Wanted, ImageDefaults, ImageName, PullPolicy,
    ResolvedImage, Result, User,
};
use stockade_launcher::{Made, host_root};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::socket::{EngineHandle, describe_api_error, is_missing};
use super::{NAME, Progress, engine_failed, plan, tree};
use crate::linux::fingerprint;

/// Import lock: one image at a time, as engines fail where the same one is made twice at once.
static IMPORT_LOCK: Mutex<()> = Mutex::const_new(());

/// How long an image that another process is making may take to be there.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(20);
const IMPORT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long the engine may send nothing during a transfer before it is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The most lines of an engine's reply.
const MAX_LINES: usize = 1_000_000;
/// How many of the last lines of a reply are kept.
const MAX_TAIL_LINES: usize = 64;

/// The age from which an image made of a directory is removed, in seconds.
const MAX_IMAGE_AGE_SECONDS: i64 = 30 * 24 * 60 * 60;
/// How many old images are removed at once.
const MAX_PRUNED_IMAGES: usize = 16;

/// How many of an image's digests in repositories are tried.
const MAX_REPOSITORY_DIGESTS: usize = 16;

/// The repository of images made of this host's files.
const IMAGE_REPOSITORY: &str = "localhost/stockade";

/// An image that the engine has.
pub(super) struct DockerImage {
    /// Its id, which stays the same when its name is given to another image.
    pub id: String,
    /// The paths that it declares as volumes.
    pub volumes: Vec<String>,
    /// Whether it was made here, of this host's own files, and so needs no check of its links.
    pub own: bool,
    /// Directories of the host that are mounted read-only where they are.
    pub shown: Vec<PathBuf>,
}

/// Sees to it that the engine has the image.
pub(super) async fn ensure_image(
    engine: &EngineHandle,
    admitted: &Admitted,
    pull: PullPolicy,
    progress: &Progress,
) -> Result<DockerImage> {
    let spec = admitted.spec();
    match &spec.image {
        Wanted::Host => ensure_host_image(&engine.api, plan::choose_user(spec, engine)?).await,
        Wanted::Directory(path) => {
            describe_image(&engine.api, ensure_directory_image(engine, path).await?).await
        }
        Wanted::Oci(path) => {
            describe_image(&engine.api, ensure_archive_image(&engine.api, path).await?).await
        }
        Wanted::Named(name) => {
            ensure_named_image(&engine.api, name, pull, progress).await?;
            describe_image(&engine.api, name.to_string()).await
        }
        // Not admitted on this backend.
        Wanted::Wasm(path) => Err(unusable_image(path, "is not an image for an engine")),
    }
}

async fn describe_image(api: &Api, name: String) -> Result<DockerImage> {
    let found = api.inspect_image(&name).await.map_err(|error| engine_failed("create", &error))?;
    let volumes = found.config.and_then(|config| config.volumes).unwrap_or_default();
    Ok(DockerImage { id: found.id.unwrap_or(name), volumes, own: false, shown: Vec::new() })
}

/// The host's own programs: an image of the small files and links, and mounts of the directories.
async fn ensure_host_image(api: &Api, User { uid, gid }: User) -> Result<DockerImage> {
    let pieces = host_root(uid, gid);
    let shown = pieces.iter().filter_map(|piece| match &piece.made {
        Made::Mount(source) => Some(source.clone()),
        Made::Link(_) | Made::File(_) => None,
    });
    let shown = shown.collect();
    let archive = tree::of_pieces(&pieces).map_err(|error| not_packed("host", error))?;
    let name = format!("{IMAGE_REPOSITORY}/host:{}", fingerprint::hash_bytes(&archive));
    if !has_image(api, &name).await? {
        import_root_archive(api, &name, stream::iter([Ok(archive.into())])).await?;
    }
    Ok(DockerImage { id: name, volumes: Vec::new(), own: true, shown })
}

async fn ensure_directory_image(engine: &EngineHandle, path: &HostPath) -> Result<String> {
    let (api, kind) = (&engine.api, "directory");
    let root = path.as_path().to_owned();
    let key = tokio::task::spawn_blocking(move || fingerprint::of_tree(&root)).await;
    let key = key.map_err(std::io::Error::other).and_then(|key| key);
    let key = key.map_err(|error| unusable_image(path, "cannot be read").source(error))?;
    let name = format!("{IMAGE_REPOSITORY}/{kind}:{}", build_tag(path, &key));
    if !has_image(api, &name).await? {
        import_root_archive(
            api,
            &name,
            tree::stream_tree(path.as_path().to_owned(), engine.rootless),
        )
        .await?;
        prune_images(api, kind, path, &name).await;
    }
    Ok(name)
}

/// Where something lies, and its state: so that an earlier state of the same is known.
fn build_tag(path: &HostPath, key: &str) -> String {
    format!("{}{key}", path_tag_prefix(path))
}

fn path_tag_prefix(path: &HostPath) -> String {
    format!("{:.16}-", fingerprint::hash_bytes(path.to_string().as_bytes()))
}

/// An archive as `docker save` or `podman save` writes it.
async fn ensure_archive_image(api: &Api, path: &HostPath) -> Result<String> {
    let key = fingerprint::hash_file_state(path.as_path());
    let key = key.map_err(|error| unusable_image(path, "cannot be read").source(error))?;
    let kind = "archive";
    let (repo, tag) = (format!("{IMAGE_REPOSITORY}/{kind}"), build_tag(path, &key));
    let name = format!("{repo}:{tag}");
    if has_image(api, &name).await? {
        return Ok(name);
    }
    let bytes = tree::stream_archive(path.as_path().to_owned());
    let loaded = api.import_image(ImportImageOptions::default(), body_try_stream(bytes), None);
    let said = drain_reply(loaded, |info| info.stream.or(info.status)).await.map_err(|why| {
        unusable_image(path, &format!("is not an archive that the engine can load: {why}"))
    })?;
    let image = loaded_name(&said)
        .ok_or_else(|| unusable_image(path, "holds no image that the engine could load"))?;
    let options = TagImageOptions { repo: Some(repo), tag: Some(tag) };
    api.tag_image(&image, Some(options)).await.map_err(|error| engine_failed("create", &error))?;
    prune_images(api, kind, path, &name).await;
    Ok(name)
}

/// Removes images of earlier states of the same, and old ones that will be made again if anybody wants
/// them: a few at a time. The engine keeps what a container uses. Failing to is no harm.
async fn prune_images(api: &Api, kind: &str, path: &HostPath, kept: &str) {
    let filters =
        HashMap::from([("reference".to_owned(), vec![format!("{IMAGE_REPOSITORY}/{kind}")])]);
    let options = ListImagesOptions { filters: Some(filters), ..ListImagesOptions::default() };
    let Ok(images) = api.list_images(Some(options)).await else { return };
    for name in select_unwanted_images(&images, kind, path, kept) {
        let _ = api.remove_image(&name, None::<RemoveImageOptions>, None).await;
    }
}

fn select_unwanted_images(
    images: &[ImageSummary],
    kind: &str,
    path: &HostPath,
    kept: &str,
) -> Vec<String> {
    let earlier = &format!("{IMAGE_REPOSITORY}/{kind}:{}", path_tag_prefix(path));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let names = images.iter().flat_map(|image| {
        // The date of a loaded image is when its author made it, which tells nothing.
        let old = kind == "directory" && now - image.created > MAX_IMAGE_AGE_SECONDS;
        image.repo_tags.iter().filter(move |name| old || name.starts_with(earlier))
    });
    let unwanted = names.filter(|name| *name != kept && name.starts_with(IMAGE_REPOSITORY));
    unwanted.take(MAX_PRUNED_IMAGES).cloned().collect()
}

/// What an engine says when it has loaded something.
fn loaded_name(said: &[String]) -> Option<String> {
    let names = said.iter().filter_map(|line| {
        let (_, rest) = line.trim().split_once("Loaded image")?;
        let (_, name) = rest.split_once(": ")?;
        name.split(',').next()
    });
    names.map(|name| name.trim().to_owned()).next_back()
}

/// The policy of a build, whose image was resolved before: a registry was asked then.
pub(super) fn policy_for_build(policy: PullPolicy) -> PullPolicy {
    match policy {
        PullPolicy::Always | PullPolicy::Missing => PullPolicy::Missing,
        PullPolicy::Never => PullPolicy::Never,
    }
}

/// What a name means to the engine, by its digest where the engine knows one, and what the image says about processes.
pub(super) async fn resolve_named_image(
    api: &Api,
    name: &ImageName,
    policy: PullPolicy,
    progress: &Progress,
) -> Result<ResolvedImage> {
    ensure_named_image(api, name, policy, progress).await?;
    let failed = |error| engine_failed("use an image", &error);
    let found = api.inspect_image(name.as_str()).await.map_err(failed)?;
    let digests = found.repo_digests.unwrap_or_default();
    let name = pin_name(api, name, found.id.as_deref(), &digests).await;
    let config = found.config.unwrap_or_default();
    Ok(ResolvedImage {
        contents: Wanted::Named(name.clone()),
        name,
        defaults: ImageDefaults {
            env: config.env.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
            workdir: config.working_dir.unwrap_or_default(),
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
        },
        lease: Box::new(()),
    })
}

/// The name with a digest by which the engine finds the same image. An image that was made here may have none.
async fn pin_name(api: &Api, name: &ImageName, id: Option<&str>, digests: &[String]) -> ImageName {
    if is_pinned(name) {
        return name.clone();
    }
    for candidate in list_pinned_names(name, digests) {
        let found = api.inspect_image(candidate.as_str()).await;
        if found.is_ok_and(|found| found.id.is_some() && found.id.as_deref() == id) {
            return candidate;
        }
    }
    name.clone()
}

/// The name with each of the digests that an image has in repositories.
fn list_pinned_names(name: &ImageName, digests: &[String]) -> Vec<ImageName> {
    let digests = digests.iter().filter_map(|of_repository| of_repository.split_once('@'));
    let pinned = digests.filter_map(|(_, digest)| format!("{name}@{digest}").parse().ok());
    pinned.take(MAX_REPOSITORY_DIGESTS).collect()
}

fn is_pinned(name: &ImageName) -> bool {
    name.as_str().contains('@')
}

/// Sees to it that the engine has the image of a name.
async fn ensure_named_image(
    api: &Api,
    name: &ImageName,
    policy: PullPolicy,
    progress: &Progress,
) -> Result<()> {
    // A digest means the same for ever.
    let asks_always = policy == PullPolicy::Always && !is_pinned(name);
    if !asks_always && has_image(api, name.as_str()).await? {
        return Ok(());
    }
    if policy == PullPolicy::Never {
        return Err(not_stored(name));
    }
    pull_image(api, name, progress).await
}

async fn pull_image(api: &Api, name: &ImageName, progress: &Progress) -> Result<()> {
    let tagged = name.as_str().rsplit('/').next().is_some_and(|last| last.contains([':', '@']));
    let options = CreateImageOptions {
        from_image: Some(name.to_string()),
        // Without a tag an engine would fetch all there are.
        tag: (!tagged).then(|| "latest".to_owned()),
        ..CreateImageOptions::default()
    };
    progress(&format!("fetching the image {name}"));
    let pulled = drain_reply(api.create_image(Some(options), None, None), |info| {
        let line = [info.id, info.status].into_iter().flatten().collect::<Vec<_>>().join(" ");
        progress(&line);
        None
    });
    pulled.await.map(drop).map_err(|why| not_to_be_had(name, &why))
}

async fn has_image(api: &Api, name: &str) -> Result<bool> {
    match api.inspect_image(name).await {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(engine_failed("create", &error)),
    }
}

/// Makes an image of a root's archive, unless another process has just made it.
pub(super) async fn import_root_archive(
    api: &Api,
    name: &str,
    archive: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> Result<()> {
    let _alone = IMPORT_LOCK.lock().await;
    if has_image(api, name).await? {
        return Ok(());
    }
    let options = CreateImageOptions {
        from_src: Some("-".into()),
        // With its tag: not every engine reads that where it should be.
        repo: Some(name.into()),
        ..CreateImageOptions::default()
    };
    let made =
        drain_reply(api.create_image(Some(options), Some(body_try_stream(archive)), None), |_| {
            None
        })
        .await;
    let Err(why) = made else { return Ok(()) };
    if made_by_another(api, name, &why).await? {
        return Ok(());
    }
    Err(Error::new(ErrorCode::Unavailable, "create", format!("no image could be made: {why}"))
        .backend(NAME)
        .remedy("see the engine's log, and whether its disk is full"))
}

/// Whether an image that could not be made is there all the same: another process was quicker. The engine
/// may refuse the second before it has finished the first.
async fn made_by_another(api: &Api, name: &str, why: &str) -> Result<bool> {
    let underway = why.to_lowercase().replace(' ', "").contains("alreadyexists");
    let begun = Instant::now();
    while !has_image(api, name).await? {
        if !underway || begun.elapsed() > IMPORT_TIMEOUT {
            return Ok(false);
        }
        tokio::time::sleep(IMPORT_POLL_INTERVAL).await;
    }
    Ok(true)
}

/// Reads an engine's answer to its end, with what is worth keeping of each line.
async fn drain_reply<T>(
    answer: impl Stream<Item = Result<T, bollard::errors::Error>>,
    mut keep: impl FnMut(T) -> Option<String>,
) -> Result<Vec<String>, String> {
    tokio::pin!(answer);
    let mut kept = Vec::new();
    for _ in 0..MAX_LINES {
        match tokio::time::timeout(STALL_TIMEOUT, answer.next()).await {
            Err(_) => return Err(format!("nothing came for {} s", STALL_TIMEOUT.as_secs())),
            Ok(None) => return Ok(kept),
            Ok(Some(Err(error))) => return Err(describe_api_error(&error)),
            Ok(Some(Ok(line))) => kept.extend(keep(line)),
        }
        let excess = kept.len().saturating_sub(MAX_TAIL_LINES);
        kept.drain(..excess);
    }
    Err("it does not come to an end".into())
}

fn not_stored(name: &ImageName) -> Error {
    let message =
        format!("image: `{name}` is not in the engine's store, and no registry may be asked");
    let remedy = format!("give the engine the image, `docker pull {name}`, or use --pull missing");
    Error::new(ErrorCode::NotFound, "create", message).backend(NAME).remedy(remedy)
}

fn not_to_be_had(name: &ImageName, why: &str) -> Error {
    let message = format!("image: `{name}` is not there and cannot be fetched: {why}");
    Error::new(ErrorCode::NotFound, "create", message).backend(NAME).remedy(format!(
        "correct the name, or give the engine the image: `docker pull {name}`, `docker load`"
    ))
}

fn not_packed(what: &str, error: std::io::Error) -> Error {
    let message = format!("image: the {what} root cannot be packed");
    Error::new(ErrorCode::System, "create", message).backend(NAME).source(error)
}

fn unusable_image(path: &HostPath, what: &str) -> Error {
    Error::new(ErrorCode::Invalid, "create", format!("image: `{path}` {what}"))
        .backend(NAME)
        .remedy("give a directory that holds a root, or an archive of `docker save`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_pinned_by_the_digests_that_its_image_has_in_repositories() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        let listed = [format!("docker.io/library/python@{digest}"), "no-digest".to_owned()];
        let name = "python:3.12".parse().unwrap();
        let pinned = list_pinned_names(&name, &listed);
        assert_eq!(pinned, [format!("python:3.12@{digest}").parse().unwrap()]);
        assert!(is_pinned(&pinned[0]) && !is_pinned(&name));
        let many = vec![listed[0].clone(); 100];
        assert_eq!(list_pinned_names(&name, &many).len(), MAX_REPOSITORY_DIGESTS);
    }

    #[test]
    fn the_name_of_what_was_loaded_is_found_in_both_engines_words() {
        let docker = ["Loaded image: a/b:1\n".to_owned()];
        let by_id = ["Loaded image ID: sha256:0f\n".to_owned()];
        let podman = ["Loaded image(s): localhost/a:1,localhost/b:2".to_owned()];
        assert_eq!(loaded_name(&docker).as_deref(), Some("a/b:1"));
        assert_eq!(loaded_name(&by_id).as_deref(), Some("sha256:0f"));
        assert_eq!(loaded_name(&podman).as_deref(), Some("localhost/a:1"));
        assert_eq!(loaded_name(&["nothing".to_owned()]), None);
    }
}
