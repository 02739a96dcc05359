//! What an operator can have done at once, over HTTP.
//!
//! Open to whoever has the admin token, and to nobody where there is none: the routes are then
//! not there. Unlike the console these change something, so a browser's word is not enough.

use std::sync::Arc;

use axum::{
    Router,
    body::to_bytes,
    extract::{Request, State},
    response::Response,
    routing::post,
};
use http::request::Parts;
use serde::Deserialize;
use serde_json::json;
use tidewater_model::{ActorId, PartitionId};

use crate::{
    RequestHead, Secret, Server,
    auth::{bearer_token, digest},
    error::ApiError,
    reply,
    router::{guard, only},
};

/// Adds the operator's routes.
pub(crate) fn add_routes(router: Router<Arc<Server>>) -> Router<Arc<Server>> {
    router.route("/admin/refresh-scopes", only(post(refresh_scopes), "POST"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RefreshScopes {
    partition: String,
    actor_id: Option<String>,
}

/// `POST /admin/refresh-scopes`
async fn refresh_scopes(State(server): State<Arc<Server>>, request: Request) -> Response {
    guard(async move {
        let (parts, body) = request.into_parts();
        check(&server, &parts)?;
        let body = to_bytes(body, BODY_BYTES_MAX)
            .await
            .map_err(|_| ApiError::too_large(BODY_BYTES_MAX))?;
        let wish: RefreshScopes = serde_json::from_slice(&body)
            .map_err(|_| ApiError::unreadable("the body is not {partition, actorId?}"))?;
        let partition = PartitionId::new(wish.partition);
        let actor = wish.actor_id.map(ActorId::new);
        server
            .engine
            .refresh_scopes(&partition, actor.as_ref())
            .await;
        Ok(reply::json(&json!({})))
    })
    .await
}

fn check(server: &Server, parts: &Parts) -> Result<(), ApiError> {
    let head = RequestHead {
        method: &parts.method,
        uri: &parts.uri,
        headers: &parts.headers,
        peer: None,
    };
    let is_admin = server
        .admin_token
        .as_ref()
        .filter(|token| !token.is_empty())
        .zip(bearer_token(&head))
        .is_some_and(|(token, sent): (&Secret, &str)| digest(sent) == digest(token.expose()));
    is_admin.then_some(()).ok_or_else(ApiError::auth_required)
}

const BODY_BYTES_MAX: usize = 16 * 1024;
