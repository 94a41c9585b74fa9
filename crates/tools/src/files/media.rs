//! What kind of thing a file is, by its first bytes and then by its name: a small table, no guessing.

/// A media type, and whether it is meant to be read or looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MediaKind {
    pub mime: &'static str,
    pub picture: bool,
}

const fn data_kind(mime: &'static str) -> MediaKind {
    MediaKind { mime, picture: false }
}

const fn picture_kind(mime: &'static str) -> MediaKind {
    MediaKind { mime, picture: true }
}

/// Magic numbers: first bytes that leave no doubt.
const MAGIC_NUMBERS: &[(&[u8], MediaKind)] = &[
    (b"\x89PNG\r\n\x1a\n", picture_kind("image/png")),
    (b"\xff\xd8\xff", picture_kind("image/jpeg")),
    (b"GIF87a", picture_kind("image/gif")),
    (b"GIF89a", picture_kind("image/gif")),
    (b"%PDF-", data_kind("application/pdf")),
    (b"PK\x03\x04", data_kind("application/zip")),
    (b"\x1f\x8b", data_kind("application/gzip")),
    (b"\x28\xb5\x2f\xfd", data_kind("application/zstd")),
    (b"\xfd7zXZ\0", data_kind("application/x-xz")),
    (b"\x7fELF", data_kind("application/x-executable")),
    (b"SQLite format 3\0", data_kind("application/vnd.sqlite3")),
    (b"\0asm", data_kind("application/wasm")),
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
pub(crate) fn detect_kind(name: &str, start: &[u8]) -> MediaKind {
    if start.len() > 12 && start.starts_with(b"RIFF") && &start[8..12] == b"WEBP" {
        return picture_kind("image/webp");
    }
    if let Some((_, kind)) = MAGIC_NUMBERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return *kind;
    }
    if super::is_binary(start) {
        return data_kind("application/octet-stream");
    }
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    let known = EXTENSION_TYPES.iter().find(|(known, _)| end.as_deref() == Some(*known));
    data_kind(known.map_or("text/plain", |(_, mime)| mime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_believed_before_names() {
        assert_eq!(detect_kind("a.txt", b"\x89PNG\r\n\x1a\n").mime, "image/png");
        assert_eq!(detect_kind("a.png", b"hello").mime, "text/plain");
        assert_eq!(detect_kind("a.JSON", b"{}").mime, "application/json");
        assert_eq!(detect_kind("a", b"\0").mime, "application/octet-stream");
    }
}
