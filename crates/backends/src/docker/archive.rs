//! An archive of an image on its way to the engine: exactly one image, and without the names it was saved
//! under, which would be taken from the engine's own images. Nothing else of it is changed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

/// Largest accepted image list.
const MAX_LIST_BYTES: u64 = 1 << 20;

/// The image list of Docker's archive format.
const DOCKER_MANIFEST_FILE: &str = "manifest.json";
/// The image list of the OCI layout.
const OCI_INDEX_FILE: &str = "index.json";
/// A file that holds only the names of images.
const REPOSITORIES_FILE: &str = "repositories";

/// Annotations by which an OCI layout names an image.
const NAME_ANNOTATIONS: [&str; 2] =
    ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// Copies the archive without its names.
pub(super) fn copy_without_names(path: &Path, out: impl Write) -> io::Result<()> {
    let mut archive = tar::Archive::new(File::open(path)?);
    let mut to = tar::Builder::new(out);
    let mut lists = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let place = normalize_entry_path(&entry.path()?)?;
        match (detect_image_list(&place, entry.header())?, place) {
            (_, place) if place.as_os_str().is_empty() => {}
            (Some(REPOSITORIES_FILE), _) => {}
            (Some(name), place) => {
                let bytes = strip_image_names(name, &mut entry)?;
                let mut header = tar::Header::new_gnu();
                header.set_mode(0o644);
                header.set_size(bytes.len() as u64);
                to.append_data(&mut header, place, bytes.as_slice())?;
                lists += 1;
            }
            (None, place) => copy_entry(&mut to, &mut entry, &place)?,
        }
    }
    match lists {
        0 => {
            Err(invalid_archive("it lists no image; a compressed archive has to be unpacked first"))
        }
        _ => to.into_inner()?.flush(),
    }
}

/// The way to an entry, without detours.
fn normalize_entry_path(path: &Path) -> io::Result<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(invalid_archive("an entry leads out of it"));
            }
        }
    }
    Ok(plain)
}

/// Which list of images an entry is. One that another could be taken for is no archive of an image.
fn detect_image_list(place: &Path, header: &tar::Header) -> io::Result<Option<&'static str>> {
    let known = [DOCKER_MANIFEST_FILE, OCI_INDEX_FILE, REPOSITORIES_FILE];
    let name = place.file_name().unwrap_or(OsStr::new(""));
    let Some(name) = known.into_iter().find(|known| name == *known) else { return Ok(None) };
    let alone = place.components().count() == 1 && header.entry_type().is_file();
    if alone {
        Ok(Some(name))
    } else {
        Err(invalid_archive("a list of images is not where it belongs"))
    }
}

fn copy_entry<R: Read>(
    to: &mut tar::Builder<impl Write>,
    entry: &mut tar::Entry<'_, R>,
    place: &Path,
) -> io::Result<()> {
    let mut header = entry.header().clone();
    match entry.link_name()?.map(std::borrow::Cow::into_owned) {
        Some(link) => to.append_link(&mut header, place, link),
        None => to.append_data(&mut header, place, entry),
    }
}

/// A list of exactly one image, without its names.
fn strip_image_names(name: &str, entry: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(MAX_LIST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LIST_BYTES {
        return Err(invalid_archive("its list of images is too long"));
    }
    let mut told: Value = serde_json::from_slice(&bytes)?;
    let images =
        if name == DOCKER_MANIFEST_FILE { Some(&mut told) } else { told.get_mut("manifests") };
    let Some([image]) = images.and_then(Value::as_array_mut).map(Vec::as_mut_slice) else {
        return Err(invalid_archive("it holds not exactly one image"));
    };
    let image =
        image.as_object_mut().ok_or_else(|| invalid_archive("its list of images is malformed"))?;
    if name == DOCKER_MANIFEST_FILE {
        image.insert("RepoTags".into(), Value::Array(Vec::new()));
    } else if let Some(notes) = image.get_mut("annotations").and_then(Value::as_object_mut) {
        NAME_ANNOTATIONS.iter().for_each(|name| drop(notes.remove(*name)));
    }
    Ok(serde_json::to_vec(&told)?)
}

fn invalid_archive(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, &str)]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut to = tar::Builder::new(file.reopen().unwrap());
        for (name, text) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(text.len() as u64);
            to.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        to.into_inner().unwrap();
        file
    }

    fn copied(entries: &[(&str, &str)]) -> io::Result<Vec<(String, String)>> {
        let mut out = Vec::new();
        copy_without_names(archive(entries).path(), &mut out)?;
        let mut all = Vec::new();
        for entry in tar::Archive::new(out.as_slice()).entries()? {
            let mut entry = entry?;
            let (name, mut text) = (entry.path()?.display().to_string(), String::new());
            entry.read_to_string(&mut text)?;
            all.push((name, text));
        }
        Ok(all)
    }

    #[test]
    fn an_image_loses_its_names_and_nothing_else() {
        let manifest = r#"[{"Config":"c.json","RepoTags":["debian:12"],"Layers":["l/layer.tar"]}]"#;
        let index = r#"{"manifests":[{"digest":"d","annotations":{"io.containerd.image.name":"debian:12","other":"kept"}}]}"#;
        let given = [
            ("./manifest.json", manifest),
            ("index.json", index),
            ("repositories", "{}"),
            ("l/layer.tar", "layer"),
        ];
        let all = copied(&given).unwrap();
        let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["manifest.json", "index.json", "l/layer.tar"]);
        assert!(all.iter().all(|(_, text)| !text.contains("debian:12")), "{all:?}");
        assert!(all[0].1.contains("l/layer.tar") && all[1].1.contains("kept"), "{all:?}");
        assert_eq!(all[2].1, "layer");
    }

    #[test]
    fn what_holds_several_images_or_none_or_hides_its_list_is_refused() {
        for given in [
            ("manifest.json", r#"[{"Config":"a"},{"Config":"b"}]"#),
            ("manifest.json", "[]"),
            ("index.json", r#"{"manifests":[]}"#),
            ("deep/manifest.json", "[{}]"),
            ("other", "nothing"),
        ] {
            assert!(copied(&[given]).is_err(), "{given:?}");
        }
    }
}
