//! `stockade net`: what a persistent sandbox may reach, shown and changed while it runs.

use clap::Args;
use serde_json::json;
use stockade_core::{
    EgressRule, Error, ErrorCode, Network, Result, SandboxId, describe_observed_rules,
    parse_egress_list,
};

use crate::config::Settings;
use crate::daemon::message::{
    NetworkState, RuleChange, SandboxNetworkRequest, SupervisorReply, SupervisorRequest,
};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::report::reasons::warn_of_network;
use crate::terminal::printer::Printer;

const NET_OPERATION: &str = "net";

/// Which sandbox, and how its rules change.
#[derive(Debug, Args)]
pub struct NetArgs {
    /// The sandbox.
    #[arg(value_name = "ID")]
    id: SandboxId,
    /// Allow this too, in the place of a rule that denies the same; may be given several times.
    #[arg(long, value_name = "RULE[,RULE…]")]
    allow: Vec<RuleList>,
    /// Deny this, in the place of a rule that allows the same; a rule that denies wins over all others.
    #[arg(long, value_name = "RULE[,RULE…]")]
    deny: Vec<RuleList>,
    /// Replace all rules by these.
    #[arg(long, value_name = "RULE[,RULE…]", conflicts_with_all = ["allow", "deny"])]
    set: Option<RuleList>,
}

/// Rules and presets, as `--net` takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RuleList(Vec<EgressRule>);

impl std::str::FromStr for RuleList {
    type Err = String;

    fn from_str(given: &str) -> std::result::Result<Self, String> {
        parse_egress_list(given).map(Self)
    }
}

/// Shows the rules in force, after the change that was asked for.
pub async fn net(args: NetArgs, printer: &Printer) -> Result<i32> {
    let place = SandboxDirectory::open(&Settings::load(None, printer)?)?;
    let id = args.id.clone();
    let request = match read_change(args)? {
        Some(change) => SandboxNetworkRequest::Change(change),
        None => SandboxNetworkRequest::Show,
    };
    let mut connection = place.reach(&id, NET_OPERATION).await?;
    let (SupervisorReply::Network(state), _) =
        connection.ask(&SupervisorRequest::Network(request)).await?
    else {
        return Err(out_of_turn(NET_OPERATION));
    };
    show_network(&connection.sandbox, &state, printer);
    Ok(0)
}

fn read_change(args: NetArgs) -> Result<Option<RuleChange>> {
    if let Some(RuleList(rules)) = args.set {
        return Ok(Some(RuleChange::Set(rules)));
    }
    let flatten = |lists: Vec<RuleList>| lists.into_iter().flat_map(|RuleList(rules)| rules);
    let allowed = flatten(args.allow).map(|rule| (rule, false));
    let denied = flatten(args.deny).map(|rule| (rule, true));
    let mut rules: Vec<EgressRule> = Vec::new();
    for (given, denies) in allowed.chain(denied) {
        if given.denies() {
            let message = format!("`{given}` denies already");
            return Err(Error::new(ErrorCode::Invalid, NET_OPERATION, message)
                .remedy("leave the `!` out, or give the whole list with --set"));
        }
        if denies && (given.observes() || given.asks()) {
            let message = format!("`{given}` is about what no rule names, and cannot be denied");
            return Err(Error::new(ErrorCode::Invalid, NET_OPERATION, message)
                .remedy("give the rules that stay with --set"));
        }
        if rules.contains(&given.clone().with_denial(!denies)) {
            let message = format!("`{given}` cannot be both allowed and denied");
            return Err(Error::new(ErrorCode::Invalid, NET_OPERATION, message)
                .remedy("give it to --allow or to --deny"));
        }
        let rule = given.with_denial(denies);
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    Ok((!rules.is_empty()).then_some(RuleChange::Add(rules)))
}

fn show_network(sandbox: &SandboxId, state: &NetworkState, printer: &Printer) {
    let NetworkState { policy, observed } = state;
    warn_of_network(policy, printer);
    let (name, rules) = match policy {
        Network::Auto | Network::None => ("none", &[][..]),
        Network::Loopback => ("loopback", &[][..]),
        Network::Egress(rules) => ("egress", &rules[..]),
    };
    if printer.is_json() {
        let mut shown = json!({ "sandbox": sandbox, "network": name, "rules": rules });
        if let Some(observed) = observed {
            shown["observed"] = json!(observed);
        }
        return printer.json(&shown);
    }
    if rules.is_empty() {
        printer.data(&format!("{name}\n"));
    } else {
        printer.data(&rules.iter().map(|rule| format!("{rule}\n")).collect::<String>());
    }
    if let Some(observed) = observed {
        printer.note(&describe_observed_rules(observed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(allow: &[&str], deny: &[&str]) -> Result<Option<RuleChange>> {
        let lists = |given: &[&str]| given.iter().map(|it| it.parse().unwrap()).collect();
        let id = "abcdefgh".parse().unwrap();
        read_change(NetArgs { id, allow: lists(allow), deny: lists(deny), set: None })
    }

    #[test]
    fn rules_that_contradict_each_other_are_refused() {
        assert_eq!(change(&[], &[]).unwrap(), None);
        let added = change(&["a.org,b.org", "a.org"], &["c.org"]).unwrap();
        let rules = ["a.org", "b.org", "!c.org"].map(|rule| rule.parse::<EgressRule>().unwrap());
        assert_eq!(added, Some(RuleChange::Add(rules.to_vec())));
        assert_eq!(change(&["a.org"], &["a.org"]).unwrap_err().code(), ErrorCode::Invalid);
        assert_eq!(change(&["!a.org"], &[]).unwrap_err().code(), ErrorCode::Invalid);
        assert_eq!(change(&[], &["!a.org"]).unwrap_err().code(), ErrorCode::Invalid);
        assert_eq!(change(&[], &["observe"]).unwrap_err().code(), ErrorCode::Invalid);
    }
}
