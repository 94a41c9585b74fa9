//! The secrets of one sandbox: what stands for each inside, where each may go, and what becomes of one that goes
//! elsewhere (C-53). Values are in this process's memory alone: no record, error or message holds one (C-41).

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use rustls::crypto::ring::default_provider;
use stockade_core::{EnvName, Error, ErrorCode, Result, SecretBinding, SecretPlace, SecretValue};

use crate::authority::{Authority, AuthorityError};
use crate::filtered_body::LengthChange;
use crate::mask::list_spellings;
use crate::patterns::{PatternAction, Patterns, StreamWatch};
use crate::policy::EgressTarget;
use crate::traffic_filter::TrafficFilter;
use crate::trust::TrustStore;

/// What placeholders begin with. Letters, digits and hyphens: no client writes them in another way.
const PLACEHOLDER_PREFIX: &str = "stockade-secret-";
/// What makes a placeholder one of its kind.
const PLACEHOLDER_RANDOM_BYTES: usize = 16;

/// Where the certificates that programs inside are to trust lie.
pub const GUEST_BUNDLE_PATH: &str = "/run/stockade/ca.pem";

/// The variables by which programs inside find those certificates.
pub const BUNDLE_ENVIRONMENT: [&str; 8] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "DENO_CERT",
    "CARGO_HTTP_CAINFO",
    "PIP_CERT",
];

/// The secrets of one sandbox, and the authority under which connections to their hosts are opened. Without a secret, it
/// is there for hosts whose requests are judged one by one.
pub struct SecretSet {
    secrets: Vec<HeldSecret>,
    pub(crate) authority: Authority,
    pub(crate) trust: TrustStore,
}

struct HeldSecret {
    binding: SecretBinding,
    placeholder: String,
    value: SecretValue,
}

/// Where on its way a placeholder is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whereabouts {
    RequestLine,
    Header,
    Body,
    /// In another protocol than HTTP.
    Bytes,
}

impl SecretSet {
    /// Makes an authority, and a placeholder for each secret.
    pub fn new(held: Vec<(SecretBinding, SecretValue)>, trust: TrustStore) -> Result<Self> {
        check_values(&held)?;
        let build = |(binding, value)| -> Result<HeldSecret> {
            Ok(HeldSecret { binding, placeholder: make_placeholder()?, value })
        };
        let secrets = held.into_iter().map(build).collect::<Result<_>>()?;
        let authority = Authority::new().map_err(|error| cannot_intercept(&error))?;
        Ok(Self { secrets, authority, trust })
    }

    /// Whether there is no secret in it.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The variables that a command finds, with what stands for their values.
    pub fn placeholders(&self) -> impl Iterator<Item = (&EnvName, &str)> {
        self.secrets.iter().map(|secret| (secret.binding.name(), secret.placeholder.as_str()))
    }

    /// The certificates that programs inside are to trust: the host's, and the authority's.
    pub fn bundle(&self) -> Bytes {
        let own = self.authority.certificate_pem();
        [self.trust.pem(), b"\n", own.as_bytes()].concat().into()
    }

    /// Whether a secret is bound to this host, whose connections are therefore opened.
    pub(crate) fn is_intercepted(&self, target: &EgressTarget) -> bool {
        self.secrets.iter().any(|secret| secret.is_bound_to(target))
    }

    /// Why a name must not be looked up or connected to; nothing if it may.
    pub(crate) fn refuse_name(&self, name: &str) -> Option<String> {
        let name = name.to_ascii_lowercase();
        let hidden = self.secrets.iter().find(|secret| name.contains(&secret.placeholder))?;
        let secret = hidden.binding.name();
        Some(format!("the placeholder of the secret `{secret}` stands in the name of a host"))
    }

    /// For requests to a host without a secret, and for those that go over a connection as it is: no placeholder passes.
    /// Nothing where there is none.
    pub(crate) fn filter_plain(&self, target: &EgressTarget) -> Option<TrafficFilter> {
        if self.is_empty() {
            return None;
        }
        let block = |whereabouts| self.build_patterns(|it| it.block(target, false, whereabouts));
        Some(TrafficFilter {
            line: block(Whereabouts::RequestLine),
            head: block(Whereabouts::Header),
            body: Arc::new(block(Whereabouts::Body)),
            length: LengthChange::Keeps,
            mask: None,
            mask_names: None,
            refused: self.is_intercepted(target).then(|| describe_https_only(target)),
        })
    }

    /// For bytes of another protocol: no placeholder passes. Nothing where there is none.
    pub(crate) fn watch_raw(&self, target: &EgressTarget) -> Option<StreamWatch> {
        let block = |it: &HeldSecret| it.block(target, false, Whereabouts::Bytes);
        (!self.is_empty()).then(|| StreamWatch::new(Arc::new(self.build_patterns(block))))
    }

