//! The root that an archive of an image holds: unpacked by programs inside walls, layer by layer. Nothing of
//! it is opened outside of them, and what it says is taken for a guest's words.

use serde_json::Value;
use stockade_core::{EffectiveLimits, Error, ErrorCode, Files, FilesExt, Result, Sandbox};

use super::NAME;
use super::image::run_to_success;

/// The mount point of the archive, the directory it is extracted into, and that of its merged layers.
pub(super) const ARCHIVE_PATH: &str = "/stockade/archive";
const LAYOUT_DIR: &str = "layout";
pub(super) const UNPACKED_DIR: &str = "unpacked";

/// Limits of an archive: size of a manifest or index, number of layers, nesting of indexes.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
const MAX_LAYERS: usize = 1000;
const MAX_INDEX_DEPTH: usize = 4;

const EXTRACT_SCRIPT: &str = "mkdir layout unpacked && exec tar -xf /stockade/archive -C layout";

/// Applies a layer: its whiteouts first, which are not part of what it adds.
const APPLY_LAYER_SCRIPT: &str = r#"set -eu
tar -tf "$1" | sed -n 's,^\./,,; /\(^\|\/\)\.wh\./p' > gone
while IFS= read -r path; do
    dir=unpacked/$(dirname "$path") name=$(basename "$path")
    case $name in
        .wh..wh..opq) [ ! -d "$dir" ] || find "$dir" -mindepth 1 -delete ;;
        *) rm -rf "$dir/${name#.wh.}" ;;
    esac
done < gone
exec tar -xf "$1" -C unpacked --no-same-owner --exclude='.wh.*'"#;

fn invalid_archive(what: &str) -> Error {
    Error::new(ErrorCode::Invalid, "create", format!("image: the archive {what}"))
        .backend(NAME)
        .remedy("name an archive of one image, as `docker save` or `skopeo` write it")
}

/// Unpacks the archive.
pub(super) async fn unpack_archive(sandbox: &dyn Sandbox, limits: &EffectiveLimits) -> Result<()> {
    run_to_success(sandbox, limits, &["sh", "-c", EXTRACT_SCRIPT]).await?;
    for layer in list_layers(sandbox.files()?).await? {
        run_to_success(
            sandbox,
            limits,
            &["sh", "-c", APPLY_LAYER_SCRIPT, "sh", &format!("{LAYOUT_DIR}/{layer}")],
        )
        .await?;
    }
    Ok(())
}

/// The layers of its one image, the lowest first: by Docker's list, or by that of an OCI layout.
async fn list_layers(files: &dyn Files) -> Result<Vec<String>> {
    if let Some(list) = read_manifest(files, "manifest.json").await? {
        let image = single_image(list.as_array())?;
        return layer_paths(&image["Layers"], |layer| layer.as_str().and_then(relative_path));
    }
    let mut list = read_manifest(files, "index.json")
        .await?
        .ok_or_else(|| invalid_archive("lists no image"))?;
    for _ in 0..MAX_INDEX_DEPTH {
        if list["layers"].is_array() {
            return layer_paths(&list["layers"], |layer| blob_path(&layer["digest"]));
        }
        let next = blob_path(&single_image(list["manifests"].as_array())?["digest"]);
        let next = next.ok_or_else(|| invalid_archive("names what cannot be in it"))?;
        list = read_manifest(files, &next)
            .await?
            .ok_or_else(|| invalid_archive("lacks what it lists"))?;
    }
    Err(invalid_archive("has lists in lists"))
}

async fn read_manifest(files: &dyn Files, name: &str) -> Result<Option<Value>> {
    let path =
        format!("{LAYOUT_DIR}/{name}").parse().map_err(|_| invalid_archive("names no file"))?;
    let text = match files.read_all(&path, MAX_MANIFEST_BYTES).await {
        Ok(text) => text,
        Err(error) if error.code() == ErrorCode::NotFound => return Ok(None),
        Err(error) => return Err(invalid_archive("cannot be read").source(error)),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| invalid_archive("makes no sense").source(error))
}

fn single_image(list: Option<&Vec<Value>>) -> Result<&Value> {
    match list.map(Vec::as_slice) {
        Some([one]) => Ok(one),
        Some(_) | None => Err(invalid_archive("does not hold exactly one image")),
    }
}

