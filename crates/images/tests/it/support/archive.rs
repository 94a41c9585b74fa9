//! Archives, block by block: also those that no library would write.

/// Builds an archive.
#[derive(Default, Clone)]
pub struct ArchiveBuilder(Vec<u8>);

/// One header with its contents.
pub struct RawEntry<'a> {
    pub kind: u8,
    pub name: &'a [u8],
    pub link: &'a [u8],
    pub mode: u32,
    pub mtime: u64,
    /// As the header says; the contents are what they are.
    pub size: u64,
    pub contents: &'a [u8],
}

impl Default for RawEntry<'_> {
    fn default() -> Self {
        Self {
            kind: b'0',
            name: b"",
            link: b"",
            mode: 0o644,
            mtime: 1_700_000_000,
            size: 0,
            contents: b"",
        }
    }
}

impl ArchiveBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn raw(mut self, entry: RawEntry<'_>) -> Self {
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, entry.name);
        put(100, format!("{:07o}", entry.mode).as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", entry.size).as_bytes());
        put(136, format!("{:011o}", entry.mtime).as_bytes());
        put(148, b"        ");
        put(156, &[entry.kind]);
        put(157, entry.link);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(block);
        self.0.extend(entry.contents);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn sized(self, kind: u8, name: &[u8], contents: &[u8], mode: u32) -> Self {
        let size = contents.len() as u64;
        self.raw(RawEntry { kind, name, contents, size, mode, ..RawEntry::default() })
    }

    pub fn file(self, name: &str, contents: &str) -> Self {
        self.sized(b'0', name.as_bytes(), contents.as_bytes(), 0o644)
    }

    pub fn file_with_mode(self, name: &str, mode: u32) -> Self {
        self.sized(b'0', name.as_bytes(), b"x", mode)
    }

    pub fn dir(self, name: &str, mode: u32) -> Self {
        self.sized(b'5', name.as_bytes(), b"", mode)
    }

    pub fn symlink(self, name: &str, target: &str) -> Self {
        let (name, link) = (name.as_bytes(), target.as_bytes());
        self.raw(RawEntry { kind: b'2', name, link, mode: 0o777, ..RawEntry::default() })
    }

    pub fn hard_link(self, name: &str, target: &str) -> Self {
        let (name, link) = (name.as_bytes(), target.as_bytes());
        self.raw(RawEntry { kind: b'1', name, link, ..RawEntry::default() })
    }

    pub fn device(self, kind: u8, name: &str) -> Self {
        self.raw(RawEntry { kind, name: name.as_bytes(), ..RawEntry::default() })
    }

    /// An extended header for the next entry.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let contents: Vec<u8> =
            records.iter().flat_map(|(key, value)| pax_record(key, value)).collect();
        self.sized(b'x', b"pax", &contents, 0o644)
    }

    pub fn extension(self, kind: u8, contents: &[u8]) -> Self {
        self.sized(kind, b"././@LongLink", contents, 0o644)
    }

    pub fn whiteout(self, name: &str) -> Self {
        self.file(name, "")
    }

    /// The archive with its end.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }

    /// The archive as it is.
    pub fn unfinished(self) -> Vec<u8> {
        self.0
    }
}

fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let bare = key.len() + value.len() + 3;
    let mut length = bare + 1;
    while bare + length.to_string().len() != length {
        length += 1;
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend(value);
    record.push(b'\n');
    record
}
