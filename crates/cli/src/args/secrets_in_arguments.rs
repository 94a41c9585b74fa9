//! Values of `--env K=V` and `-e K=V` on this process's own command line, which every user of the host can
//! read: they are overwritten before anything else happens. The parser gets a copy that was taken before.
//!
//! For the instant between the start of the process and the overwriting they can be seen: `--env K` and
//! `--env-file` show nothing at any time.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const ENV_FLAG: &[u8] = b"--env";
const SHORT_FLAG: u8 = b'e';
const MASK_BYTE: u8 = b'*';
/// Fields of `/proc/PID/stat`, counted after the process's name, with the addresses at which its arguments
/// begin and end.
const ARG_ADDRESS_FIELDS: Range<usize> = 45..47;

/// The arguments as they were given. Their secret values are not on the command line any more.
pub fn take_arguments() -> Vec<OsString> {
    let given: Vec<OsString> = std::env::args_os().collect();
    // Where the kernel forbids it nothing is worse than before.
    let _ = mask_secrets();
    given
}

fn mask_secrets() -> io::Result<()> {
    let line = fs::read("/proc/self/cmdline")?;
    let values = find_secret_values(&line);
    if values.is_empty() {
        return Ok(());
    }
    let start = start_of_arguments(line.len())?;
    let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    values.into_iter().try_for_each(|value| overwrite_value(&memory, start, value))
}

fn overwrite_value(memory: &File, start: u64, value: Range<usize>) -> io::Result<()> {
    memory.write_all_at(&vec![MASK_BYTE; value.len()], start + value.start as u64)
}

/// The address at which they begin, if they are as long as they were found to be.
fn start_of_arguments(length: usize) -> io::Result<u64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name may hold anything, a parenthesis and spaces included.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let addresses =
        fields.split_whitespace().skip(ARG_ADDRESS_FIELDS.start).take(ARG_ADDRESS_FIELDS.len());
    let addresses: Vec<u64> = addresses.filter_map(|field| field.parse().ok()).collect();
    match addresses[..] {
        [start, end] if end.checked_sub(start) == Some(length as u64) => Ok(start),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Where the values stand in a command line whose arguments each end with a zero byte. What follows `--` is
/// the guest's own command, for everybody to see.
fn find_secret_values(line: &[u8]) -> Vec<Range<usize>> {
    let mut values = Vec::new();
    let (mut start, mut value_follows) = (0, false);
    for argument in line.split(|byte| *byte == 0) {
        if argument == b"--" {
            break;
        }
        let given = match argument.strip_prefix(ENV_FLAG) {
            Some([b'=', rest @ ..]) => Some(rest),
            Some(_) | None if value_follows => Some(argument),
            Some(_) | None => after_short_flag(argument),
        };
        if let Some(given) = given
            && let Some(sign) = given.iter().position(|byte| *byte == b'=')
        {
            let end = start + argument.len();
            values.push(end - given.len() + sign + 1..end);
        }
        let short = after_short_flag(argument).is_some_and(<[u8]>::is_empty);
        value_follows = !value_follows && (argument == ENV_FLAG || short);
        start += argument.len() + 1;
    }
    values
}

/// What stands behind `-e` in one argument, which may follow other short flags as in `-ieK=V`.
fn after_short_flag(argument: &[u8]) -> Option<&[u8]> {
    let [b'-', flags @ ..] = argument else { return None };
    let at = flags.iter().position(|flag| !flag.is_ascii_alphabetic() || *flag == SHORT_FLAG)?;
    (flags[at] == SHORT_FLAG).then(|| &flags[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(line: &str) -> String {
        let mut bytes: Vec<u8> = line.replace(' ', "\0").into_bytes();
        for value in find_secret_values(&bytes.clone()) {
            bytes[value].fill(MASK_BYTE);
        }
        String::from_utf8(bytes).unwrap().replace('\0', " ")
    }

    #[test]
    fn only_values_of_variables_are_covered() {
        for (given, shown) in [
            ("stockade run --env K=V -- true", "stockade run --env K=* -- true"),
            ("stockade run --env=K=a=b -- true", "stockade run --env=K=*** -- true"),
            ("stockade run --env K --env L=abc x", "stockade run --env K --env L=*** x"),
            ("stockade run --env-file F=1 x", "stockade run --env-file F=1 x"),
            ("stockade run -- env --env K=V", "stockade run -- env --env K=V"),
            ("stockade run --env", "stockade run --env"),
            ("stockade run -e K=V -it -ieL=W x", "stockade run -e K=* -it -ieL=* x"),
            ("stockade run -d -te K=V x", "stockade run -d -te K=* x"),
            ("stockade exec s --env K= --env M=x", "stockade exec s --env K= --env M=*"),
        ] {
            assert_eq!(covered(given), shown);
        }
    }
}
