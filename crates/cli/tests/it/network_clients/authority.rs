//! Clients that are told of no certificate, at a host with a secret: they find the sandbox's own authority by the variables
//! and files that it gives them, or the site, which wants the secret, lets them in for nothing.

use std::fs;

use super::packages::{GIT_IDENTITY, MANIFEST, read_made, serve_repository};
use super::site::{Site, places};
use crate::common::CliPlace;

mod needs_python_curl {
    use super::*;

    #[test]
    fn curl_trusts_the_authority() {
        for place in places() {
            let mut site = Site::locked(place);
            site.write("hello.txt", "hello\n");
            let url = site.url("hello.txt");
            for way in ["", "--noproxy '*'", "--proxy socks5h://127.63.0.53:1080"] {
                let line = format!("curl -fsS {way} -H \"Authorization: Bearer $KEY\" {url}");
                site.visit_with_key(&line).is(0, "hello\n", "");
            }
            // In the form that a client makes of a user and a password.
            site.visit_with_key(&format!("curl -fsS -u \"me:$KEY\" {url}")).is(0, "hello\n", "");
        }
    }

    #[test]
    fn wget_trusts_the_authority_where_it_is_named() {
        let mut site = Site::locked(CliPlace::new());
        site.write("hello.txt", "hello\n");
        let url = site.url("hello.txt");
        for way in ["", "--no-proxy"] {
            let line = format!(
                "wget {way} -q --tries=1 --ca-certificate $SSL_CERT_FILE --header \"Authorization: Bearer $KEY\" -O - {url}"
            );
            site.visit_with_key(&line).is(0, "hello\n", "");
        }
    }
}

mod needs_python_git {
    use super::*;

    #[test]
    fn git_trusts_the_authority() {
        for place in places() {
            let mut site = Site::locked(place);
            serve_repository(&site);
            let url = site.url("tiny.git");
            let header = "-c http.extraHeader=\"Authorization: Bearer $KEY\"";
            site.visit_with_key(&format!("git {GIT_IDENTITY} {header} clone --quiet {url} cloned"));
            assert_eq!(read_made(&site, "cloned/hello.txt"), "hello\n");
        }
    }
}

mod needs_pip {
    use super::*;

    #[test]
    fn pip_trusts_the_authority() {
        for place in places() {
            let mut site = Site::locked(place);
            site.lay_out_index("python");
            let index = site.url("simple").replace("https://", "https://me:$KEY@");
            site.visit_with_key(&format!(
                "pip install --quiet --disable-pip-version-check --retries 0 \
                 --target installed --index-url {index} tiny"
            ));
            assert_eq!(read_made(&site, "installed/tiny.py"), "print('tiny of python')\n");
        }
    }
}

mod needs_python_node {
    use super::*;

    #[test]
    fn node_and_npm_trust_the_authority() {
        let mut site = Site::locked(CliPlace::new()).with_toolchains();
        site.lay_out_index("node");
        site.write("hello.txt", "hello\n");
        let url = site.url("hello.txt");
        site.place.write(
            "fetch.js",
            &format!(
                "const headers = {{ Authorization: `Bearer ${{process.env.KEY}}` }};\n\
                 require('node:https').get('{url}', {{ headers }}, (it) => it.pipe(process.stdout));\n"
            ),
        );
        site.visit_with_key("node fetch.js").is(0, "hello\n", "");
        let registry = site.url("");
        let about = registry.trim_start_matches("https:");
        site.place.write(".npmrc", &format!("{about}:_authToken=${{KEY}}\n"));
        site.visit_with_key(&format!(
            "npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 \
             --registry {registry} tiny"
        ));
        let module = read_made(&site, "node_modules/tiny/tiny.js");
        assert_eq!(module, "console.log('tiny of node')\n");
    }
}

mod needs_python_go {
    use super::*;

    #[test]
    fn go_trusts_the_authority() {
        for way in ["", "HTTPS_PROXY= https_proxy="] {
            let mut site = Site::locked(CliPlace::new()).with_toolchains();
            site.lay_out_index("go");
            let proxy = site.url("").replace("https://", "https://me:$KEY@");
            // Writable modules, so that the test can remove them.
            site.visit_with_key(&format!(
                "{way} GOPROXY={proxy} GOSUMDB=off GOTOOLCHAIN=local GOMODCACHE=/workspace/modules \
                 GOFLAGS=-modcacherw go mod download example.test/tiny@v1.0.0"
            ));
            let module = read_made(&site, "modules/example.test/tiny@v1.0.0/tiny.go");
            assert_eq!(module, "// Package tiny, of go.\npackage tiny\n");
        }
    }
}

mod needs_python {
    use super::*;

    #[test]
    fn cargo_trusts_the_authority() {
        let mut site = Site::locked(CliPlace::new()).with_toolchains();
        site.lay_out_index("rust");
        site.place.write("Cargo.toml", MANIFEST);
        fs::create_dir(site.place.workspace().join("src")).unwrap();
        site.place.write("src/lib.rs", "");
        let index = site.url("");
        let done = site.visit_with_key(&format!(
            "CARGO_NET_RETRY=0 CARGO_REGISTRIES_TESTS_INDEX=sparse+{index} \
             CARGO_REGISTRIES_TESTS_CREDENTIAL_PROVIDER=cargo:token \
             CARGO_REGISTRIES_TESTS_TOKEN=$KEY cargo fetch"
        ));
        assert!(done.stderr.contains("Downloaded tiny v1.0.0"), "{done:?}");
    }
}
