//! Front ends for other programs. What they offer is the toolbox's; here it is only carried: no tool
//! is written here, and nothing is decided about what may run.

pub mod mcp;
