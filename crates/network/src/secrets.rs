//! The secrets of one sandbox: what stands for each inside, where each may go, and what becomes of one that goes
//! elsewhere (C-53). Values are in this process's memory alone: no record, error or message holds one (C-41).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustls::crypto::ring::default_provider;
use stockade_core::{
    EnvName, Error, ErrorCode, RenewalCause, Result, SecretBinding, SecretPlace, SecretValue,
};
use tokio::task::AbortHandle;

use crate::authority::{Authority, AuthorityError};
use crate::filtered_body::LengthChange;
use crate::java_store::build_java_store;
use crate::mask::list_spellings;
use crate::patterns::{PatternAction, Patterns, StreamWatch};
use crate::policy::EgressTarget;
use crate::record::ConnectionLog;
use crate::secret_mask::SecretMask;
use crate::supply::{CurrentValue, RenewalContext, SecretSupply};
use crate::traffic_filter::{OfferedSecret, TrafficFilter};
use crate::trust::TrustStore;

/// What placeholders begin with. Letters, digits and hyphens: no client writes them in another way.
const PLACEHOLDER_PREFIX: &str = "stockade-secret-";
/// What makes a placeholder one of its kind.
const PLACEHOLDER_RANDOM_BYTES: usize = 16;

/// Where the certificates that programs inside are to trust lie.
pub const GUEST_BUNDLE_PATH: &str = "/run/stockade/ca.pem";

/// Where the same certificates lie in the form that Java reads.
pub const GUEST_JAVA_STORE_PATH: &str = "/run/stockade/ca.jks";

/// The variables by which programs inside find those certificates. The last one is read by every Java machine.
pub const BUNDLE_ENVIRONMENT: [(&str, &str); 10] = [
    ("SSL_CERT_FILE", GUEST_BUNDLE_PATH),
    ("CURL_CA_BUNDLE", GUEST_BUNDLE_PATH),
    ("REQUESTS_CA_BUNDLE", GUEST_BUNDLE_PATH),
    ("NODE_EXTRA_CA_CERTS", GUEST_BUNDLE_PATH),
    ("GIT_SSL_CAINFO", GUEST_BUNDLE_PATH),
    ("DENO_CERT", GUEST_BUNDLE_PATH),
    ("CARGO_HTTP_CAINFO", GUEST_BUNDLE_PATH),
    ("PIP_CERT", GUEST_BUNDLE_PATH),
    // A host's own configuration of npm may name a file, which would win over what node trusts.
    ("npm_config_cafile", GUEST_BUNDLE_PATH),
    ("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStore=/run/stockade/ca.jks"),
];

/// The secrets of one sandbox, and the authority under which connections to their hosts are opened. Without a secret, it
/// is there for hosts whose requests are judged one by one.
pub struct SecretSet {
    secrets: Arc<[HeldSecret]>,
    mask: Arc<SecretMask>,
    /// Questions for values that this sandbox's requests have begun.
    begun: Mutex<Vec<AbortHandle>>,
    pub(crate) authority: Authority,
    pub(crate) trust: TrustStore,
}

pub(crate) struct HeldSecret {
    pub binding: SecretBinding,
    placeholder: String,
    pub supply: Arc<SecretSupply>,
}

