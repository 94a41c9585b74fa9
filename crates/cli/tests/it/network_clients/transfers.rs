//! `curl` and `wget`: HTTP and HTTPS, by the proxies that the environment names and by the host's name.

use super::site::{CERTIFICATE, Site, places};
use crate::common::CliPlace;

/// What each test fetches.
const PAGE: &str = "hello.txt";

fn serve_page(site: &Site) -> String {
    site.write(PAGE, "hello\n");
    site.url(PAGE)
}

mod needs_tls_curl {
    use super::*;

    /// By the HTTP proxy that the environment names, by name, and by the SOCKS proxy.
    const CURL_WAYS: [&str; 3] = ["", "--noproxy *", "--proxy socks5h://127.63.0.53:1080"];

    #[test]
    fn curl_fetches_over_http() {
        for place in places() {
            let mut site = Site::http(place);
            let url = serve_page(&site);
            for way in CURL_WAYS {
                site.visit(&format!("-- curl -fsS {way} {url}")).is(0, "hello\n", "");
            }
        }
    }

    #[test]
    fn curl_fetches_over_https() {
        for place in places() {
            let mut site = Site::https(place);
            let url = serve_page(&site);
            for way in CURL_WAYS {
                let line = format!("-- curl -fsS {way} --cacert {CERTIFICATE} {url}");
                site.visit(&line).is(0, "hello\n", "");
            }
        }
    }

    #[test]
    fn curl_fetches_a_hundred_pages_at_once() {
        for start in [Site::http, Site::https] {
            let mut site = start(CliPlace::new());
            let pages = vec![serve_page(&site); 100].join(" ");
            for way in CURL_WAYS {
                let options = "--parallel --parallel-immediate --parallel-max 100";
                let options = format!("-fsS {options} {way} --cacert {CERTIFICATE}");
                let done = site.visit(&format!("-- curl {options} {pages}"));
                assert_eq!(done.stdout, "hello\n".repeat(100), "{done:?}");
            }
        }
    }

    #[test]
    fn wget_fetches_over_http_and_https() {
        let options = format!("-q --tries=1 --ca-certificate={CERTIFICATE} -O -");
        for start in [Site::http, Site::https] {
            for place in places() {
                let mut site = start(place);
                let url = serve_page(&site);
                for way in ["", "--no-proxy"] {
                    let done = site.visit(&format!("-- wget {way} {options} {url}"));
                    done.is(0, "hello\n", "");
                }
            }
        }
    }
}

mod needs_tls_curl_node {
    use super::*;
    use crate::network::KNOWN_NAME;

    #[test]
    fn curl_fetches_over_http2() {
        let mut site = Site::http2(CliPlace::new());
        let url = site.url("");
        for way in ["", "--noproxy *"] {
            let done = site.visit(&format!("-- curl -fsS {way} --cacert {CERTIFICATE} {url}"));
            done.is(0, &format!("{KNOWN_NAME}:{} over HTTP/2\n", site.port), "");
        }
    }
}
