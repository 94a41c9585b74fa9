//! Programs with a client in them: Java's own, which asks no variable for proxies, and a WebSocket over bare sockets.

use super::site::{CERTIFICATE, Site, places};
use crate::common::CliPlace;
use crate::network::KNOWN_NAME;

mod needs_python {
    use super::*;

    #[test]
    fn a_websocket_carries_a_message_by_name_and_through_a_tunnel() {
        for place in places() {
            let mut site = Site::http(place);
            site.place.write("websocket.py", include_str!("websocket.py"));
            for way in ["name", "proxy"] {
                let port = site.port;
                let line = format!("-- /usr/bin/python3 websocket.py {way} {KNOWN_NAME} {port}");
                site.visit(&line).is(0, "through the socket\n", "");
            }
        }
    }
}

mod needs_tls_java {
    use super::*;

    #[test]
    fn java_fetches_over_https() {
        let mut site = Site::https(CliPlace::of_an_ordinary_user());
        site.write("hello.txt", "hello\n");
        let url = site.url("hello.txt");
        site.place.write("Fetch.java", include_str!("Fetch.java"));
        let done = site.visit(&format!("-- java Fetch.java {CERTIFICATE} {url}"));
        assert_eq!(done.stdout, "hello\n", "{done:?}");
    }
}