/// The values for one request, by their placeholders.
type FetchedValues<'a> = HashMap<&'a str, CurrentValue>;

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
    pub fn new(held: Vec<(SecretBinding, Arc<SecretSupply>)>, trust: TrustStore) -> Result<Self> {
        let build = |(binding, supply)| -> Result<HeldSecret> {
            Ok(HeldSecret { binding, placeholder: make_placeholder()?, supply })
        };
        let secrets: Arc<[_]> = held.into_iter().map(build).collect::<Result<_>>()?;
        let mask = Arc::new(SecretMask::new(Arc::clone(&secrets)));
        if let Some(conflict) = mask.current().conflict {
            return Err(Error::new(ErrorCode::Invalid, "bind secrets", conflict)
                .remedy("bind them in sandboxes of their own"));
        }
        let authority = Authority::new().map_err(|error| cannot_intercept(&error))?;
        Ok(Self { secrets, mask, begun: Mutex::default(), authority, trust })
    }

    /// Has values that can be asked for again asked for before they are used again.
    pub fn mark_stale(&self, cause: RenewalCause) {
        self.secrets.iter().for_each(|secret| secret.supply.mark_stale(cause));
    }

    /// Ends the questions for values that this sandbox's requests have begun.
    pub fn stop_asking(&self) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.drain(..).for_each(|task| task.abort());
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

    /// The same certificates in the form that Java reads.
    pub fn java_store(&self) -> Bytes {
        build_java_store(&self.bundle()).into()
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
            offered: Vec::new(),
            refused: self.is_intercepted(target).then(|| describe_https_only(target)),
        })
    }

    /// For bytes of another protocol: no placeholder passes. Nothing where there is none.
    pub(crate) fn watch_raw(&self, target: &EgressTarget) -> Option<StreamWatch> {
        let block = |it: &HeldSecret| it.block(target, false, Whereabouts::Bytes);
        (!self.is_empty()).then(|| StreamWatch::new(Arc::new(self.build_patterns(block))))
    }

    /// For one request over a connection that was opened: placeholders of this host become values, and values in
    /// answers become placeholders. Values that have to be asked for again are; why there is none, otherwise.
    pub(crate) async fn filter_intercepted(
        &self,
        target: &EgressTarget,
        log: &Arc<dyn ConnectionLog>,
    ) -> Result<TrafficFilter, String> {
        let values = self.fetch_values(target, log).await?;
        if let Some(conflict) = self.mask.current().conflict {
            return Err(format!("{conflict}, and could not be masked"));
        }
        let mut bound = self.secrets.iter().filter(|secret| secret.is_bound_to(target));
        let has_body = bound.any(|secret| secret.binding.place() == SecretPlace::Body);
        let offer = |secret: &HeldSecret| secret.offer(target, &values);
        Ok(TrafficFilter {
            line: self.build_patterns(|it| it.block(target, true, Whereabouts::RequestLine)),
            head: self.build_patterns(|it| it.fill_in(target, Whereabouts::Header, &values)),
            body: Arc::new(
                self.build_patterns(|it| it.fill_in(target, Whereabouts::Body, &values)),
            ),
            length: if has_body { LengthChange::Changes } else { LengthChange::Keeps },
            mask: Some(Arc::clone(&self.mask)),
            offered: self.secrets.iter().filter_map(offer).collect(),
            refused: None,
        })
    }

    async fn fetch_values(
        &self,
        target: &EgressTarget,
        log: &Arc<dyn ConnectionLog>,
    ) -> Result<FetchedValues<'_>, String> {
        let bound = self.secrets.iter().filter(|secret| secret.is_bound_to(target));
        let (bound, host): (Vec<&HeldSecret>, _) = (bound.collect(), target.to_string());
        let mut values = FetchedValues::new();
        for held in bound {
            let secret = held.binding.name();
            let context = RenewalContext { secret, host: &host, log, begun: &self.begun };
            let fetched = held.supply.fetch_value(&context).await;
            let value = fetched.map_err(|reason| {
                format!("the value of the secret `{secret}` does not hold any more: {reason}")
            })?;
            values.insert(&held.placeholder, value);
        }
        Ok(values)
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

    fn offer(&self, target: &EgressTarget, values: &FetchedValues<'_>) -> Option<OfferedSecret> {
        let CurrentValue { generation, .. } = *values.get(self.placeholder.as_str())?;
        let (placeholder, supply) = (self.placeholder.clone(), Arc::clone(&self.supply));
        Some(OfferedSecret { placeholder, supply, host: target.to_string(), generation })
    }

    fn fill_in(
        &self,
        target: &EgressTarget,
        whereabouts: Whereabouts,
        values: &FetchedValues<'_>,
    ) -> PatternAction {
        let fits = match (whereabouts, self.binding.place()) {
            (Whereabouts::Header, SecretPlace::Header | SecretPlace::Body)
            | (Whereabouts::Body, SecretPlace::Body) => true,
            (Whereabouts::Body, SecretPlace::Header)
            | (Whereabouts::RequestLine | Whereabouts::Bytes, _) => false,
        };
        // There is a value only if it is bound to this host.
        match values.get(self.placeholder.as_str()).filter(|_| fits) {
            Some(current) => PatternAction::Replace(current.value.expose().as_bytes().to_vec()),
            None => self.block(target, true, whereabouts),
        }
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

    /// Every spelling of every value that is known, with what is shown instead.
    pub fn mask(&self) -> Vec<(Vec<u8>, PatternAction)> {
        let shown = PatternAction::Replace(self.placeholder.clone().into_bytes());
        let spell = |value: SecretValue| list_spellings(value.expose());
        let spellings = self.supply.known_values().into_iter().flat_map(spell);
        spellings.map(|text| (text, shown.clone())).collect()
    }

    /// The same in the small letters that names of headers are written in here.
    pub fn mask_names(&self) -> Vec<(Vec<u8>, PatternAction)> {
        let small = |(text, action): (Vec<u8>, _)| (text.to_ascii_lowercase(), action);
        self.mask().into_iter().map(small).collect()
    }
}

