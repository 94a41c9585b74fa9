//! The backends: one module each, one cargo feature each.
