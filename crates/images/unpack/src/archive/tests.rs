//! Archives against a second reader: what is taken here, the `tar` crate reads in the same way.

use std::io::Read;

use proptest::prelude::*;

use super::*;
use crate::Compression;

/// One block of an archive, possibly a lie.
#[derive(Debug, Clone)]
enum Piece {
    /// Kind, name, size by the header, bytes of contents.
    Entry(u8, String, u64, usize),
    /// Records of an extended header.
    Pax(Vec<(&'static str, String)>),
    /// A long name.
    Long(u8, String),
    /// A block of nothing.
    Zeros,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{1,3}", "[a-c]/[a-c]", "[a-c]/"]
}

fn piece() -> impl Strategy<Value = Piece> {
    let kinds = prop::sample::select(b"0001257\0S3xgLK".to_vec());
    let sizes = prop_oneof![4 => Just(None), 1 => (0..3000_u64).prop_map(Some)];
    let record = prop_oneof![
        name().prop_map(|name| ("path", name)),
        name().prop_map(|name| ("linkpath", name)),
        (0..2000_u64).prop_map(|size| ("size", size.to_string())),
        Just(("mtime", "1.5".to_owned())),
        Just(("GNU.sparse.major", "1".to_owned())),
    ];
    prop_oneof![
        6 => (kinds, name(), sizes, 0..1500_usize).prop_map(|(kind, name, size, contents)| {
            let contents = if matches!(kind, b'0' | b'7' | b'\0') { contents } else { 0 };
            Piece::Entry(kind, name, size.unwrap_or(contents as u64), contents)
        }),
        2 => prop::collection::vec(record, 1..3).prop_map(Piece::Pax),
        1 => (prop::sample::select(b"LK".to_vec()), name()).prop_map(|(kind, name)| Piece::Long(kind, name)),
        1 => Just(Piece::Zeros),
    ]
}

fn append(archive: &mut Vec<u8>, kind: u8, name: &str, size: u64, contents: &[u8]) {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157] = b'a';
    header.set_mode(0o644);
    header.set_size(size);
    header.as_mut_bytes()[KIND_OFFSET] = kind;
    header.set_cksum();
    archive.extend(header.as_bytes());
    archive.extend(contents);
    archive.resize(archive.len().next_multiple_of(BLOCK_BYTES), 0);
}

fn build(pieces: &[Piece]) -> Vec<u8> {
    let mut archive = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Entry(kind, name, size, contents) => {
                append(&mut archive, *kind, name, *size, &vec![b'x'; *contents]);
            }
            Piece::Pax(records) => {
                let line = |(key, value): &(&str, String)| {
                    let length = key.len() + value.len() + 5;
                    format!("{length} {key}={value}\n")
                };
                let text: String = records.iter().map(line).collect();
                append(&mut archive, b'x', "pax", text.len() as u64, text.as_bytes());
            }
            Piece::Long(kind, name) => {
                append(
                    &mut archive,
                    *kind,
                    "long",
                    name.len() as u64 + 1,
                    format!("{name}\0").as_bytes(),
                );
            }
            Piece::Zeros => archive.extend([0; BLOCK_BYTES]),
        }
    }
    archive.extend([0; 2 * BLOCK_BYTES]);
    archive
}

/// Names and contents' lengths, as they are read here. Nothing where the archive is refused.
fn read_here(archive: &[u8]) -> Option<Vec<(String, usize)>> {
    let source = Decompressed::new(archive, Compression::None, 1 << 30);
    let mut archive = Archive::new(source, 1000);
    let mut read = Vec::new();
    while let Some(entry) = archive.next_entry().ok()? {
        let mut length = 0;
        let mut buffer = [0; 700];
        loop {
            match archive.read_contents(&mut buffer).ok()? {
                0 => break,
                count => length += count,
            }
        }
        read.push((String::from_utf8(entry.name.bytes().to_owned()).unwrap(), length));
    }
    Some(read)
}

/// The same by the library.
fn read_there(archive: &[u8]) -> Result<Vec<(String, usize)>, std::io::Error> {
    let mut archive = tar::Archive::new(archive);
    let mut read = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = EntryName::parse(&entry.path_bytes()).unwrap();
        let is_global = entry.header().entry_type() == tar::EntryType::XGlobalHeader;
        let length = entry.read_to_end(&mut Vec::new())?;
        if !is_global {
            read.push((String::from_utf8(name.bytes().to_owned()).unwrap(), length));
        }
    }
    Ok(read)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_taken_is_read_in_the_same_way_by_a_second_reader(pieces in prop::collection::vec(piece(), 0..8)) {
        let archive = build(&pieces);
        if let Some(here) = read_here(&archive) {
            prop_assert_eq!(here, read_there(&archive).unwrap());
        }
    }

    #[test]
    fn bytes_of_any_kind_are_read_or_refused(mut archive in prop::collection::vec(any::<u8>(), 0..3000)) {
        read_here(&archive);
        archive.splice(0..0, build(&[Piece::Entry(b'0', "a".to_owned(), 5, 5)]));
        read_here(&archive);
    }
}
