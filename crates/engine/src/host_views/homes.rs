//! Where Stockade keeps its files in homes. A process whose variables move them elsewhere must not show those of
//! processes without such variables; and a guest of root's acts for the owner of its workspace, so that it could
//! use what is in that user's home.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stockade_fs::RealPaths;

use super::mounts::lies_in;
use super::{OwnPath, real_by};

/// Directories of Stockade's own in a home, where no variable moves them, and what each is.
const OWN_DIRS_IN_HOME: [(&str, &str); 3] = [
    (".local/state/stockade", "a state directory"),
    (".config/stockade", "a configuration"),
    (".cache/stockade", "a cache"),
];

const REMEDY: &str = "choose a smaller directory, or remove it if no process of its user has it";

const PASSWD_PATH: &str = "/etc/passwd";
/// Position of the home in a line of that file.
const HOME_FIELD: usize = 5;

/// Directories of Stockade's own in homes that one of these paths, which have no links in them, could show: in
/// the home of this user, and for root, who reaches into all of them, in every home.
pub(super) fn list_own_dirs(
    paths: &RealPaths,
    home: Option<&Path>,
    shown: &[PathBuf],
) -> Vec<OwnPath> {
    let users = match rustix::process::geteuid().is_root() {
        true => std::fs::read(PASSWD_PATH).unwrap_or_default(),
        false => Vec::new(),
    };
    // Names of people are in any encoding.
    let users = String::from_utf8_lossy(&users);
    let every = home.into_iter().chain(users.lines().filter_map(parse_home));
    // Several users of the system have the same one.
    find_own_dirs(paths, &every.collect::<BTreeSet<_>>(), shown)
}

fn find_own_dirs(paths: &RealPaths, homes: &BTreeSet<&Path>, shown: &[PathBuf]) -> Vec<OwnPath> {
    let homes: BTreeSet<_> = homes.iter().map(|home| real_by(paths, home)).collect();
    let every = homes.iter().flat_map(|home| {
        let named = OWN_DIRS_IN_HOME.iter();
        named.flat_map(move |(dir, what)| {
            list_names(paths, home, dir).map(move |own| (home, own, *what))
        })
    });
    let related =
        every.filter(|(home, own, _)| shown.iter().any(|path| is_related(path, home, own)));
    related.map(|(_, path, what)| OwnPath { path, what, remedy: REMEDY }).collect()
}

/// A directory in a home by its name, where a guest would put another in its place, and where its links lead.
fn list_names(paths: &RealPaths, home: &Path, dir: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let named = home.join(dir);
    // Most homes, of users of the system, have none: there is no link in what is not there.
    let first = Path::new(dir).iter().next().map(|first| home.join(first));
    let is_there = first.is_some_and(|first| first.symlink_metadata().is_ok());
    let led_to = is_there.then(|| real_by(paths, &named)).filter(|led_to| *led_to != named);
    std::iter::once(named).chain(led_to)
}

/// Whether a path lies in a directory of ours or holds it. In a home it holds one that is not there yet too: a
/// guest would make it. The home itself, which may be a project of a service's user, does so only with one that
/// is there.
fn is_related(path: &Path, home: &Path, own: &Path) -> bool {
    let in_home = || path != home && lies_in(path, home);
    let holds = lies_in(own, path) && (in_home() || own.symlink_metadata().is_ok());
    holds || lies_in(path, own)
}

fn parse_home(line: &str) -> Option<&Path> {
    let home = Path::new(line.split(':').nth(HOME_FIELD)?);
    (home.is_absolute() && home.parent().is_some()).then_some(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(homes: &[&Path], shown: &Path) -> Vec<PathBuf> {
        let found = find_own_dirs(
            &RealPaths::default(),
            &homes.iter().copied().collect(),
            &[shown.to_owned()],
        );
        found.into_iter().map(|own| own.path).collect()
    }

    #[test]
    fn homes_are_read_from_the_list_of_users() {
        assert_eq!(parse_home("a:x:1:1:A:/home/a:/bin/sh"), Some(Path::new("/home/a")));
        for line in ["", "a:x:1:1", "a:x:1:1:::", "a:x:1:1::home:", "bin:x:2:2::/:/bin/sh"] {
            assert_eq!(parse_home(line), None, "{line:?}");
        }
    }

    #[test]
    fn what_another_user_keeps_or_would_keep_is_found() {
        let base = tempfile::tempdir().unwrap();
        let (home, other) = (base.path().join("a"), base.path().join("b"));
        std::fs::create_dir_all(home.join(".config/stockade")).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        let homes = [home.as_path(), other.as_path()];
        let configuration = vec![home.join(".config/stockade")];
        for shown in ["", "a", "a/.config", "a/.config/stockade", "a/.config/stockade/x"] {
            assert_eq!(find(&homes, &base.path().join(shown)), configuration, "{shown}");
        }
        let state = vec![other.join(".local/state/stockade")];
        for shown in ["b/.local", "b/.local/state", "b/.local/state/stockade/run"] {
            assert_eq!(find(&homes, &base.path().join(shown)), state, "{shown}");
        }
        for shown in ["b", "a/project", "b/.local/share", "c"] {
            assert_eq!(find(&homes, &base.path().join(shown)), Vec::<PathBuf>::new(), "{shown}");
        }
    }

    #[test]
    fn what_lies_behind_links_of_a_home_is_found_and_so_is_what_holds_them() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        for dir in ["disk/user/.config", "disk/dotfiles/stockade", "elsewhere/stockade"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        for (target, link) in [
            ("disk/user", "home"),
            ("../../dotfiles/stockade", "disk/user/.config/stockade"),
            ("../../elsewhere", "disk/user/.cache"),
        ] {
            std::os::unix::fs::symlink(target, base.join(link)).unwrap();
        }
        let home = base.join("home");
        for (shown, own) in [
            ("disk/user/.config", "disk/user/.config/stockade"),
            ("disk/user/.local", "disk/user/.local/state/stockade"),
            ("disk/dotfiles", "disk/dotfiles/stockade"),
            ("elsewhere", "elsewhere/stockade"),
            ("elsewhere/stockade", "elsewhere/stockade"),
        ] {
            assert_eq!(find(&[&home], &base.join(shown)), [base.join(own)], "{shown}");
        }
        assert_eq!(find(&[&home], &base.join("disk/user/project")), Vec::<PathBuf>::new());
    }
}