fn layer_paths(list: &Value, name: impl Fn(&Value) -> Option<String>) -> Result<Vec<String>> {
    let list = list.as_array().filter(|list| list.len() <= MAX_LAYERS);
    let named: Option<Vec<_>> = list.and_then(|list| list.iter().map(name).collect());
    named.ok_or_else(|| invalid_archive("names layers that cannot be in it"))
}

/// A name in the archive that leads nowhere else.
fn relative_path(name: &str) -> Option<String> {
    let fits = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.split('/').all(fits).then(|| name.to_owned())
}

/// Where a layout has what has this sum.
fn blob_path(digest: &Value) -> Option<String> {
    let (kind, sum) = digest.as_str()?.split_once(':')?;
    relative_path(&format!("blobs/{kind}/{sum}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use stockade_core::Backend;

    use super::*;
    use crate::linux;
    use crate::microvm::image::RootSource;
    use crate::native::Native;

    #[test]
    fn names_lead_nowhere_else() {
        for bad in ["", "/etc/passwd", "a/../b", "..", "a//b", "./a"] {
            assert_eq!(relative_path(bad), None, "{bad}");
        }
        assert_eq!(relative_path("ab/layer.tar").as_deref(), Some("ab/layer.tar"));
        assert_eq!(blob_path(&json!("sha256:00ff")).as_deref(), Some("blobs/sha256/00ff"));
        for bad in [json!("sha256"), json!("sha256:../../x"), json!(7), Value::Null] {
            assert_eq!(blob_path(&bad), None, "{bad}");
        }
    }

    /// A layer of these files.
    fn build_layer(files: &[(&str, &str)]) -> Vec<u8> {
        let mut layer = tar::Builder::new(Vec::new());
        for (name, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(text.len() as u64);
            layer.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        layer.into_inner().unwrap()
    }

    #[tokio::test]
    async fn layers_come_together_as_they_say() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let lower =
            build_layer(&[("kept", "1"), ("dir/gone", "1"), ("dir/stays", "1"), ("over/old", "1")]);
        let upper = build_layer(&[
            ("./dir/.wh.gone", ""),
            ("over/.wh..wh..opq", ""),
            ("over/new", "2"),
            ("kept", "2"),
        ]);
        let lists = json!({ "layers": [{ "digest": "sha256:a" }, { "digest": "sha256:b" }] });
        let index = json!({ "manifests": [{ "digest": "sha256:c" }] });
        let parts = [
            ("blobs/sha256/a", lower),
            ("blobs/sha256/b", upper),
            ("blobs/sha256/c", lists.to_string().into()),
            ("index.json", index.to_string().into()),
        ];
        let mut archive = tar::Builder::new(Vec::new());
        for (name, bytes) in parts {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, &*bytes).unwrap();
        }
        let (path, draft) = (place.path().join("archive"), place.path().join("draft"));
        fs::write(&path, archive.into_inner().unwrap()).unwrap();
        fs::create_dir(&draft).unwrap();
        let (native, id) = (Native::new(), linux::trial_id());
        let admitted = linux::admit_provisionally(
            NAME,
            &RootSource::Archive(path).build_spec(&draft).unwrap(),
        )
        .unwrap();
        let sandbox = native.create(&id, &admitted).await.unwrap();
        let unpacked = unpack_archive(&*sandbox, admitted.limits()).await;
        native.destroy(&id).await.unwrap();
        unpacked.unwrap();
        let read = |name: &str| fs::read_to_string(draft.join(UNPACKED_DIR).join(name)).ok();
        assert_eq!(read("kept").as_deref(), Some("2"));
        assert_eq!((read("dir/gone"), read("dir/stays")), (None, Some("1".into())));
        assert_eq!((read("over/old"), read("over/new")), (None, Some("2".into())));
        assert!(!draft.join("unpacked/dir/.wh.gone").exists());
    }

    #[test]
    fn exactly_one_image_is_taken() {
        let none = json!([]);
        let two = json!([{}, {}]);
        assert!(single_image(none.as_array()).is_err() && single_image(two.as_array()).is_err());
        assert!(single_image(json!([{}]).as_array()).is_ok() && single_image(None).is_err());
    }
}
