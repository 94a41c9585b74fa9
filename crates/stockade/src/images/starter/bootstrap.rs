//! Which program of the host makes a root, and how it is asked. Starts nothing.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result};

use super::{STARTER_OPERATION, StarterKind};

const MMDEBSTRAP: &str = "mmdebstrap";
const DEBOOTSTRAP: &str = "debootstrap";
/// Gives an ordinary user a range of owners.
const NEWUIDMAP: &str = "newuidmap";
const APT_DIR: &str = "/etc/apt";
const MAX_SOURCE_FILE_BYTES: u64 = 1 << 20;
/// Where programs for administrators are, also where PATH does not say so.
const SYSTEM_PROGRAM_DIRS: [&str; 2] = ["/usr/sbin", "/sbin"];
/// Namespaces in which nothing outlives the first process: no mount, no process.
const UNSHARE_WORDS: [&str; 7] =
    ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];

/// Options of `mmdebstrap`: no manuals and translations, and nothing of this host: neither its name and its resolvers nor
/// its sources, which may name passwords.
const MMDEBSTRAP_OPTIONS: [&str; 7] = [
    "--variant=minbase",
    "--format=tar",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--customize-hook=cd \"$1\"/etc && rm -f apt/sources.list apt/sources.list.d/* hostname resolv.conf",
];

