//! How often something is repeated that could go on for ever: a sample where every change is judged, the whole
//! with `scripts/test --long`.

/// Environment variable that asks for a long run.
const LONG_RUN_VARIABLE: &str = "STOCKADE_TEST_LONG";

/// The first of the two, or the second in a long run.
pub fn pick_rounds<N: Copy>([sample, whole]: [N; 2]) -> N {
    match std::env::var_os(LONG_RUN_VARIABLE) {
        Some(_) => whole,
        None => sample,
    }
}
