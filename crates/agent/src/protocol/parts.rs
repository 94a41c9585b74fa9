//! What messages are made of.

use super::wire::{DecodeError, Put, Take, TooLong, put_frame, take_whole};

/// An enum that travels as one byte.
macro_rules! byte_enum {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $tag:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub(in crate::protocol) fn tag(self) -> u8 {
                match self { $(Self::$variant => $tag,)* }
            }

            pub(in crate::protocol) fn take(from: &mut Take<'_>) -> Result<Self, DecodeError> {
                match from.u8()? {
                    $($tag => Ok(Self::$variant),)*
                    tag => Err(DecodeError::Tag { what: $what, tag }),
                }
            }
        }
    };
}

pub(super) use byte_enum;

byte_enum!(
    /// Which output stream.
    Stream, "stream" {
        /// Standard output, a terminal's only stream, or what a file request yields.
        Stdout = 1,
        /// Standard error.
        Stderr = 2,
    }
);

byte_enum!(
    /// Why a program never started.
    StartKind, "kind of start failure" {
        /// There is no such program.
        NotFound = 1,
        /// There is, but it cannot be executed.
        NotExecutable = 2,
        /// The working directory cannot be entered.
        BadDirectory = 3,
        /// There was no room for it.
        NoResources = 4,
    }
);

byte_enum!(
    /// A resource limit of each process.
    Limit, "limit" {
        /// Seconds of processor time.
        CpuSeconds = 1,
        /// Open files.
        OpenFiles = 2,
        /// Bytes of one file.
        FileSize = 3,
        /// Processes of this user.
        Processes = 4,
        /// Bytes of address space.
        AddressSpace = 5,
        /// Bytes of a core file.
        CoreSize = 6,
        /// Bytes of stack.
        Stack = 7,
    }
);

byte_enum!(
    /// Why a file request failed.
    FileErrorKind, "kind of file error" {
        /// Nothing is there.
        NotFound = 1,
        /// The path leaves its root.
        PathEscapes = 2,
        /// The file tree does not allow it.
        Denied = 3,
        /// What is there does not fit the request: a fifo, a directory that is not empty …
        Unsuitable = 4,
        /// A bound on size or count was reached.
        TooLarge = 5,
        /// The system failed otherwise.
        System = 6,
    }
);

byte_enum!(
    /// What kind of thing a path names.
    FileKind, "kind of file" {
        /// A regular file.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A symbolic link.
        Symlink = 3,
        /// A device, fifo or socket.
        Other = 4,
    }
);

byte_enum!(
    /// What happened in a watched directory.
    WatchKind, "kind of change" {
        /// An entry appeared.
        Created = 1,
        /// An entry's content or attributes changed.
        Changed = 2,
        /// An entry went away.
        Removed = 3,
        /// Changes were lost because they were not read in time.
        Overflow = 4,
        /// The directory itself went away; nothing follows.
        Gone = 5,
    }
);

/// The first message of each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The version it speaks.
    pub version: u16,
    /// The longest frame it takes.
    pub max_frame: u32,
}

/// A terminal's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Height in characters.
    pub rows: u16,
    /// Width in characters.
    pub cols: u16,
}

/// What to start, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spawn<'a> {
    /// The program and its arguments.
    pub argv: Vec<&'a str>,
    /// The whole environment.
    pub env: Vec<(&'a str, &'a str)>,
    /// Where to start: absolute, or relative to the workspace root.
    pub dir: &'a str,
    /// User and group. Absent: the agent's own.
    pub user: Option<(u32, u32)>,
    /// Whether input will follow.
    pub stdin: bool,
    /// Give it a terminal.
    pub terminal: Option<Size>,
    /// Limits of each of its processes.
    pub limits: Vec<(Limit, u64)>,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// Its keeper was killed from inside, so how it ended is unknown.
    Lost,
}

