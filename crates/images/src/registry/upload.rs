//! Writing to a repository: blobs that it lacks, then the manifest that names them.
//!
//! A registry names the place of each upload. That place is held to what redirects are held to: TLS unless the
//! registry has none, no private address unless the registry has one, and no authorization for another host.

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};

use super::body::{FileUpload, RequestBody};
use super::endpoint::Target;
use super::http::Exchange;
use super::session::Session;
use crate::{Digest, ImageError};

/// How often an upload is begun anew after its connection was lost or its authorization ran out.
const MAX_UPLOAD_ATTEMPTS: usize = 3;
const BLOB_TYPE: &str = "application/octet-stream";
const DIGEST_HEADER: &str = "docker-content-digest";

/// How an upload ended.
enum UploadEnd {
    Stored,
    /// The authorization had run out, and there is a new one.
    Reauthorized,
}

impl Session {
    /// Whether the repository has a blob.
    pub async fn has_blob(&self, digest: &Digest) -> Result<bool, ImageError> {
        let header = (ACCEPT, HeaderValue::from_static("*/*"));
        let (exchange, at) = self.ask(Method::HEAD, &format!("/blobs/{digest}"), header).await?;
        match exchange.status {
            status if status.is_success() => Ok(true),
            // Another host that cannot say is no reason to fail: the blob is sent again.
            StatusCode::NOT_FOUND => Ok(false),
            _ if at != self.base => Ok(false),
            status => Err(self.status_error(status)),
        }
    }

    /// Sends a blob, begun anew where its connection is lost.
    pub async fn upload_blob(
        &self,
        digest: &Digest,
        open: impl Fn() -> Result<FileUpload, ImageError>,
    ) -> Result<(), ImageError> {
        for attempt in 1.. {
            match self.try_upload(digest, open()?).await {
                Ok(UploadEnd::Stored) => return Ok(()),
                Ok(UploadEnd::Reauthorized) | Err(ImageError::Unreachable { .. })
                    if attempt < MAX_UPLOAD_ATTEMPTS => {}
                Ok(UploadEnd::Reauthorized) => {
                    return Err(self.status_error(StatusCode::UNAUTHORIZED));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn try_upload(
        &self,
        digest: &Digest,
        upload: FileUpload,
    ) -> Result<UploadEnd, ImageError> {
        let mut target = self.begin_upload().await?;
        let joint = if target.path.contains('?') { '&' } else { '?' };
        target.path = format!("{}{joint}digest={digest}", target.path);
        let used = self.authorization.lock().await.clone();
        let exchange = self.put(&target, BLOB_TYPE, used.as_ref(), upload.into_body()).await?;
        match exchange.status {
            status if status.is_success() => {
                check_said_digest(&exchange.headers, digest).map(|()| UploadEnd::Stored)
            }
            StatusCode::UNAUTHORIZED if target.endpoint == self.base => {
                self.authorize(used.as_ref(), &exchange.headers).await?;
                Ok(UploadEnd::Reauthorized)
            }
            status if target.endpoint == self.base => Err(self.status_error(status)),
            status => {
                let host = target.endpoint.authority();
                Err(ImageError::Status { host, status: status.as_u16() })
            }
        }
    }

    /// The place that the registry names for an upload.
    async fn begin_upload(&self) -> Result<Target, ImageError> {
        let (uploads, header) = ("/blobs/uploads/", (ACCEPT, HeaderValue::from_static("*/*")));
        let (exchange, _) = self.ask(Method::POST, uploads, header).await?;
        match exchange.status {
            StatusCode::ACCEPTED => {
                self.redirect_target(&self.resource(uploads), &exchange.headers)
            }
            status if status.is_success() => {
                Err(self.protocol_error("it names no place for an upload"))
            }
            status => Err(self.status_error(status)),
        }
    }

    /// Stores a manifest by its tag or its digest.
    pub async fn upload_manifest(
        &self,
        version: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), ImageError> {
        let target = self.resource(&format!("/manifests/{version}"));
        let body = || RequestBody::whole(bytes.to_owned());
        let used = self.authorization.lock().await.clone();
        let mut exchange = self.put(&target, media_type, used.as_ref(), body()).await?;
        if exchange.status == StatusCode::UNAUTHORIZED {
            let fresh = self.authorize(used.as_ref(), &exchange.headers).await?;
            exchange = self.put(&target, media_type, Some(&fresh), body()).await?;
        }
        match exchange.status {
            status if status.is_success() => {
                check_said_digest(&exchange.headers, &Digest::of(bytes))
            }
            status => Err(self.status_error(status)),
        }
    }

    /// Sends a body, with the authorization only where that goes to the registry itself.
    async fn put(
        &self,
        target: &Target,
        media_type: &str,
        authorization: Option<&HeaderValue>,
        body: RequestBody,
    ) -> Result<Exchange, ImageError> {
        let request = Request::builder().method(Method::PUT).header(CONTENT_TYPE, media_type);
        let own = target.endpoint == self.base;
        let request = match authorization.filter(|_| own) {
            Some(authorization) => request.header(AUTHORIZATION, authorization),
            None => request,
        };
        self.send(target, request, body).await
    }
}

/// Refuses a registry that says that it has stored something else.
fn check_said_digest(headers: &HeaderMap, expected: &Digest) -> Result<(), ImageError> {
    let said = headers.get(DIGEST_HEADER).and_then(|value| value.to_str().ok());
    match said.map(str::parse::<Digest>) {
        Some(Ok(actual)) if actual != *expected => Err(ImageError::DigestMismatch {
            what: "what the registry has stored".to_owned(),
            expected: expected.clone(),
            actual,
        }),
        Some(_) | None => Ok(()),
    }
}
