//! Empty: cargo passes a package's metadata on to the build scripts of its dependents, and only a library can be depended on.
