//! Links the command without relocations of its own where the C library is linked dynamically: applying the hundred
//! thousand of them takes two milliseconds of each start, of ten in all. Its libraries, stack and heap lie where the kernel
//! chooses, as before.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let told = |name: &str| std::env::var(name).unwrap_or_default();
    let dynamic = !told("CARGO_CFG_TARGET_FEATURE").split(',').any(|it| it == "crt-static");
    let is_linux = told("CARGO_CFG_TARGET_OS") == "linux";
    if is_linux && told("CARGO_CFG_TARGET_ENV") == "gnu" && dynamic {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
