//! What is said about a run, a refusal or a wrong command line, in words and as JSON. Prints nothing itself.

pub mod capture;
pub mod connections;
pub mod reasons;
pub mod refusals;
pub mod usage;
