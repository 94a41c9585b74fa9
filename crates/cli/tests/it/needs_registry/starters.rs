//! Starters, with a stand-in for `mmdebstrap` that writes a root with busybox: no packages are downloaded. No registry is
//! asked either; busybox comes with what tests of registries need.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{CliDone, CliPlace, finish};

/// Says what it was asked, and writes a root as `mmdebstrap` does: with devices and set-id bits.
const MMDEBSTRAP: &str = r#"#!/bin/sh -e
for word; do echo "asked: $word" >&2; done
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/etc"
cp /bin/busybox "$root/bin/busybox"
for applet in bash sh echo cat; do ln -s busybox "$root/bin/$applet"; done
echo "$SOURCE_DATE_EPOCH" > "$root/etc/epoch"
touch -d @0 "$root/etc/epoch" "$root/etc" "$root/bin"/* "$root/bin" "$root"
chmod 4755 "$root/bin/busybox"
tar -C "$root" --sort=name --numeric-owner --mtime=@0 -cf - .
"#;

/// Runs the command with stand-ins for the programs of the host.
fn starter(place: &CliPlace, args: &[&str]) -> CliDone {
    let bin = place.path("programs");
    fs::create_dir_all(&bin).unwrap();
    for (name, text) in [("mmdebstrap", MMDEBSTRAP), ("newuidmap", "#!/bin/sh\n")] {
        fs::write(bin.join(name), text).unwrap();
        fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut command = place.command(&[&["image", "starter"], args].concat());
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command.env("SOURCE_DATE_EPOCH", "86400");
    finish(command)
}

#[test]
fn a_starter_is_an_image_like_any_other() {
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        let built = starter(&place, &["python"]);
        assert_eq!(built.code, 0, "{built:?}");
        let include = "asked: --include=python3,python3-pip,python3-venv,ca-certificates";
        for said in ["[1/2] mmdebstrap: python3", include, "[2/2] localhost/starter:python"] {
            assert!(built.stderr.contains(said), "{said}: {built:?}");
        }
        let run = ["run", "--no-workspace", "--image-defaults", "--image"];
        let image = ["localhost/starter:python", "--pull", "never"];
        let look = ["--", "sh", "-c", "cat /etc/epoch; echo $PATH"];
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let done = place.stockade(&[&run[..], &image, &look].concat());
        done.is(0, &format!("86400\n{path}\n"), "");
        let again = starter(&place, &["python", "-t", "localhost/mine:1"]);
        assert_eq!((again.code, &again.stdout), (0, &built.stdout), "{again:?}");
        let drafts = place.state().join("images/drafts");
        assert_eq!(fs::read_dir(drafts).unwrap().count(), 0, "something is left");
        place.assert_nothing_is_left();
    }
}

#[test]
fn a_starter_that_nobody_knows_is_refused() {
    let refused = starter(&CliPlace::new(), &["ruby"]);
    assert_eq!(refused.code, 125, "{refused:?}");
    assert!(refused.stderr.contains("python, node and base"), "{refused:?}");
}