/// Runs the words after root and time, then packs the root without what belongs to this host or this run.
const DEBOOTSTRAP_SCRIPT: &str = r#"root=$1; epoch=$2; shift 2
"$@" >&2
exec tar --sort=name --numeric-owner --format=posix \
    --pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f \
    --mtime="@$epoch" --clamp-mtime --one-file-system \
    --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' --exclude='./run/*' \
    --exclude='./tmp/*' --exclude='./debootstrap' --exclude='./etc/hostname' \
    --exclude='./etc/resolv.conf' --exclude='./etc/machine-id' --exclude='./etc/apt/sources.list' \
    --exclude='./var/cache/apt/*.bin' --exclude='./var/cache/apt/archives/*.deb' \
    --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*' --exclude='./usr/share/man/*' \
    --exclude='./usr/share/locale/*' -C "$root" -cf - ."#;

/// What the host has to make roots with.
#[derive(Debug)]
pub(super) struct BootstrapHost {
    /// Where programs are looked for.
    pub program_dirs: Vec<PathBuf>,
    /// Where the sources of packages are named.
    pub apt_dir: PathBuf,
    /// Whether the caller is root.
    pub is_root: bool,
}

/// A program that writes a root to its standard output, as an archive.
#[derive(Debug)]
pub(super) struct BootstrapCommand {
    /// Its name in messages.
    pub program: &'static str,
    /// The whole command.
    pub words: Vec<OsString>,
    /// Variables beyond the caller's.
    pub variables: Vec<(&'static str, OsString)>,
    /// The signal that ends it early: `KILL` where namespaces take all the rest with them, `TERM` where it has to
    /// remove its files itself.
    pub end_signal: &'static str,
}

impl BootstrapHost {
    /// This host, for this process.
    pub fn of_this_process() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let named = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
        Self {
            program_dirs: named.chain(SYSTEM_PROGRAM_DIRS.map(PathBuf::from)).collect(),
            apt_dir: APT_DIR.into(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// How a root is made in a private directory, with no file in it that is newer than `epoch`.
    pub fn plan(&self, kind: StarterKind, draft: &Path, epoch: u64) -> Result<BootstrapCommand> {
        let mut command = match (self.has(MMDEBSTRAP), self.has(DEBOOTSTRAP), self.is_root) {
            (true, _, true) => self.plan_mmdebstrap(kind, "root")?,
            (true, _, false) if self.has(NEWUIDMAP) => self.plan_mmdebstrap(kind, "unshare")?,
            (false, true, true) => self.plan_debootstrap(kind, draft, epoch)?,
            (has_mmdebstrap, has_debootstrap, _) => {
                return Err(refuse(has_mmdebstrap, has_debootstrap));
            }
        };
        if self.is_root {
            drop(command.words.splice(0..0, UNSHARE_WORDS.map(OsString::from)));
            // An ordinary user's program changes to owners who may not enter the draft.
            command.variables.push(("TMPDIR", draft.into()));
        }
        let path = std::env::join_paths(&self.program_dirs).unwrap_or_default();
        command.variables.push(("PATH", path));
        command.variables.push(("SOURCE_DATE_EPOCH", epoch.to_string().into()));
        Ok(command)
    }

    fn has(&self, program: &str) -> bool {
        self.program_dirs.iter().any(|dir| dir.join(program).is_file())
    }

    fn plan_mmdebstrap(&self, kind: StarterKind, mode: &str) -> Result<BootstrapCommand> {
        let mut words: Vec<OsString> = vec![MMDEBSTRAP.into(), format!("--mode={mode}").into()];
        words.extend(MMDEBSTRAP_OPTIONS.map(OsString::from));
        words.push(include_option(kind).into());
        // No suite: the sources name theirs. The target is standard output.
        words.extend([OsString::new(), "-".into()]);
        words.extend(self.list_sources()?.into_iter().map(|(path, _)| path.into_os_string()));
        let end_signal = if self.is_root { "KILL" } else { "TERM" };
        Ok(BootstrapCommand { program: MMDEBSTRAP, words, variables: Vec::new(), end_signal })
    }

    fn plan_debootstrap(
        &self,
        kind: StarterKind,
        draft: &Path,
        epoch: u64,
    ) -> Result<BootstrapCommand> {
        let sources = self.list_sources()?;
        let first = sources.iter().find_map(|(_, text)| parse_source(text));
        let (mirror, suite) = first.ok_or_else(|| refuse_sources(&self.apt_dir))?;
        let root = draft.join("root").into_os_string();
        let mut words: Vec<OsString> =
            ["sh", "-e", "-c", DEBOOTSTRAP_SCRIPT, "sh"].map(OsString::from).to_vec();
        words.extend([root.clone(), epoch.to_string().into(), DEBOOTSTRAP.into()]);
        words.extend(["--variant=minbase".into(), OsString::from(include_option(kind))]);
        words.extend([suite.into(), root, mirror.into()]);
        let variables = Vec::new();
        Ok(BootstrapCommand { program: DEBOOTSTRAP, words, variables, end_signal: "KILL" })
    }

    /// The files that name sources of packages, with their texts.
    fn list_sources(&self) -> Result<Vec<(PathBuf, String)>> {
        let mut files = vec![self.apt_dir.join("sources.list")];
        if let Ok(entries) = fs::read_dir(self.apt_dir.join("sources.list.d")) {
            files
                .extend(entries.flatten().map(|entry| entry.path()).filter(|path| is_source(path)));
        }
        files.sort();
        let read = |path: PathBuf| {
            let size = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
            let text =
                (size <= MAX_SOURCE_FILE_BYTES).then(|| fs::read_to_string(&path).ok())??;
            parse_source(&text).is_some().then_some((path, text))
        };
        let sources: Vec<_> = files.into_iter().filter_map(read).collect();
        if sources.is_empty() { Err(refuse_sources(&self.apt_dir)) } else { Ok(sources) }
    }
}

fn include_option(kind: StarterKind) -> String {
    format!("--include={}", kind.packages().join(","))
}

/// Whether apt reads a file of its directory of sources.
fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "list" || extension == "sources")
}

/// The address and the suite that a file of sources names first, in either of its two forms.
fn parse_source(text: &str) -> Option<(String, String)> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let field = |name: &str| {
        let mut values = lines().filter_map(|line| line.split_once(':'));
        let (_, value) = values.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        value.split_whitespace().next().map(str::to_owned)
    };
    let line = lines().find_map(|line| {
        let rest = line.strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        let mut words = rest.split_whitespace().map(str::to_owned);
        Some((words.next()?, words.next()?))
    });
    line.or_else(|| Some((field("URIs")?, field("Suites")?)))
}

fn refuse_sources(apt_dir: &Path) -> Error {
    let message = format!("no sources of packages are in {}", apt_dir.display());
    Error::new(ErrorCode::Unavailable, STARTER_OPERATION, message)
        .remedy("use a host with apt sources, or pull an image of a registry")
}

/// Why none of the programs can be used by this user.
fn refuse(has_mmdebstrap: bool, has_debootstrap: bool) -> Error {
    let (message, remedy) = match (has_mmdebstrap, has_debootstrap) {
        (true, _) => (
            "mmdebstrap needs newuidmap for an ordinary user",
            "install uidmap, with a range for the user in /etc/subuid and /etc/subgid, or run this as root",
        ),
        (false, true) => {
            ("debootstrap needs root", "run this as root, or install mmdebstrap and uidmap")
        }
        (false, false) => (
            "neither mmdebstrap nor debootstrap is installed",
            "install mmdebstrap (for an ordinary user uidmap too), or pull an image of a registry",
        ),
    };
    Error::new(ErrorCode::Unavailable, STARTER_OPERATION, message).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with these programs and one file of sources.
    fn host_with(dir: &Path, programs: &[&str], is_root: bool) -> BootstrapHost {
        let (bin, apt) = (dir.join("bin"), dir.join("apt"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(apt.join("sources.list.d")).unwrap();
        let text = "# deb http://no.example.org no main\nTypes: deb\nURIs: http://deb.example.org/debian\n\
                    Suites: stable stable-updates\nComponents: main\n";
        fs::write(apt.join("sources.list.d/debian.sources"), text).unwrap();
        fs::write(apt.join("sources.list.d/off.disabled"), text).unwrap();
        for program in programs {
            fs::write(bin.join(program), "").unwrap();
        }
        BootstrapHost { program_dirs: vec![bin], apt_dir: apt, is_root }
    }

    fn plan(host: &BootstrapHost) -> Result<BootstrapCommand> {
        host.plan(StarterKind::Python, Path::new("/draft"), 86_400)
    }

    fn text_of(words: &[OsString]) -> Vec<&str> {
        words.iter().map(|word| word.to_str().unwrap()).collect()
    }

    #[test]
    fn root_makes_it_in_namespaces_and_an_ordinary_user_by_the_programs_own() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("apt/sources.list.d/debian.sources");
        let host = host_with(dir.path(), &["mmdebstrap", "debootstrap", "newuidmap"], true);
        let root = plan(&host).unwrap();
        let words = text_of(&root.words);
        assert_eq!((words[0], words[7], words[8]), ("unshare", "mmdebstrap", "--mode=root"));
        assert_eq!(words[words.len() - 3..], ["", "-", source.to_str().unwrap()]);
        assert_eq!(root.end_signal, "KILL");
        let user = plan(&BootstrapHost { is_root: false, ..host }).unwrap();
        assert_eq!(text_of(&user.words)[..2], ["mmdebstrap", "--mode=unshare"]);
        assert_eq!(user.end_signal, "TERM");
        assert!(user.variables.iter().all(|(name, _)| *name != "TMPDIR"));
    }

    #[test]
    fn debootstrap_gets_the_first_mirror_and_its_suite() {
        let dir = tempfile::tempdir().unwrap();
        let made = plan(&host_with(dir.path(), &["debootstrap"], true)).unwrap();
        let words = text_of(&made.words);
        let last = ["stable", "/draft/root", "http://deb.example.org/debian"];
        assert_eq!(words[words.len() - 3..], last);
        assert!(words.contains(&"--include=python3,python3-pip,python3-venv,ca-certificates"));
    }

    #[test]
    fn what_is_missing_is_named_with_the_remedy() {
        for (programs, is_root, reason, remedy) in [
            (&["mmdebstrap"][..], false, "needs newuidmap", "/etc/subuid"),
            (&["debootstrap"][..], false, "needs root", "mmdebstrap and uidmap"),
            (&[][..], true, "neither mmdebstrap nor debootstrap", "install mmdebstrap"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let error = plan(&host_with(dir.path(), programs, is_root)).unwrap_err();
            assert!(error.message().contains(reason), "{error}");
            assert!(error.hint().unwrap().contains(remedy), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let host = host_with(dir.path(), &["mmdebstrap"], true);
        fs::remove_dir_all(&host.apt_dir).unwrap();
        assert!(plan(&host).unwrap_err().message().contains("no sources of packages"));
    }

    #[test]
    fn sources_are_read_in_both_forms() {
        for (text, expected) in [
            ("deb http://a.org/d bookworm main\n", Some(("http://a.org/d", "bookworm"))),
            ("deb [arch=amd64 trusted=yes] file:/d ./\n", Some(("file:/d", "./"))),
            ("deb-src http://a.org/d bookworm main\n# deb http://b.org c\n", None),
            ("URIs: http://a.org/d http://b.org\nSuites: sid\n", Some(("http://a.org/d", "sid"))),
            ("URIs: http://a.org/d\n", None),
        ] {
            let expected = expected.map(|(uri, suite)| (uri.to_owned(), suite.to_owned()));
            assert_eq!(parse_source(text), expected, "{text}");
        }
    }
}