/// What is stored over HTTPS could be read back over another protocol, where nothing is masked.
pub(crate) fn describe_https_only(target: &EgressTarget) -> String {
    format!("a secret is bound to `{target}`, which is therefore reached over HTTPS only")
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use stockade_core::EgressRule;

    use super::*;
    use crate::patterns::StreamFilter;
    use crate::record::{ConnectionRecord, SecretRenewal};
    use crate::supply::{IssuedSecret, SecretIssuer};

    struct SecondValue;

    #[async_trait]
    impl SecretIssuer for SecondValue {
        async fn issue(&self) -> std::result::Result<IssuedSecret, String> {
            Ok(issue("second-value"))
        }
    }

    struct NoRecords;

    impl ConnectionLog for NoRecords {
        fn record(&self, _record: ConnectionRecord) {}

        fn observe(&self, _rule: EgressRule) {}

        fn record_renewal(&self, _renewal: SecretRenewal) {}
    }

    fn issue(value: &str) -> IssuedSecret {
        IssuedSecret { value: value.to_owned().try_into().unwrap(), expires: None }
    }

    #[tokio::test]
    async fn an_answer_that_is_under_way_is_masked_for_a_new_value_too() {
        let root = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let trust = TrustStore::from_pem(root.cert.pem().into_bytes()).unwrap();
        let supply = Arc::new(SecretSupply::new(issue("first-value"), Arc::new(SecondValue)));
        let held = vec![("KEY=a.test".parse().unwrap(), supply)];
        let set = SecretSet::new(held, trust).unwrap();
        let shown = set.placeholders().next().unwrap().1;
        let mut filter = StreamFilter::new(Arc::clone(&set.mask));
        let mut passed = filter.push(b"first-value\nsecond-value\n").unwrap();
        set.mark_stale(RenewalCause::Resumed);
        let (target, log) = (EgressTarget::parse("a.test").unwrap(), Arc::new(NoRecords));
        let log: Arc<dyn ConnectionLog> = log;
        let values = set.fetch_values(&target, &log).await.unwrap();
        assert_eq!(values[shown].value.expose(), "second-value");
        passed.extend(filter.push(b"first-value\nsecond-value\n").unwrap());
        passed.extend(filter.finish());
        let expected = format!("{shown}\nsecond-value\n{shown}\n{shown}\n");
        assert_eq!(String::from_utf8(passed).unwrap(), expected);
    }
}
