//! Package managers and git, each against an index of one package that the test serves over HTTPS.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::site::{CERTIFICATE, Site, places};
use crate::common::{CliPlace, finish};

/// A file that the client has made in its workspace.
#[track_caller]
pub fn read_made(site: &Site, path: &str) -> String {
    let path = site.place.workspace().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Without an identity git looks up the name of the machine, to make one of it.
pub const GIT_IDENTITY: &str = "-c user.name=a -c user.email=a@example.org";
/// A crate that depends on that of the index.
pub const MANIFEST: &str = "[package]\nname = \"user\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n\
    [dependencies]\ntiny = { version = \"1\", registry = \"tests\" }\n";

fn git(dir: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.args(GIT_IDENTITY.split(' ')).arg("-C").arg(dir);
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    finish(command).code_is(0);
}

/// A repository of one commit, with the lists that a server of plain files has to have.
pub fn serve_repository(site: &Site) {
    let directory = site.directory();
    let tree = directory.join("tree");
    fs::create_dir(&tree).unwrap();
    git(&tree, &["init", "--quiet"]);
    site.write("tree/hello.txt", "hello\n");
    git(&tree, &["add", "."]);
    git(&tree, &["commit", "--quiet", "-m", "first"]);
    git(&directory, &["clone", "--quiet", "--bare", "tree", "tiny.git"]);
    git(&directory.join("tiny.git"), &["update-server-info"]);
}

mod needs_tls_git {
    use super::*;

    #[test]
    fn git_clones_over_https() {
        for place in places() {
            let mut site = Site::https(place);
            serve_repository(&site);
            let settings = format!("-c http.sslCAInfo={CERTIFICATE} {GIT_IDENTITY}");
            let url = site.url("tiny.git");
            site.visit(&format!("-- git {settings} clone --quiet {url} cloned"));
            assert_eq!(read_made(&site, "cloned/hello.txt"), "hello\n");
        }
    }
}

mod needs_tls_pip {
    use super::*;

    #[test]
    fn pip_installs_a_wheel() {
        for place in places() {
            let mut site = Site::https(place);
            site.lay_out_index("python");
            let index = site.url("simple");
            site.visit(&format!(
                "-- pip install --quiet --disable-pip-version-check --retries 0 --cert {CERTIFICATE} \
                 --target installed --index-url {index} tiny"
            ));
            assert_eq!(read_made(&site, "installed/tiny.py"), "print('tiny of python')\n");
        }
    }
}

mod needs_tls_node {
    use super::*;

    #[test]
    fn npm_installs_a_package() {
        let mut site = Site::https(CliPlace::new()).with_toolchains();
        site.lay_out_index("node");
        let registry = site.url("");
        site.visit(&format!(
            "-- npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 \
             --cafile {CERTIFICATE} --registry {registry} tiny"
        ));
        let module = read_made(&site, "node_modules/tiny/tiny.js");
        assert_eq!(module, "console.log('tiny of node')\n");
    }
}

mod needs_tls {
    use super::*;

    #[test]
    fn cargo_fetches_a_crate() {
        let mut site = Site::https(CliPlace::new()).with_toolchains();
        site.lay_out_index("rust");
        site.place.write("Cargo.toml", MANIFEST);
        fs::create_dir(site.place.workspace().join("src")).unwrap();
        site.place.write("src/lib.rs", "");
        let index = site.url("");
        let done = site.visit(&format!(
            "--env CARGO_NET_RETRY=0 --env CARGO_HTTP_CAINFO={CERTIFICATE} \
             --env CARGO_REGISTRIES_TESTS_INDEX=sparse+{index} -- cargo fetch"
        ));
        assert!(done.stderr.contains("Downloaded tiny v1.0.0"), "{done:?}");
        let locked = read_made(&site, "Cargo.lock");
        assert!(locked.contains(&format!("source = \"sparse+{index}\"")), "{locked}");
    }
}

mod needs_tls_go {
    use super::*;

    #[test]
    fn go_downloads_a_module() {
        // By the proxy that the environment names, and by name.
        for way in ["", "--env HTTPS_PROXY= --env https_proxy="] {
            let mut site = Site::https(CliPlace::new()).with_toolchains();
            site.lay_out_index("go");
            let proxy = site.url("");
            // Writable modules, so that the test can remove them.
            site.visit(&format!(
                "{way} --env GOPROXY={proxy} --env GOSUMDB=off --env GOTOOLCHAIN=local \
                 --env SSL_CERT_FILE={CERTIFICATE} --env GOMODCACHE=/workspace/modules \
                 --env GOFLAGS=-modcacherw -- go mod download example.test/tiny@v1.0.0"
            ));
            let module = read_made(&site, "modules/example.test/tiny@v1.0.0/tiny.go");
            assert_eq!(module, "// Package tiny, of go.\npackage tiny\n");
        }
    }
}
