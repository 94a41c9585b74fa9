//! The program inside the walls: `stockade-agent [--scoped] PIPE ROOT [NAME]`.
//!
//! PIPE is the number of the inherited descriptor that leads to the engine, or two, `IN,OUT`; ROOT
//! is the workspace's directory; NAME, if given, tells people which sandbox it belongs to. `--scoped`
//! says that it runs in a Landlock domain that keeps signals inside.

fn main() -> std::process::ExitCode {
    stockade_agent::agent::main(std::env::args().skip(1))
}
