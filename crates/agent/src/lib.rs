//! The small program inside the walls, the protocol of its pipe, and the client half.
