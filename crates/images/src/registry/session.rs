//! One repository of one registry, or of its mirror: manifests and blobs, with authorization and redirects.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION, RANGE, USER_AGENT};
use http::header::{CONTENT_RANGE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use stockade_core::{classify_special, clean_foreign};
use tokio::sync::Mutex;

use super::auth::{self, Challenge, RepositoryAccess};
use super::body::RequestBody;
use super::connect::{Reach, tls_connector};
use super::credentials::CredentialFiles;
use super::endpoint::{Endpoint, Target};
use super::http::{BodyReader, Exchange, HttpClient};
use super::rate::RateLimit;
use crate::manifest::ACCEPTED_TYPES;
use crate::{Digest, ImageError, ImageReference, PullOptions, RegistrySettings};

/// Upper bound of the redirects of one request.
const MAX_REDIRECTS: usize = 5;
const FORM_TYPE: &str = "application/x-www-form-urlencoded";
const CLIENT_NAME: &str = concat!("stockade/", env!("CARGO_PKG_VERSION"));

/// Reads one repository, and writes it for a push.
pub(crate) struct Session {
    http: HttpClient,
    /// The registry or mirror, as the operator names it.
    source: String,
    pub(super) base: Endpoint,
    /// `/v2/REPOSITORY`.
    prefix: String,
    repository: String,
    access: RepositoryAccess,
    settings: RegistrySettings,
    credentials: CredentialFiles,
    pub(super) authorization: Mutex<Option<HeaderValue>>,
    /// Whether the registry itself has an address that is not public.
    is_private: AtomicBool,
}

/// A manifest or an index as it arrived.
pub(crate) struct FetchedDocument {
    pub bytes: Vec<u8>,
    pub media_type: String,
    pub digest: Digest,
}

/// Where in a blob an answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobStart(pub u64);

/// The mirrors of a reference's registry, in their order, and the registry itself.
pub(crate) fn open_sessions(
    reference: &ImageReference,
    options: &PullOptions,
) -> Result<Vec<Session>, ImageError> {
    options.registries.check()?;
    let settings = options.registries.of(reference.registry());
    let mirrors = settings.mirrors.iter().map(|mirror| {
        let (host, path) = mirror.split_once('/').unwrap_or((mirror, ""));
        let path = path.trim_matches('/');
        let below = if path.is_empty() { "" } else { "/" };
        let repository = format!("{path}{below}{}", reference.repository());
        Session::open(host, repository, RepositoryAccess::Pull, options)
    });
    let registry = || open_own_session(reference, RepositoryAccess::Pull, options);
    mirrors.chain(std::iter::once_with(registry)).collect()
}

/// The registry of a reference, to be written. Never a mirror: what it has is not its own.
pub(crate) fn open_push_session(
    reference: &ImageReference,
    options: &PullOptions,
) -> Result<Session, ImageError> {
    options.registries.check()?;
    open_own_session(reference, RepositoryAccess::Push, options)
}

fn open_own_session(
    reference: &ImageReference,
    access: RepositoryAccess,
    options: &PullOptions,
) -> Result<Session, ImageError> {
    Session::open(reference.registry(), reference.repository().to_owned(), access, options)
}

impl Session {
    fn open(
        source: &str,
        repository: String,
        access: RepositoryAccess,
        options: &PullOptions,
    ) -> Result<Self, ImageError> {
        let settings = options.registries.of(source);
        let base = Endpoint::of_registry(source, settings.insecure, settings.ca_file.is_some());
        let base =
            base.ok_or_else(|| ImageError::Settings(format!("`{source}` is no registry")))?;
        let tls = tls_connector(settings.ca_file.as_deref())?;
        Ok(Self {
            http: HttpClient {
                tls,
                stall: options.limits.stall_timeout(),
                proxies: options.proxies.read()?,
            },
            source: source.to_owned(),
            base,
            prefix: format!("/v2/{repository}"),
            repository,
            access,
            settings,
            credentials: options.credentials.clone(),
            authorization: Mutex::new(None),
            is_private: AtomicBool::new(false),
        })
    }

    /// The registry or mirror.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Fetches a manifest or an index by tag or digest. Its digest is computed, not believed.
    pub async fn fetch_document(
        &self,
        version: &str,
        limit: u64,
    ) -> Result<FetchedDocument, ImageError> {
        let accept = HeaderValue::from_static(accept_header());
        let exchange = self.get(&format!("/manifests/{version}"), ACCEPT, accept).await?;
        let media_type = exchange.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default();
        let media_type = media_type.trim().to_owned();
        let promised = exchange.headers.get("docker-content-digest").cloned();
        let bytes = exchange.body.read_all("a manifest", limit).await?;
        let digest = Digest::of(&bytes);
        let promised = promised.as_ref().and_then(|value| value.to_str().ok());
        if let Some(Ok(promised)) = promised.map(str::parse::<Digest>)
            && promised != digest
        {
            let what = "its manifest".to_owned();
            return Err(ImageError::DigestMismatch { what, expected: promised, actual: digest });
        }
        Ok(FetchedDocument { bytes, media_type, digest })
    }

    /// Begins to fetch a blob from an offset on. A registry that cannot do that begins at its start.
    pub async fn open_blob(
        &self,
        digest: &Digest,
        offset: u64,
    ) -> Result<(BlobStart, BodyReader), ImageError> {
        let range = HeaderValue::from_str(&format!("bytes={offset}-"));
        let range = range.map_err(|_| self.protocol_error("no range"))?;
        let (name, value) = match offset {
            0 => (ACCEPT, HeaderValue::from_static("*/*")),
            _ => (RANGE, range),
        };
        let exchange = self.get(&format!("/blobs/{digest}"), name, value).await?;
        match exchange.status {
            StatusCode::PARTIAL_CONTENT if offset > 0 => {
                let range =
                    exchange.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                match range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')) {
                    Some((start, _)) if start.trim() == offset.to_string() => {
                        Ok((BlobStart(offset), exchange.body))
                    }
                    Some(_) | None => {
                        Err(self.protocol_error("it sent another part than was asked for"))
                    }
                }
            }
            StatusCode::OK => Ok((BlobStart(0), exchange.body)),
            status => Err(self.status_error(status)),
        }
    }

    pub(super) fn protocol_error(&self, what: &str) -> ImageError {
        ImageError::Protocol { host: self.source.clone(), what: what.to_owned() }
    }

    pub(super) fn status_error(&self, status: StatusCode) -> ImageError {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.unauthorized(),
            other => ImageError::Status { host: self.source.clone(), status: other.as_u16() },
        }
    }

    fn unauthorized(&self) -> ImageError {
        let (registry, repository) = (self.source.clone(), self.repository.clone());
        match self.access {
            RepositoryAccess::Pull => ImageError::Unauthorized { registry, repository },
            RepositoryAccess::Push => ImageError::PushDenied { registry, repository },
        }
    }

    /// A successful answer, with authorization where the registry asks for it.
    async fn get(
        &self,
        resource: &str,
        name: HeaderName,
        value: HeaderValue,
    ) -> Result<Exchange, ImageError> {
        let (exchange, at) = self.ask(Method::GET, resource, (name, value)).await?;
        match exchange.status {
            status if status.is_success() => Ok(exchange),
            status if at == self.base => Err(self.status_error(status)),
            status => Err(ImageError::Status { host: at.authority(), status: status.as_u16() }),
        }
    }

    /// A resource of the repository.
    pub(super) fn resource(&self, resource: &str) -> Target {
        Target { endpoint: self.base.clone(), path: format!("{}{resource}", self.prefix) }
    }

    /// Sends a request without a body, with authorization where the registry asks for it; answers with the host
    /// that answered too.
    pub(super) async fn ask(
        &self,
        method: Method,
        resource: &str,
        header: (HeaderName, HeaderValue),
    ) -> Result<(Exchange, Endpoint), ImageError> {
        let target = self.resource(resource);
        let used = self.authorization.lock().await.clone();
        let (exchange, at) = self.follow(&target, &method, &header, used.as_ref()).await?;
        if exchange.status != StatusCode::UNAUTHORIZED || at != self.base {
            return Ok((exchange, at));
        }
        let fresh = self.authorize(used.as_ref(), &exchange.headers).await?;
        self.follow(&target, &method, &header, Some(&fresh)).await
    }

    /// Follows redirects of what reads, and answers with where they ended.
    async fn follow(
        &self,
        first: &Target,
        method: &Method,
        header: &(HeaderName, HeaderValue),
        authorization: Option<&HeaderValue>,
    ) -> Result<(Exchange, Endpoint), ImageError> {
        let mut target = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            let own = target.endpoint == self.base;
            let build = || {
                let request = Request::builder().method(method).header(&header.0, &header.1);
                match authorization.filter(|_| own) {
                    Some(authorization) => request.header(AUTHORIZATION, authorization),
                    None => request,
                }
            };
            let exchange = self.send_within_rate(&target, build, &Bytes::new()).await?;
            if !is_redirect(exchange.status) {
                return Ok((exchange, target.endpoint));
            }
            if !matches!(*method, Method::GET | Method::HEAD) {
                return Err(self.protocol_error("it redirects what is to be written"));
            }
            target = self.redirect_target(&target, &exchange.headers)?;
        }
        Err(self.protocol_error("it redirects without end"))
    }

    /// Sends a request that changes nothing, again where the host limits how often it is asked.
    async fn send_within_rate(
        &self,
        target: &Target,
        build: impl Fn() -> http::request::Builder,
        body: &Bytes,
    ) -> Result<Exchange, ImageError> {
        let mut limit = RateLimit::new(self.http.stall);
        loop {
            let exchange = self.send(target, build(), RequestBody::whole(body.clone())).await?;
            let host = target.endpoint.authority();
            match limit.wait_after(&host, exchange.status, &exchange.headers)? {
                None => return Ok(exchange),
                Some(wait) => {
                    // Its connection is not kept meanwhile.
                    drop(exchange);
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    pub(super) async fn send(
        &self,
        target: &Target,
        request: http::request::Builder,
        body: RequestBody,
    ) -> Result<Exchange, ImageError> {
        let request = request
            .uri(&target.path)
            .header(HOST, target.endpoint.authority())
            .header(USER_AGENT, CLIENT_NAME)
            .body(body)
            .map_err(|error| self.protocol_error(&error.to_string()))?;
        let own = target.endpoint == self.base;
        let reach = match (own, self.is_private.load(Ordering::Relaxed)) {
            (true, _) => Reach::Any,
            (false, true) => Reach::Private,
            (false, false) => Reach::Public,
        };
        let exchange = self.http.send(&target.endpoint, reach, request).await?;
        if own {
            let private = exchange.peer.is_some_and(|peer| classify_special(peer).is_some());
            self.is_private.store(private, Ordering::Relaxed);
        }
        Ok(exchange)
    }

    /// Where a `Location` leads, of a redirect or of an upload.
    pub(super) fn redirect_target(
        &self,
        from: &Target,
        headers: &HeaderMap,
    ) -> Result<Target, ImageError> {
        let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let target = location.and_then(|location| from.resolve_location(location));
        let target = target.ok_or_else(|| ImageError::Redirect {
            host: from.endpoint.authority(),
            target: clean_foreign(location.unwrap_or_default()),
            reason: "which is no place of a registry".to_owned(),
        })?;
        match target.endpoint.tls || !self.base.tls {
            true => Ok(target),
            false => Err(ImageError::Redirect {
                host: from.endpoint.authority(),
                target: target.endpoint.authority(),
                reason: "which has no TLS".to_owned(),
            }),
        }
    }

    /// The authorization that the registry asks for. Layers are fetched side by side: the first that is asked
    /// gets it, the others take that.
    pub(super) async fn authorize(
        &self,
        used: Option<&HeaderValue>,
        headers: &HeaderMap,
    ) -> Result<HeaderValue, ImageError> {
        let mut current = self.authorization.lock().await;
        if let Some(current) = current.as_ref().filter(|current| Some(*current) != used) {
            return Ok(current.clone());
        }
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = challenges.filter_map(|value| Challenge::parse(value.to_str().ok()?));
        let challenge = challenges.next().ok_or_else(|| self.unauthorized())?;
        let file = self.settings.credentials_file.as_deref();
        let credentials = self.credentials.find(file, &self.source, &self.repository).await?;
        let fresh = match (challenge, credentials) {
            (
                Challenge::Basic,
                Some(super::credentials::Credentials::Password { user, password }),
            ) => auth::basic_header(&user, &password).ok_or_else(|| self.unauthorized())?,
            (Challenge::Basic, Some(super::credentials::Credentials::IdentityToken(_)) | None) => {
                return Err(self.unauthorized());
            }
            (Challenge::Bearer { realm, service }, credentials) => {
                let scope = (self.repository.as_str(), self.access);
                let request = auth::token_request(service.as_deref(), scope, credentials.as_ref());
                self.fetch_token(&realm, request).await?
            }
        };
        Ok(current.insert(fresh).clone())
    }

    async fn fetch_token(
        &self,
        realm: &str,
        request: auth::TokenRequest,
    ) -> Result<HeaderValue, ImageError> {
        let mut target = self.realm_target(realm)?;
        let body = match request.is_form {
            true => Bytes::from(request.query),
            false => {
                let joint = if target.path.contains('?') { '&' } else { '?' };
                target.path = format!("{}{joint}{}", target.path, request.query);
                Bytes::new()
            }
        };
        let build = || {
            let builder = match request.is_form {
                true => Request::builder().method(Method::POST).header(CONTENT_TYPE, FORM_TYPE),
                false => Request::builder().method(Method::GET),
            };
            match &request.authorization {
                Some(authorization) => builder.header(AUTHORIZATION, authorization),
                None => builder,
            }
        };
        let exchange = self.send_within_rate(&target, build, &body).await?;
        match exchange.status {
            StatusCode::OK => {
                let answer = exchange.body.read_all("a token", auth::MAX_TOKEN_BYTES).await?;
                let no_token = || self.protocol_error("it gave no token");
                auth::bearer_header(&answer).ok_or_else(no_token)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.unauthorized()),
            status => Err(ImageError::Status {
                host: target.endpoint.authority(),
                status: status.as_u16(),
            }),
        }
    }

    /// Where tokens are had: credentials go there, so it is the registry itself or a host with TLS.
    fn realm_target(&self, realm: &str) -> Result<Target, ImageError> {
        let target = Target::parse(realm);
        match target {
            Some(target) if target.endpoint.tls || target.endpoint == self.base => Ok(target),
            Some(_) | None => Err(ImageError::Redirect {
                host: self.source.clone(),
                target: clean_foreign(realm),
                reason: "for tokens, which is neither itself nor has TLS".to_owned(),
            }),
        }
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn accept_header() -> &'static str {
    static ACCEPT_HEADER: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ACCEPT_HEADER.get_or_init(|| ACCEPTED_TYPES.join(", "))
}
