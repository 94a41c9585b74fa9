//! What is done to the requests and answers of one connection for the sake of secrets. A request passes as a
//! whole or not at all, up to its body; of an answer everything that is shown passes through here.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName, IF_RANGE, RANGE, TE, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};

use crate::filtered_body::{
    FilteredBody, LengthChange, RefusalSlot, RelayBody, RequestError, filter_body,
};
use crate::patterns::Patterns;
use crate::secret_mask::{BuiltMask, SecretMask};
use crate::supply::SecretSupply;

/// The scheme of authorization whose text is encoded.
const BASIC_SCHEME: &str = "basic ";

/// What is looked for in the requests and answers of one connection, or in one request and its answer where values are
/// put in.
pub struct TrafficFilter {
    /// In the request line and in names of headers.
    pub line: Patterns,
    /// In values of headers.
    pub head: Patterns,
    /// In bodies of requests.
    pub body: Arc<Patterns>,
    /// What that does to the length of a body.
    pub length: LengthChange,
    /// In answers. Only where this process has opened the connection.
    pub mask: Option<Arc<SecretMask>>,
    /// The values that may be put in.
    pub offered: Vec<OfferedSecret>,
    /// Why no request at all passes.
    pub refused: Option<String>,
}

/// A value that is put into a request where its placeholder stands.
pub struct OfferedSecret {
    pub placeholder: String,
    pub supply: Arc<SecretSupply>,
    /// The host that it is put in for, in canonical form.
    pub host: String,
    /// Which of its values it is.
    pub generation: u64,
}

impl TrafficFilter {
    /// Whether the connection was opened: then it carries nothing that could not be looked at.
    pub fn is_intercepted(&self) -> bool {
        self.mask.is_some()
    }

    /// The request as the server gets it.
    pub async fn filter_request(
        &self,
        request: Request<Incoming>,
        refusal: &RefusalSlot,
    ) -> Result<Request<RelayBody>, RequestError> {
        if let Some(reason) = &self.refused {
            return Err(RequestError::refuse(reason.as_str()));
        }
        let (mut parts, body) = request.into_parts();
        let line = format!("{} {}", parts.method, parts.uri);
        self.line.apply(line.as_bytes()).map_err(RequestError::refuse)?;
        self.rewrite_headers(&mut parts.headers).map_err(RequestError::refuse)?;
        if self.is_intercepted() {
            ask_for_plain_answer(&mut parts.headers);
            parts.version = Version::HTTP_11;
        }
        let headers = &mut parts.headers;
        let patterns = Arc::clone(&self.body);
        let body = filter_body(body, headers, patterns, self.length, refusal).await?;
        Ok(Request::from_parts(parts, body))
    }

    /// Hears how the server has answered: a value that it does not take is asked for again.
    pub fn note_status(&self, status: StatusCode) {
        if status != StatusCode::UNAUTHORIZED {
            return;
        }
        for OfferedSecret { placeholder, supply, host, generation } in &self.offered {
            let text = placeholder.as_bytes();
            // Many clients ask without a value first, to learn whether one is wanted.
            if self.head.has_replaced(text) || self.body.has_replaced(text) {
                supply.note_unauthorized(*generation, host);
            }
        }
    }

    fn rewrite_headers(&self, headers: &mut HeaderMap) -> Result<(), String> {
        for name in headers.keys() {
            self.line.apply(name.as_str().as_bytes())?;
        }
        for value in headers.values_mut() {
            if let Some(rewritten) = self.rewrite_value(value.as_bytes())? {
                *value = to_header_value(&rewritten)?;
                value.set_sensitive(true);
            }
        }
        Ok(())
    }

    /// Nothing if it stays as it is.
    fn rewrite_value(&self, value: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let Some((scheme, encoded)) = value.split_at_checked(BASIC_SCHEME.len()) else {
            return self.head.apply(value);
        };
        if !scheme.eq_ignore_ascii_case(BASIC_SCHEME.as_bytes()) {
            return self.head.apply(value);
        }
        let Ok(decoded) = STANDARD.decode(encoded.trim_ascii()) else {
            return self.head.apply(value);
        };
        let rewritten = self.head.apply(&decoded)?;
        Ok(rewritten.map(|text| format!("Basic {}", STANDARD.encode(text)).into_bytes()))
    }

    /// The answer as the program gets it.
    pub async fn filter_response(
        &self,
        response: Response<Incoming>,
        refusal: &RefusalSlot,
    ) -> Result<Response<RelayBody>, RequestError> {
        let Some(mask) = &self.mask else {
            return Ok(response.map(pass_unfiltered));
        };
        let (mut parts, body) = response.into_parts();
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            let reason = "the server went over to another protocol, unasked";
            return Err(RequestError::Failed(reason.into()));
        }
        if parts.status == StatusCode::PARTIAL_CONTENT {
            let reason =
                "the server answers in parts, unasked: a secret that is cut could not be masked";
            return Err(RequestError::Failed(reason.into()));
        }
        if !body.is_end_stream() && is_encoded(&parts.headers) {
            let reason = "the server compresses its answer although it was asked not to: a secret in it \
                          could not be masked";
            return Err(RequestError::Failed(reason.into()));
        }
        // The words behind the status among them.
        parts.extensions.clear();
        let headers = &mut parts.headers;
        let BuiltMask { texts, names, .. } = mask.current();
        remove_masked_names(headers, &names);
        mask_headers(headers, &texts).map_err(RequestError::refuse)?;
        let mask = Arc::clone(mask);
        let body = filter_body(body, headers, mask, LengthChange::Changes, refusal).await?;
        Ok(Response::from_parts(parts, body))
    }
}

/// A body that is relayed as it is.
pub fn pass_unfiltered(body: Incoming) -> RelayBody {
    RelayBody::Left(FilteredBody::unfiltered(body))
}

fn to_header_value(text: &[u8]) -> Result<HeaderValue, String> {
    HeaderValue::from_bytes(text).map_err(|_| "a secret cannot stand in a header".into())
}

/// A name cannot be masked: what stands for a secret there would be another header.
fn remove_masked_names(headers: &mut HeaderMap, names: &Patterns) {
    let is_telling = |name: &HeaderName| !matches!(names.apply(name.as_str().as_bytes()), Ok(None));
    let telling: Vec<HeaderName> =
        headers.keys().filter(|name| is_telling(name)).cloned().collect();
    for name in telling {
        headers.remove(name);
    }
}

fn mask_headers(headers: &mut HeaderMap, mask: &Patterns) -> Result<(), String> {
    for value in headers.values_mut() {
        if let Some(masked) = mask.apply(value.as_bytes())? {
            *value = to_header_value(&masked)?;
        }
    }
    Ok(())
}

/// An answer has to be plain and whole, or a secret in it could not be found.
fn ask_for_plain_answer(headers: &mut HeaderMap) {
    let partial: [HeaderName; 3] = [RANGE, IF_RANGE, TE];
    for header in partial {
        headers.remove(header);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let is_other = |header: HeaderName, plain: &'static [u8]| {
        let mut values = headers.get_all(header).into_iter();
        values.any(|value| !value.as_bytes().eq_ignore_ascii_case(plain))
    };
    is_other(CONTENT_ENCODING, b"identity") || is_other(TRANSFER_ENCODING, b"chunked")
}
