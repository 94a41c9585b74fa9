//! The shortest program there is: what is left of a launch's time when the guest does nothing.

fn main() {}
