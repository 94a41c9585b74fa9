//! The command of an execution as records and views have it: its beginning, whatever its length. One that is cut
//! says so, with the SHA-256 of the whole, so that it can be told what was run.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Bytes of arguments that are kept, one more for each argument.
const MAX_COMMAND_BYTES: usize = 4096;

/// The argument vector, cut where it is longer than what is kept.
pub(crate) fn cut_command(argv: Vec<String>) -> Vec<String> {
    let length: usize = argv.iter().map(|argument| argument.len() + 1).sum();
    if length <= MAX_COMMAND_BYTES {
        return argv;
    }
    let mark = build_cut_mark(&argv, length);
    let (mut room, mut kept) = (MAX_COMMAND_BYTES - mark.len(), Vec::new());
    for argument in argv {
        if argument.len() < room {
            room -= argument.len() + 1;
            kept.push(argument);
            continue;
        }
        let end = argument.floor_char_boundary(room.saturating_sub(1));
        kept.push(format!("{}{mark}", &argument[..end]));
        break;
    }
    kept
}

/// What stands at the end of a command that is cut.
fn build_cut_mark(argv: &[String], length: usize) -> String {
    let mut hash = Sha256::new();
    for argument in argv {
        hash.update(argument);
        // No argument holds one, so that it is told where each ends.
        hash.update([0]);
    }
    let mut mark = format!("… [cut: {} arguments, {length} bytes, sha256:", argv.len());
    for byte in hash.finalize() {
        let _ = write!(mark, "{byte:02x}");
    }
    mark.push(']');
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(argv: &[String]) -> usize {
        argv.iter().map(|argument| argument.len() + 1).sum()
    }

    #[test]
    fn a_command_of_usual_length_stays_as_it_is() {
        let argv = vec!["sh".to_owned(), "-c".to_owned(), "x".repeat(MAX_COMMAND_BYTES - 7)];
        assert_eq!(measure(&argv), MAX_COMMAND_BYTES);
        assert_eq!(cut_command(argv.clone()), argv);
    }

    #[test]
    fn a_long_command_is_cut_with_a_mark_however_it_is_long() {
        let long = vec!["sh".to_owned(), "-c".to_owned(), "ü".repeat(1 << 20)];
        let many = vec![String::new(); 100_000];
        for argv in [long, many, vec!["y".repeat(MAX_COMMAND_BYTES)]] {
            let whole = measure(&argv);
            let cut = cut_command(argv);
            assert!(measure(&cut) <= MAX_COMMAND_BYTES + 1, "{}", measure(&cut));
            let last = cut.last().unwrap();
            assert!(last.contains(&format!("{whole} bytes, sha256:")), "{last}");
        }
    }

    #[test]
    fn commands_that_begin_alike_have_marks_of_their_own() {
        let cut = |end: &str| cut_command(vec!["x".repeat(2 * MAX_COMMAND_BYTES) + end]);
        assert_ne!(cut("a"), cut("b"));
    }
}
