//! The program inside the walls: `stockade-agent [--scoped | --apart] PIPE ROOT [NAME]`.
//!
//! PIPE is the number of the inherited descriptor that leads to the engine, or two, `IN,OUT`; ROOT
//! is the workspace's directory; NAME, if given, tells people which sandbox it belongs to. `--scoped`
//! says that it runs in a Landlock domain that keeps signals inside; `--apart`, that it is the first
//! process of a kernel on which orphans are reparented to no other process.

fn main() -> std::process::ExitCode {
    stockade_agent::agent::main(std::env::args().skip(1))
}
