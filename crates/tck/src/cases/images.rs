//! What a sandbox's root is made of, and what an image cannot do to it (C-03, C-26).

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;
use stockade_core::{Command, ErrorCode, Feature, Image, RootMode, SandboxSpec};

use crate::case::{case, check, same};
use crate::kit::host_path;
use crate::{Case, Kit, Room, Stop, Verdict};

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
    case!(
        "nothing in an image leads a mount elsewhere or replaces what is the sandbox's",
        "C-26",
        check_hostile_images
    )
    .needs(&[Feature::DirectoryImage])
    .isolation()
    .within(600),
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
    let on_host = fs::remove_file(&name).is_ok();
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
    fs::create_dir(&data)?;
    fs::write(data.join("given"), "by the image")?;
    let mut spec = kit.spec();
    (spec.image, spec.root) = (Image::Directory(host_path(&image)?), RootMode::CopyOnWrite);
    let one = kit.room_with(spec.clone()).await?;
    for path in ["/data/given", "/data/new", "/new"] {
        let written = one.facts(["write", path, "x"]).await?;
        same!(format!("writing to {path}"), written["ok"], json!(true));
    }
    let given = fs::read_to_string(data.join("given"))?;
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

/// What an image holds where the sandbox has something of its own.
#[derive(Clone, Copy)]
enum Planted {
    /// A symbolic link to a directory of the host.
    Link,
    /// A program.
    Program,
}

/// Images, each by what it holds and under which names. What backends may refuse for different reasons stands apart:
/// one refusal would hide the rest.
const HOSTILE_IMAGES: [(Planted, &[&str]); 4] = [
    (Planted::Link, &["tmp", "proc", "dev", "sys", "run", "home"]),
    (Planted::Link, &["workspace", "var"]),
    (Planted::Program, &["tmp", "workspace", "var"]),
    (Planted::Program, &[".stockade-agent", "agent", "init", "linuxrc"]),
];

/// Each of them is refused, or serves without any effect beyond its own files.
async fn check_hostile_images(kit: Kit) -> Verdict {
    let outside = kit.outside().join("led-to");
    create_open_directory(&outside)?;
    for (number, (planted, names)) in HOSTILE_IMAGES.into_iter().enumerate() {
        let image = kit.outside().join(format!("image-{number}"));
        plant_image(&kit, &image, (planted, names), &outside)?;
        let spec = SandboxSpec { image: Image::Directory(host_path(&image)?), ..kit.spec() };
        match kit.engine().create(spec).await {
            Ok(id) => check_image_is_inert(&kit, &kit.room_of(id)).await?,
            // A refusal is as good, if nothing is left of what was begun.
            Err(error) => {
                check!(is_refusal(error.code()), "{names:?}: expected a refusal, saw {error}");
            }
        }
        kit.all_gone().await?;
        let made: Vec<PathBuf> =
            fs::read_dir(&outside)?.flatten().map(|entry| entry.path()).collect();
        check!(made.is_empty(), "{names:?}: expected nothing new on the host, saw {made:?}");
    }
    Ok(())
}

/// Whether an error says that an image is not taken, and not that something else failed.
fn is_refusal(code: ErrorCode) -> bool {
    match code {
        ErrorCode::Invalid
        | ErrorCode::Refused
        | ErrorCode::PathEscapes
        | ErrorCode::Denied
        | ErrorCode::Unsupported
        | ErrorCode::WallMissing => true,
        ErrorCode::QuotaExceeded
        | ErrorCode::NotFound
        | ErrorCode::Unavailable
        | ErrorCode::Gone
        | ErrorCode::JournalUnavailable
        | ErrorCode::StateUnavailable
        | ErrorCode::Protocol
        | ErrorCode::TooSlow
        | ErrorCode::TooLarge
        | ErrorCode::LeftBehind
        | ErrorCode::System => false,
    }
}

/// The sandbox's own places are where they belong, and its programs start and end.
async fn check_image_is_inert(kit: &Kit, room: &Room) -> Verdict {
    let probe = |args: &[&str]| Command::program(["/probe"].iter().chain(args).copied());
    let ran = room.run_command(probe(&["write", "/workspace/made", "x"])).await?;
    same!("writing to the workspace", ran.facts()?["ok"], json!(true));
    if kit.is_native() && kit.has(Feature::LocalWorkspace) {
        let made = kit.workspace().join("made");
        check!(made.exists(), "expected the file in the workspace of the host, saw none");
        fs::remove_file(made)?;
    }
    for place in ["/tmp", "/var/tmp", "/dev", "/run", "/home"] {
        room.run_command(probe(&["write", &format!("{place}/made"), "x"])).await?.facts()?;
    }
    room.run_command(probe(&["exit", "5"])).await?.exited(5)?;
    room.destroy().await
}

/// An image with the probe, and with what is planted under each of these names.
fn plant_image(
    kit: &Kit,
    image: &Path,
    (planted, names): (Planted, &[&str]),
    outside: &Path,
) -> Verdict {
    create_open_directory(image)?;
    if kit.programs().join("probe").exists() {
        fs::hard_link(kit.programs().join("probe"), image.join("probe"))?;
    }
    let program = kit.subject().probe().bytes().unwrap_or_default();
    for path in names.iter().map(|name| image.join(name)) {
        match planted {
            Planted::Link => symlink(outside, path)?,
            Planted::Program => {
                fs::write(&path, program)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
            }
        }
    }
    Ok(())
}

/// A directory that every user can write to: only walls keep a guest out of it.
fn create_open_directory(path: &Path) -> Verdict {
    fs::create_dir(path)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o777))?)
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
    fs::write(&file, crate::wasm_probe_bytes())?;
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
