//! Invented addresses belong to one life of a sandbox: in a copy, or in one that begins with its files, those of before
//! lead nowhere, and never to another name.

/// A name that rules allow beside the known one. It leads nowhere.
const OTHER_NAME: &str = "other.test";

mod needs_python {
    use super::*;
    use crate::common::lasting::Lasting;
    use crate::network::{Internet, KNOWN_NAME};

    /// A place where both names are allowed, and the rules for it.
    struct TwoNames {
        place: Lasting,
        internet: Internet,
        rules: String,
    }

    impl TwoNames {
        fn new() -> Self {
            let (place, internet) = (Lasting::new(), Internet::start());
            internet.configure(&place);
            let port = internet.port;
            let rules = format!("{KNOWN_NAME}:{port},{OTHER_NAME}:{port},127.0.0.1:{port}");
            Self { place, internet, rules }
        }

        fn create(&self, flags: &[&str]) -> String {
            self.place.create(&[&["--no-workspace", "--net", &self.rules], flags].concat())
        }

        fn python(&self, id: &str, program: &str) -> String {
            let done = self.place.stockade(&["exec", id, "--", "/usr/bin/python3", "-c", program]);
            assert_eq!(done.code, 0, "{done:?}");
            done.stdout.trim_end().to_owned()
        }

        fn look_up(&self, id: &str, name: &str) -> String {
            self.python(id, &format!("import socket; print(socket.gethostbyname('{name}'))"))
        }

        /// What comes of a request for the known name at this address: the page, or nothing.
        fn fetch_at(&self, id: &str, address: &str) -> String {
            let port = self.internet.port;
            let program = format!(
                "import socket\n\
                 try:\n\
                 \x20   stream = socket.create_connection(('{address}', {port}), timeout=30)\n\
                 \x20   stream.sendall(b'GET / HTTP/1.1\\r\\nHost: {KNOWN_NAME}:{port}\\r\\n\\r\\n')\n\
                 \x20   print(stream.recv(4096).decode().splitlines()[-1])\n\
                 except ConnectionError as error: print(type(error).__name__)"
            );
            self.python(id, &program)
        }

        /// Fails unless an address of an earlier life leads nowhere, and a life of its own goes on.
        fn assert_anew(&self, id: &str, old: &str) {
            // The first name of this life would have it, were addresses given from the same one on.
            let other = self.look_up(id, OTHER_NAME);
            assert!(other.starts_with("127.") && other != old, "{other} {old}");
            let visits = self.internet.visits();
            assert_eq!(self.fetch_at(id, old), "ConnectionRefusedError");
            assert_eq!(self.internet.visits(), visits);
            let own = self.look_up(id, KNOWN_NAME);
            assert_ne!(own, old);
            assert_eq!(self.fetch_at(id, &own), "hello");
        }
    }

    #[test]
    fn addresses_of_a_sandbox_are_dead_in_its_copies() {
        let two = TwoNames::new();
        let id = two.create(&[]);
        let old = two.look_up(&id, KNOWN_NAME);
        assert_eq!(two.fetch_at(&id, &old), "hello");
        let copied = two.place.stockade(&["fork", &id]);
        copied.code_is(0);
        two.assert_anew(copied.stdout.trim_end(), &old);
        let taken = two.place.stockade(&["snapshot", "take", &id]);
        taken.code_is(0);
        let begun = two.create(&["--from", taken.stdout.trim_end()]);
        two.assert_anew(&begun, &old);
        // The one that was copied goes on.
        assert_eq!(two.fetch_at(&id, &old), "hello");
    }

    #[test]
    fn an_address_never_leads_to_another_name_after_files_were_brought_back() {
        let two = TwoNames::new();
        let id = two.create(&[]);
        let taken = two.place.stockade(&["snapshot", "take", &id]);
        taken.code_is(0);
        let known = two.look_up(&id, KNOWN_NAME);
        two.place.stockade(&["snapshot", "restore", &id, taken.stdout.trim_end()]).code_is(0);
        // Programs go on, and so does the life of their addresses.
        assert_eq!(two.fetch_at(&id, &known), "hello");
        let other = two.look_up(&id, OTHER_NAME);
        assert_ne!(other, known);
        assert_eq!(two.look_up(&id, KNOWN_NAME), known);
        assert_eq!(two.fetch_at(&id, &known), "hello");
    }

    #[test]
    fn an_address_of_one_sandbox_is_dead_in_another() {
        let two = TwoNames::new();
        let (one, other) = (two.create(&[]), two.create(&[]));
        let old = two.look_up(&one, KNOWN_NAME);
        two.assert_anew(&other, &old);
        two.place.stockade(&["kill", &one]).code_is(0);
        two.assert_anew(&two.create(&[]), &old);
    }
}
