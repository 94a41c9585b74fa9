//! What kind of thing a file is, by its first bytes and then by its name: a small table, no guessing.

/// A media type, and whether it is meant to be read or looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub mime: &'static str,
    pub picture: bool,
}

const fn data(mime: &'static str) -> Kind {
    Kind { mime, picture: false }
}

const fn picture(mime: &'static str) -> Kind {
    Kind { mime, picture: true }
}

/// Magic numbers: first bytes that leave no doubt.
const MAGIC_NUMBERS: &[(&[u8], Kind)] = &[
    (b"\x89PNG\r\n\x1a\n", picture("image/png")),
    (b"\xff\xd8\xff", picture("image/jpeg")),
    (b"GIF87a", picture("image/gif")),
    (b"GIF89a", picture("image/gif")),
    (b"%PDF-", data("application/pdf")),
    (b"PK\x03\x04", data("application/zip")),
    (b"\x1f\x8b", data("application/gzip")),
    (b"\x28\xb5\x2f\xfd", data("application/zstd")),
    (b"\xfd7zXZ\0", data("application/x-xz")),
    (b"\x7fELF", data("application/x-executable")),
    (b"SQLite format 3\0", data("application/vnd.sqlite3")),
    (b"\0asm", data("application/wasm")),
];

const EXTENSION_TYPES: &[(&str, &str)] = &[
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("html", "text/html"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("md", "text/markdown"),
    ("svg", "image/svg+xml"),
    ("toml", "application/toml"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
];

/// What a file is, from its name and its first bytes.
pub(crate) fn kind(name: &str, start: &[u8]) -> Kind {
    if start.len() > 12 && start.starts_with(b"RIFF") && &start[8..12] == b"WEBP" {
        return picture("image/webp");
    }
    if let Some((_, kind)) = MAGIC_NUMBERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return *kind;
    }
    if super::is_binary(start) {
        return data("application/octet-stream");
    }
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    let known = EXTENSION_TYPES.iter().find(|(known, _)| end.as_deref() == Some(*known));
    data(known.map_or("text/plain", |(_, mime)| mime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_believed_before_names() {
        assert_eq!(kind("a.txt", b"\x89PNG\r\n\x1a\n").mime, "image/png");
        assert_eq!(kind("a.png", b"hello").mime, "text/plain");
        assert_eq!(kind("a.JSON", b"{}").mime, "application/json");
        assert_eq!(kind("a", b"\0").mime, "application/octet-stream");
    }
}