    /// For requests over a connection that was opened: placeholders of this host become values, and values in
    /// answers become placeholders.
    pub(crate) fn filter_intercepted(&self, target: &EgressTarget) -> TrafficFilter {
        let mut bound = self.secrets.iter().filter(|secret| secret.is_bound_to(target));
        let has_body = bound.any(|secret| secret.binding.place() == SecretPlace::Body);
        TrafficFilter {
            line: self.build_patterns(|it| it.block(target, true, Whereabouts::RequestLine)),
            head: self.build_patterns(|it| it.fill_in(target, Whereabouts::Header)),
            body: Arc::new(self.build_patterns(|it| it.fill_in(target, Whereabouts::Body))),
            length: if has_body { LengthChange::Changes } else { LengthChange::Keeps },
            mask: Some(Arc::new(Patterns::of_secrets(
                self.secrets.iter().flat_map(HeldSecret::mask),
            ))),
            mask_names: Some(Patterns::new(self.secrets.iter().flat_map(HeldSecret::mask_names))),
            refused: None,
        }
    }

    fn build_patterns(&self, action: impl Fn(&HeldSecret) -> PatternAction) -> Patterns {
        let texts = self.secrets.iter();
        Patterns::new(texts.map(|secret| (secret.placeholder.clone().into_bytes(), action(secret))))
    }
}

impl HeldSecret {
    fn is_bound_to(&self, target: &EgressTarget) -> bool {
        self.binding.hosts().iter().any(|host| target.is_same_host(host))
    }

    fn fill_in(&self, target: &EgressTarget, whereabouts: Whereabouts) -> PatternAction {
        let fits = match (whereabouts, self.binding.place()) {
            (Whereabouts::Header, SecretPlace::Header | SecretPlace::Body)
            | (Whereabouts::Body, SecretPlace::Body) => true,
            (Whereabouts::Body, SecretPlace::Header)
            | (Whereabouts::RequestLine | Whereabouts::Bytes, _) => false,
        };
        if fits && self.is_bound_to(target) {
            return PatternAction::Replace(self.value.expose().as_bytes().to_vec());
        }
        self.block(target, true, whereabouts)
    }

    fn block(
        &self,
        target: &EgressTarget,
        over_tls: bool,
        whereabouts: Whereabouts,
    ) -> PatternAction {
        let (name, hosts) = (self.binding.name(), self.binding.hosts().join(", "));
        let stands = format!("the placeholder of the secret `{name}` stands in a request");
        PatternAction::Block(match (self.is_bound_to(target), whereabouts) {
            (false, _) => format!("{stands} to `{target}`; the secret is bound to {hosts}"),
            (true, Whereabouts::Bytes) => {
                format!("{stands} to `{target}` that is not HTTPS; secrets go over HTTPS only")
            }
            (true, _) if !over_tls => {
                format!("{stands} to `{target}` over plain HTTP; secrets go over HTTPS only")
            }
            (true, Whereabouts::RequestLine | Whereabouts::Header) => {
                format!("{stands} line to `{target}`; secrets go into values of headers")
            }
            (true, Whereabouts::Body) => format!(
                "{stands} body to `{target}`; the secret goes into headers only, and with \
                 `--secret {name}=HOST:body` would go into bodies too"
            ),
        })
    }

    /// The same in the small letters that names of headers are written in here.
    fn mask_names(&self) -> Vec<(Vec<u8>, PatternAction)> {
        let small = |(text, action): (Vec<u8>, _)| (text.to_ascii_lowercase(), action);
        self.mask().into_iter().map(small).collect()
    }

    /// Every spelling of the value, with what is shown instead.
    fn mask(&self) -> Vec<(Vec<u8>, PatternAction)> {
        let shown = PatternAction::Replace(self.placeholder.clone().into_bytes());
        let spellings = list_spellings(self.value.expose()).into_iter();
        spellings.map(|text| (text, shown.clone())).collect()
    }
}

/// What is stored over HTTPS could be read back over another protocol, where nothing is masked.
pub(crate) fn describe_https_only(target: &EgressTarget) -> String {
    format!("a secret is bound to `{target}`, which is therefore reached over HTTPS only")
}

/// A value within another could not be masked reliably.
fn check_values(held: &[(SecretBinding, SecretValue)]) -> Result<()> {
    for (binding, value) in held {
        let contains =
            |other: &SecretValue| other != value && value.expose().contains(other.expose());
        if let Some((inner, _)) = held.iter().find(|(_, other)| contains(other)) {
            let (inner, outer) = (inner.name(), binding.name());
            let message = format!("the value of secret `{inner}` is a part of that of `{outer}`");
            return Err(Error::new(ErrorCode::Invalid, "bind secrets", message)
                .remedy("bind them in sandboxes of their own"));
        }
    }
    Ok(())
}

fn make_placeholder() -> Result<String> {
    let mut random = [0; PLACEHOLDER_RANDOM_BYTES];
    let filled = default_provider().secure_random.fill(&mut random);
    filled.map_err(|_| {
        Error::new(ErrorCode::System, "bind secrets", "the system gives no random numbers")
    })?;
    let mut placeholder = PLACEHOLDER_PREFIX.to_owned();
    for byte in random {
        // Writing to a string does not fail.
        let _ = write!(placeholder, "{byte:02x}");
    }
    Ok(placeholder)
}

fn cannot_intercept(error: &AuthorityError) -> Error {
    let message = format!("no certificate authority can be made: {error}");
    Error::new(ErrorCode::System, "bind secrets", message)
}
