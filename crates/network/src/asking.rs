//! Hosts that no rule covers, where the rules say that a person is asked about them.

use std::sync::Arc;

use async_trait::async_trait;
use stockade_core::EgressRule;

use crate::policy::{Denial, Egress, EgressTarget, check_target};
use crate::special::{OwnAddresses, classify_address};

/// Decides about hosts that no rule covers.
#[async_trait]
pub trait HostApprover: Send + Sync {
    /// Whether what this rule names may be reached. The connection waits: the answer must come, and is an error in the
    /// words of a denial where it is no.
    ///
    /// - A rule that is answered holds for this connection alone.
    /// - Nothing: the rules in force were replaced, and decide from now on.
    async fn approve(
        &self,
        egress: &Egress,
        rule: EgressRule,
    ) -> Result<Option<EgressRule>, String>;
}

impl Egress {
    /// Asks about a host, if no rule covers it and the rules say so.
    pub(crate) async fn ask_about(
        &self,
        target: &EgressTarget,
        port: u16,
    ) -> Result<Option<EgressRule>, Denial> {
        let rules = self.rules();
        let Some(approver) = self.approver.as_ref().filter(|_| rules.iter().any(EgressRule::asks))
        else {
            return Ok(None);
        };
        let missing = check_target(&rules, target, port).err().and_then(|it| it.missing_rule);
        let Some(rule) = missing.filter(|_| !is_special(target)).and_then(|it| it.parse().ok())
        else {
            return Ok(None);
        };
        approver.approve(self, rule).await.map_err(Denial::from)
    }
}

/// Special addresses are opened by who writes the rules, never by a question that a guest has raised.
fn is_special(target: &EgressTarget) -> bool {
    match target {
        EgressTarget::Name(_) => false,
        EgressTarget::Address(address) => {
            classify_address(*address, &OwnAddresses::list()).is_some()
        }
    }
}

/// The rules with what was granted to one connection.
pub(crate) fn add_grant(rules: Arc<[EgressRule]>, grant: Option<&EgressRule>) -> Arc<[EgressRule]> {
    match grant {
        None => rules,
        Some(grant) => rules.iter().cloned().chain([grant.clone()]).collect(),
    }
}
