//! Who sends a request, and what that caller may see, name and do.

use stockade_core::{ErrorCode, TenantName};

use super::failure::ApiFailure;
use super::tokens::{TokenRecord, TokenRight};

/// Who sends a request.
#[derive(Debug, Clone)]
pub(crate) enum ApiCaller {
    /// Whom the daemon runs as, on its socket: sees every tenant, and names paths of the host.
    OwnUser,
    /// The holder of a token: belongs to its tenant.
    Holder(TokenRecord),
    /// Somebody without a token, who learns no more than that the server works.
    Unknown,
}

/// What a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteNeed {
    /// Nothing.
    Open,
    /// This right.
    Right(TokenRight),
}

impl ApiCaller {
    /// The tenant that a holder belongs to; none for one who sees them all.
    pub(crate) fn tenant(&self) -> Option<&TenantName> {
        match self {
            Self::OwnUser | Self::Unknown => None,
            Self::Holder(token) => Some(&token.tenant),
        }
    }

    /// Whether what belongs to this tenant is there for the caller.
    pub(crate) fn sees(&self, tenant: &TenantName) -> bool {
        match self {
            Self::OwnUser => true,
            Self::Holder(token) => token.tenant == *tenant,
            Self::Unknown => false,
        }
    }

    /// Fails unless the caller may use a route.
    pub(crate) fn check_need(&self, need: RouteNeed) -> Result<(), ApiFailure> {
        match (need, self) {
            (RouteNeed::Open, _) | (RouteNeed::Right(_), Self::OwnUser) => Ok(()),
            (RouteNeed::Right(_), Self::Unknown) => Err(ApiFailure::unauthorized()),
            (RouteNeed::Right(right), Self::Holder(token)) if token.has(right) => Ok(()),
            (RouteNeed::Right(right), Self::Holder(token)) => {
                let message = format!("token `{}` has not the right `{right}`", token.name);
                Err(ApiFailure::new(ErrorCode::Denied, message)
                    .remedy(format!("make one with `stockade token new NAME --rights {right}`")))
            }
        }
    }
}
