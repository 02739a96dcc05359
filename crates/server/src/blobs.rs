//! `PUT`, `GET` and `HEAD /blobs/{id}`, and `POST /blobs/{id}/upload-grant` (§5.9.3, §5.9.5).
//!
//! Bytes stream through in both directions and are never held. Whether somebody may have a blob,
//! or may be told that it is there, is the engine's to decide; nothing here looks at a blob before
//! it has. What an uploader says about the content is kept and never sent: whoever downloads gets
//! bytes of no type, to be saved and not to be shown.

use std::{collections::HashMap, sync::Arc};

use axum::{
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    response::Response,
};
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tidewater_engine::{BlobBytes, BlobGrant, BlobUpload, UploadGrant};
use tidewater_model::ErrorCode;
use tidewater_objects::SignedUrl;

use crate::{
    Server, body,
    decoding::ContentEncoding,
    error::ApiError,
    router::guard,
    transfer::{self, Object},
    upload,
};

type PathParameters = Result<Path<HashMap<String, String>>, PathRejection>;

/// `PUT /blobs/{id}`
pub(crate) async fn put(
    State(server): State<Arc<Server>>,
    path: PathParameters,
    request: Request,
) -> Response {
    guard(async move {
        let (parts, body) = request.into_parts();
        // Before authentication: a refusal must cost next to nothing.
        let upload = server.transfers.uploads.take(1);
        let _upload =
            upload.ok_or_else(|| ApiError::overloaded("the server takes too many uploads"))?;
        let identity = server.identify(&parts).await?;
        let id = blob_id(path)?;
        let (body, fault) = upload::stream(&server, &parts.headers, body)?;
        let upload = BlobUpload {
            byte_length: decoded_length(&parts.headers)?,
            media_type: media_type(&parts.headers),
            body,
        };
        if let Err(error) = server.engine.upload_blob(&identity, &id, upload).await {
            // What is wrong with the body says more than that it ended.
            return Err(fault.take().unwrap_or_else(|| error.into()));
        }
        server.transfers.counts.blob_uploads.add();
        Ok(Response::new(Body::empty()))
    })
    .await
}

/// `POST /blobs/{id}/upload-grant`
pub(crate) async fn grant_upload(
    State(server): State<Arc<Server>>,
    path: PathParameters,
    request: Request,
) -> Response {
    guard(async move {
        let (parts, body) = request.into_parts();
        let identity = server.identify(&parts).await?;
        let id = blob_id(path)?;
        let buffered = body::read(&server, &parts.headers, body).await?;
        let byte_length = announced_length(&buffered.bytes)?;
        let grant = server
            .engine
            .grant_upload(&identity, &id, byte_length)
            .await?;
        server.transfers.counts.upload_grants.add();
        Ok(answer(&match grant {
            UploadGrant::Direct => json!({}),
            UploadGrant::Present => json!({ "present": true }),
            UploadGrant::Url(url) => url_json(&url),
        }))
    })
    .await
}

/// `GET /blobs/{id}` and `HEAD /blobs/{id}`
pub(crate) async fn download(
    State(server): State<Arc<Server>>,
    path: PathParameters,
    request: Request,
) -> Response {
    guard(async move {
        let (parts, _) = request.into_parts();
        let identity = server.identify(&parts).await?;
        let id = blob_id(path)?;
        let response = match server.engine.download_blob(&identity, &id).await? {
            BlobGrant::Url(url) => answer(&url_json(&url)),
            BlobGrant::Bytes(bytes) => {
                transfer::send(&server, &parts.method, &parts.headers, object(bytes)).await?
            }
        };
        let transfers = &server.transfers;
        transfers.count(&response, &transfers.counts.blob_downloads);
        Ok(response)
    })
    .await
}

fn blob_id(path: PathParameters) -> Result<String, ApiError> {
    // By name: a prefix that the router is mounted under may have parameters of its own.
    let Path(mut path) = path.map_err(|_| ApiError::not_found())?;
    path.remove("blob_id").ok_or_else(ApiError::not_found)
}

fn object(bytes: BlobBytes) -> Object {
    let bytes = Arc::new(bytes);
    Object {
        id: bytes.blob_id.clone(),
        byte_length: bytes.byte_length,
        cache_control: HeaderValue::from_static("private, max-age=0"),
        vary: Some(HeaderValue::from_static("Authorization, Accept-Encoding")),
        // Most are compressed in a way of their own.
        coding: None,
        is_attachment: true,
        open: Arc::new(move |range| {
            let bytes = Arc::clone(&bytes);
            Box::pin(
                async move { transfer::opened(bytes.open(range).await, ErrorCode::BlobNotFound) },
            )
        }),
    }
}

/// The size that the body will have decoded, where its sender says it.
fn decoded_length(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let declared = body::declared(headers)
        .filter(|_| ContentEncoding::of(headers) == Ok(ContentEncoding::Identity));
    Ok(declared.map(|length| u64::try_from(length).unwrap_or(u64::MAX)))
}

/// What the uploader calls the content, unless that says nothing.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::CONTENT_TYPE)?.to_str().ok()?.trim();
    let says_something = !text.is_empty()
        && text.len() <= MEDIA_TYPE_BYTES_MAX
        && !text.eq_ignore_ascii_case("application/octet-stream");
    says_something.then(|| text.to_owned())
}

/// The size that a grant is asked for.
fn announced_length(body: &[u8]) -> Result<u64, ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Asked {
        byte_length: u64,
        #[serde(default, rename = "mediaType")]
        _media_type: Option<String>,
    }
    let asked: Asked = serde_json::from_slice(body).map_err(|_| {
        ApiError::unreadable("byteLength must be a whole number and mediaType text or null")
    })?;
    Ok(asked.byte_length)
}

fn url_json(url: &SignedUrl) -> Value {
    json!({ "url": url.url, "urlExpiresAtMs": url.expires_at_ms })
}

/// JSON that is for one client and for now.
fn answer(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Longer than any registered media type with its parameters.
const MEDIA_TYPE_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Option<u64>) {
        let length = announced_length(body.as_bytes());
        assert_eq!(length.as_ref().ok(), expected.as_ref(), "{body}");
        if let Err(error) = length {
            assert_eq!(error.code(), ErrorCode::InvalidRequest);
        }
    }

    #[test]
    fn a_length_is_a_whole_number_that_is_not_negative() {
        check(r#"{"byteLength":0}"#, Some(0));
        check(r#"{"byteLength":5,"mediaType":"text/plain"}"#, Some(5));
        check(r#"{"byteLength":5,"mediaType":null,"x":[1]}"#, Some(5));
        check(r#"{"byteLength":18446744073709551615}"#, Some(u64::MAX));
        for body in [
            "",
            "{}",
            "[]",
            "{",
            r#"{"byteLength":-1}"#,
            r#"{"byteLength":1.5}"#,
            r#"{"byteLength":"1"}"#,
            r#"{"byteLength":null}"#,
            r#"{"byteLength":18446744073709551616}"#,
            r#"{"byteLength":1,"mediaType":7}"#,
        ] {
            check(body, None);
        }
    }

    #[test]
    fn only_a_media_type_that_says_something_is_kept() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::try_from(text).unwrap());
            media_type(&headers)
        };
        assert_eq!(of("image/png").as_deref(), Some("image/png"));
        assert_eq!(of("Application/Octet-Stream"), None);
        assert_eq!(of(""), None);
        assert_eq!(of(&"x".repeat(256)), None);
    }
}