/// One file operation. Absolute paths name the sandbox's tree, relative ones the workspace's (C-22).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRequest<'a> {
    /// Answered by `FileEntry`.
    Stat(&'a str),
    /// Answered by `FileData`: at most so many bytes from this offset.
    Read(&'a str, u64, u32),
    /// Answered by `FileDone`. With the flag: at the end of the file.
    Write(&'a str, bool, &'a [u8]),
    /// Makes a directory and those above it. Answered by `FileDone`.
    MakeDir(&'a str),
    /// Sets a regular file's permission bits. Answered by `FileDone`.
    SetMode(&'a str, u32),
    /// From, to. Answered by `FileDone`.
    Rename(&'a str, &'a str),
    /// Yields [`FileEntry`] records as output, then `FileDone`.
    List(&'a str),
    /// Removes everything at this path. Answered by `FileDone`.
    Remove(&'a str),
    /// A directory, and the name of one in it: what is in that one takes the place of all else in the
    /// directory, but for what is mounted there. Answered by `FileDone`.
    Replace(&'a str, &'a str),
    /// Yields a tar archive as output, without what is mounted in the tree, then `FileDone`.
    TarOut(&'a str),
    /// Takes a tar archive as input, then answers `FileDone`.
    TarIn(&'a str),
    /// Answers `FileDone` once the watch stands, then yields [`WatchEvent`] records until killed.
    Watch(&'a str),
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEntry<'a> {
    /// What kind of thing it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// The last part of its path.
    pub name: &'a str,
}

/// One change in a watched directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchEvent<'a> {
    /// What happened.
    pub kind: WatchKind,
    /// To which entry; empty where it concerns the whole directory.
    pub name: &'a str,
}

impl Hello {
    pub(super) fn put(self, to: &mut Vec<u8>) {
        to.u16(self.version);
        to.u32(self.max_frame);
    }

    pub(super) fn take(from: &mut Take<'_>) -> Result<Self, DecodeError> {
        Ok(Self { version: from.u16()?, max_frame: from.u32()? })
    }
}

impl Size {
    pub(super) fn put(self, to: &mut Vec<u8>) {
        to.u16(self.rows);
        to.u16(self.cols);
    }

    pub(super) fn take(from: &mut Take<'_>) -> Result<Self, DecodeError> {
        Ok(Self { rows: from.u16()?, cols: from.u16()? })
    }
}

impl<'a> Spawn<'a> {
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        to.count(self.argv.len());
        self.argv.iter().for_each(|text| to.text(text));
        to.count(self.env.len());
        for (name, value) in &self.env {
            to.text(name);
            to.text(value);
        }
        to.text(self.dir);
        to.flag(self.user.is_some());
        if let Some((uid, gid)) = self.user {
            to.u32(uid);
            to.u32(gid);
        }
        to.flag(self.stdin);
        to.flag(self.terminal.is_some());
        if let Some(size) = self.terminal {
            size.put(to);
        }
        to.count(self.limits.len());
        for (limit, value) in &self.limits {
            to.u8(limit.tag());
            to.u64(*value);
        }
    }

    pub(super) fn take(from: &mut Take<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            argv: from.list(Take::text)?,
            env: from.list(|from| Ok((from.text()?, from.text()?)))?,
            dir: from.text()?,
            user: from.option(|from| Ok((from.u32()?, from.u32()?)))?,
            stdin: from.flag()?,
            terminal: from.option(Size::take)?,
            limits: from.list(|from| Ok((Limit::take(from)?, from.u64()?)))?,
        })
    }
}

impl End {
    pub(super) fn put(self, to: &mut Vec<u8>) {
        let (tag, value) = match self {
            Self::Code(code) => (1, code),
            Self::Signal(number) => (2, number),
            Self::Lost => return to.u8(3),
        };
        to.u8(tag);
        to.bytes(&value.to_le_bytes());
    }

    pub(super) fn take(from: &mut Take<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            1 => from.i32().map(Self::Code),
            2 => from.i32().map(Self::Signal),
            3 => Ok(Self::Lost),
            tag => Err(DecodeError::Tag { what: "end", tag }),
        }
    }
}

impl<'a> FileRequest<'a> {
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        let (tag, path) = match *self {
            Self::Stat(path) => (1, path),
            Self::Read(path, ..) => (2, path),
            Self::Write(path, ..) => (3, path),
            Self::MakeDir(path) => (4, path),
            Self::Rename(path, _) => (5, path),
            Self::List(path) => (6, path),
            Self::Remove(path) => (7, path),
            Self::TarOut(path) => (8, path),
            Self::TarIn(path) => (9, path),
            Self::Watch(path) => (10, path),
            Self::SetMode(path, _) => (11, path),
            Self::Replace(path, _) => (12, path),
        };
        to.u8(tag);
        to.text(path);
        match *self {
            Self::Read(_, offset, most) => {
                to.u64(offset);
                to.u32(most);
            }
            Self::Write(_, append, data) => {
                to.flag(append);
                to.data(data);
            }
            Self::Rename(_, name) | Self::Replace(_, name) => to.text(name),
            Self::SetMode(_, mode) => to.u32(mode),
            Self::Stat(_)
            | Self::MakeDir(_)
            | Self::List(_)
            | Self::Remove(_)
            | Self::TarOut(_)
            | Self::TarIn(_)
            | Self::Watch(_) => {}
        }
    }

    pub(super) fn take(from: &mut Take<'a>) -> Result<Self, DecodeError> {
        let tag = from.u8()?;
        let path = from.text()?;
        Ok(match tag {
            1 => Self::Stat(path),
            2 => Self::Read(path, from.u64()?, from.u32()?),
            3 => Self::Write(path, from.flag()?, from.data()?),
            4 => Self::MakeDir(path),
            5 => Self::Rename(path, from.text()?),
            6 => Self::List(path),
            7 => Self::Remove(path),
            8 => Self::TarOut(path),
            9 => Self::TarIn(path),
            10 => Self::Watch(path),
            11 => Self::SetMode(path, from.u32()?),
            12 => Self::Replace(path, from.text()?),
            tag => return Err(DecodeError::Tag { what: "file request", tag }),
        })
    }
}

impl<'a> FileEntry<'a> {
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        to.u8(self.kind.tag());
        to.u32(self.mode);
        to.u64(self.size);
        to.text(self.name);
    }

    pub(super) fn take(from: &mut Take<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            kind: FileKind::take(from)?,
            mode: from.u32()?,
            size: from.u64()?,
            name: from.text()?,
        })
    }

    /// Appends it as a record of a listing.
    pub fn record(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_frame(out, |to| self.put(to))
    }

    /// Reads the body of a record.
    pub fn from_record(body: &'a [u8]) -> Result<Self, DecodeError> {
        take_whole(body, Self::take)
    }
}

impl<'a> WatchEvent<'a> {
    /// Appends it as a record of a watch.
    pub fn record(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_frame(out, |to| {
            to.u8(self.kind.tag());
            to.text(self.name);
        })
    }

    /// Reads the body of a record.
    pub fn from_record(body: &'a [u8]) -> Result<Self, DecodeError> {
        take_whole(body, |from| Ok(Self { kind: WatchKind::take(from)?, name: from.text()? }))
    }
}
