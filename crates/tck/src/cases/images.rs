//! What a sandbox's root is made of (C-03).

use serde_json::json;
use stockade_core::{Command, Feature, Image, RootMode, SandboxSpec};

use crate::case::{case, check, same};
use crate::kit::host_path;
use crate::{Case, Kit, Stop, Verdict};

pub(super) const IMAGE_CASES: &[Case] = &[
    case!("the host's programs are there, and cannot be changed", "C-03", check_host_image)
        .needs(&[Feature::HostImage])
        .isolation(),
    case!("a directory serves as the whole root", "C-03", check_directory_image)
        .needs(&[Feature::DirectoryImage])
        .isolation(),
    case!(
        "the root of an image can be written to, and the image stays as it is",
        "C-03",
        check_writable_image
    )
    .needs(&[Feature::CopyOnWriteImage, Feature::DirectoryImage])
    .isolation(),
    case!("an archive of an image serves as the whole root", "C-03", check_oci_archive)
        .needs(&[Feature::OciImage])
        .isolation(),
    case!("an image with a name serves as the whole root", "C-03", check_named_image)
        .needs(&[Feature::NamedImage])
        .isolation(),
    case!("an image that is not to be had fails by its name", "C-02", unheard_of)
        .needs(&[Feature::NamedImage]),
    case!("a WebAssembly module of the host is the program", "C-03", check_wasm_module)
        .needs(&[Feature::WasmImage]),
];

async fn check_host_image(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let listed = room.facts(["list", "/usr"]).await?;
    same!("whether system directories are there", listed["ok"], json!(true));
    let read = room.facts(["read", "/etc/os-release"]).await?;
    same!("whether the system's name can be read", read["ok"], json!(true));
    let name = format!("/usr/{}", kit.mark());
    let written = room.facts(["write", &name, "x"]).await?;
    let on_host = std::fs::remove_file(&name).is_ok();
    check!(!on_host && written["ok"] == json!(false), "expected a read-only root, saw {written}");
    // As an ordinary user even a host without walls refuses that; this it does not.
    let outside = kit.outside().join("new").to_string_lossy().into_owned();
    let written = room.facts(["write", &outside, "x"]).await?;
    check!(!kit.outside().join("new").exists(), "expected no file on the host, saw {written}");
    Ok(())
}

async fn check_directory_image(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.image = Image::Directory(host_path(&kit.programs())?);
    whole_root(&kit, spec).await
}

async fn check_writable_image(kit: Kit) -> Verdict {
    let (image, data) = (kit.programs(), kit.programs().join("data"));
    std::fs::create_dir(&data)?;
    std::fs::write(data.join("given"), "by the image")?;
    let mut spec = kit.spec();
    (spec.image, spec.root) = (Image::Directory(host_path(&image)?), RootMode::CopyOnWrite);
    let one = kit.room_with(spec.clone()).await?;
    for path in ["/data/given", "/data/new", "/new"] {
        let written = one.facts(["write", path, "x"]).await?;
        same!(format!("writing to {path}"), written["ok"], json!(true));
    }
    let given = std::fs::read_to_string(data.join("given"))?;
    same!("the image's own file", given, "by the image");
    let is_changed = data.join("new").exists() || image.join("new").exists();
    check!(!is_changed, "expected the image to stay as it is, but a new file is in it");
    let two = kit.room_with(spec).await?;
    let read = two.facts(["read", "/data/new"]).await?;
    same!("reading a new file in another sandbox", read["ok"], json!(false));
    Ok(())
}

async fn check_oci_archive(kit: Kit) -> Verdict {
    let file = kit.outside().join("image.tar");
    let probe = kit.subject().probe().bytes().unwrap_or_default();
    crate::write_image(&file, probe, &["localhost/stockade-tck/saved:1"])?;
    whole_root(&kit, SandboxSpec { image: Image::Oci(host_path(&file)?), ..kit.spec() }).await
}

async fn check_named_image(kit: Kit) -> Verdict {
    let Some(name) = kit.subject().named_image() else {
        return Err(Stop::Unfit("the subject names no image".into()));
    };
    whole_root(&kit, SandboxSpec { image: Image::Named(name), ..kit.spec() }).await
}

async fn unheard_of(kit: Kit) -> Verdict {
    let name = format!("localhost/stockade-tck/{}", kit.mark());
    let spec = SandboxSpec { image: Image::Named(name.parse()?), ..kit.spec() };
    match kit.engine().create(spec).await {
        Ok(_) => Err(Stop::failed("expected an error, saw a sandbox")),
        Err(error) => {
            let named = error.message().contains(&name) && error.hint().is_some();
            check!(named, "expected the name and a remedy, saw {error}");
            Ok(())
        }
    }
}

/// Looks around in a root that is the image's alone.
async fn whole_root(kit: &Kit, spec: SandboxSpec) -> Verdict {
    let ran = kit.run_with(spec, Command::program(["/probe", "list", "/"])).await?;
    let facts = ran.facts()?;
    let holds =
        |name: &str| facts["names"].as_array().is_some_and(|all| all.contains(&json!(name)));
    check!(holds("probe"), "expected the image's own file, saw {facts}");
    // A home may be the sandbox's own; programs and the superuser's home are the host's.
    check!(!holds("usr") && !holds("root"), "expected nothing of the host's root, saw {facts}");
    Ok(())
}

async fn check_wasm_module(kit: Kit) -> Verdict {
    let file = kit.outside().join("given.wasm");
    std::fs::write(&file, crate::wasm_probe_bytes())?;
    let mut spec = kit.spec();
    spec.image = Image::Wasm(host_path(&file)?);
    for name in ["given.wasm", "given"] {
        let ran = kit.run_with(spec.clone(), Command::program([name, "exit", "23"])).await?;
        ran.exited(23)?;
    }
    let listed = kit.run_with(spec, Command::program(["given", "list", "/"])).await?.facts()?;
    let holds =
        |name: &str| listed["names"].as_array().is_some_and(|all| all.contains(&json!(name)));
    check!(!holds("usr") && !holds("etc"), "expected nothing of the host's root, saw {listed}");
    Ok(())
}
