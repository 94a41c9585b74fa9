//! Standard input, output and error of this process: the terminal's mode, what is printed on it, signals
//! and input that are passed on to a program, and questions to the person who sits there.

pub mod input;
pub mod interrupts;
pub mod output;
pub mod printer;
pub mod prompt;
pub mod pull_bar;
mod raw_mode;
pub mod status_line;
pub mod stdio_loop;
pub mod streams;
pub mod table;

pub use raw_mode::{Raw, read_terminal_size, require_terminal};
