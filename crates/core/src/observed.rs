//! The policy that would have been enough for what programs reached while everything was let through.

use crate::EgressRule;

/// The most rules that are kept of one sandbox: a program reaches as many hosts as it likes.
pub const MAX_OBSERVED_RULES: usize = 200;

/// What an unsafe network means, for the one who asked for it.
pub const OBSERVE_WARNING: &str = "`--net observe` is unsafe: programs reach every public host, and can send there \
                                   what they read";

/// The policy in one sentence, with the flag that sets it.
pub fn describe_observed_rules(rules: &[EgressRule]) -> String {
    if rules.is_empty() {
        return "no host was reached: `--net loopback` would have been enough".into();
    }
    let list: Vec<_> = rules.iter().map(ToString::to_string).collect();
    // The list is full: there may have been others that it has no room for.
    let cut = if rules.len() >= MAX_OBSERVED_RULES { " and further rules" } else { "" };
    format!("enough would have been --net {}{cut}", list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_told_as_the_flag_that_sets_it() {
        let rules = ["a.org", "b.org:8443"].map(|rule| rule.parse::<EgressRule>().unwrap());
        let told = describe_observed_rules(&rules);
        assert_eq!(told, "enough would have been --net a.org,b.org:8443");
        assert!(describe_observed_rules(&[]).contains("--net loopback"));
        let full = vec![rules[0].clone(); MAX_OBSERVED_RULES];
        assert!(describe_observed_rules(&full).ends_with(" and further rules"));
    }
}
