//! Many instances on one port.
//!
//! `POST /instances` makes one, `/i/{id}/…` is its mount: the protocol's own routes, served by
//! the real router, and `control/…` beside them. Instances are bounded in number, so a harness
//! that forgets to delete its own learns it from an error and not from the machine.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Request, State},
    response::{IntoResponse, Response},
    routing::{delete, post},
};
use http::{StatusCode, Uri, uri::PathAndQuery};
use parking_lot::Mutex;
use serde_json::json;

use crate::{Instance, InstanceSpec, StoreKind, control};

/// Instances at once.
pub const INSTANCES_MAX: usize = 512;

/// Size of a control request: a schema document of a thousand tables fits.
const CONTROL_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Instances, by id.
pub struct Host {
    kind: StoreKind,
    /// Where instances are kept beyond the process.
    data: Option<PathBuf>,
    /// Where clients reach the host: URLs that instances give out lead there.
    address: SocketAddr,
    next: AtomicU64,
    instances: Mutex<BTreeMap<String, Arc<Instance>>>,
}

impl Host {
    /// A host without instances; those it makes live on databases of this kind.
    pub fn new(kind: StoreKind, address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            kind,
            data: None,
            address,
            next: AtomicU64::new(1),
            instances: Mutex::default(),
        })
    }

    /// A host that keeps its instances in a folder and goes on with those it finds there, under
    /// the same ids. Their databases are all that is kept: grants are gone and clocks start over.
    pub async fn open(kind: StoreKind, data: PathBuf, address: SocketAddr) -> Result<Arc<Self>> {
        ensure!(
            kind == StoreKind::Sqlite,
            "only SQLite databases can be kept"
        );
        fs::create_dir_all(&data).context("make the data folder")?;
        let mut instances = BTreeMap::new();
        let mut next = 1;
        for entry in fs::read_dir(&data).context("read the data folder")? {
            let folder = entry?.path();
            let Some(number) = instance_number(&folder) else {
                continue;
            };
            let Some(mut spec) = InstanceSpec::read(&folder)? else {
                // Killed while it was made.
                continue;
            };
            // Names that an earlier process gave must not come again.
            spec.seed = Some(moment());
            let id = instance_id(number);
            let mount = mount(address, &id);
            let instance = Instance::create(&spec, kind, Some(folder), &mount).await?;
            instances.insert(id, instance);
            next = next.max(number + 1);
        }
        let (next, instances) = (AtomicU64::new(next), Mutex::new(instances));
        Ok(Arc::new(Self {
            kind,
            data: Some(data),
            address,
            next,
            instances,
        }))
    }

    /// Makes an instance and returns its id.
    pub async fn create(&self, spec: &InstanceSpec) -> Result<(String, Arc<Instance>)> {
        ensure!(
            self.instances.lock().len() < INSTANCES_MAX,
            "there are {INSTANCES_MAX} instances already: delete some"
        );
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = instance_id(number);
        let mut spec = spec.clone();
        spec.seed.get_or_insert(number);
        let folder = self.folder(&id);
        if let Some(folder) = &folder {
            fs::create_dir(folder).context("make a folder for the instance")?;
        }
        let mount = mount(self.address, &id);
        let instance = match Instance::create(&spec, self.kind, folder, &mount).await {
            Ok(instance) => instance,
            Err(error) => {
                self.remove_folder(&id);
                return Err(error);
            }
        };
        self.instances
            .lock()
            .insert(id.clone(), Arc::clone(&instance));
        Ok((id, instance))
    }

    /// The instance with this id.
    pub fn find(&self, id: &str) -> Option<Arc<Instance>> {
        self.instances.lock().get(id).cloned()
    }

    /// Forgets an instance; its database goes with the last request to it.
    pub fn delete(&self, id: &str) -> bool {
        let removed = self.instances.lock().remove(id);
        self.remove_folder(id);
        removed.is_some()
    }

    fn folder(&self, id: &str) -> Option<PathBuf> {
        self.data.as_ref().map(|data| data.join(id))
    }

    /// What cannot be removed is found again, which is the worst that can happen.
    fn remove_folder(&self, id: &str) {
        if let Some(folder) = self
            .folder(id)
            .filter(|folder| instance_number(folder).is_some())
        {
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// Everything the host serves.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/instances", post(create))
            .route("/instances/{id}", delete(remove))
            .fallback(mounted)
            .layer(DefaultBodyLimit::max(CONTROL_BYTES_MAX))
            .with_state(Arc::clone(self))
    }
}

fn instance_id(number: u64) -> String {
    format!("i{number}")
}

/// Nanoseconds since some moment of the past.
fn moment() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The number of the instance that a folder belongs to.
fn instance_number(folder: &FilePath) -> Option<u64> {
    folder
        .file_name()?
        .to_str()?
        .strip_prefix('i')?
        .parse()
        .ok()
}

async fn create(State(host): State<Arc<Host>>, body: Bytes) -> Response {
    let spec: InstanceSpec = match serde_json::from_slice(&body) {
        Ok(spec) => spec,
        Err(error) => return failure(StatusCode::BAD_REQUEST, error),
    };
    match host.create(&spec).await {
        Ok((id, _)) => Json(json!({ "id": id })).into_response(),
        Err(error) => failure(StatusCode::BAD_REQUEST, format!("{error:#}")),
    }
}

async fn remove(State(host): State<Arc<Host>>, Path(id): Path<String>) -> Response {
    let Some(instance) = host.find(&id) else {
        return unknown_instance();
    };
    host.delete(&id);
    // They would keep it alive.
    instance.end_sockets().await;
    Json(json!({})).into_response()
}

/// Everything below `/i/{id}`.
///
/// The path is taken apart here and not by a route: parameters of an outer route would be
/// parameters of the inner one too.
async fn mounted(State(host): State<Arc<Host>>, mut request: Request) -> Response {
    let path = request
        .uri()
        .path_and_query()
        .map_or("", PathAndQuery::as_str);
    let Some((id, below)) = split_mount(path) else {
        return failure(StatusCode::NOT_FOUND, "there is nothing at this path");
    };
    let Some(instance) = host.find(id) else {
        return unknown_instance();
    };
    let Some(uri) = with_path(request.uri(), below) else {
        return failure(StatusCode::BAD_REQUEST, "the path cannot be read");
    };
    *request.uri_mut() = uri;
    let (action, token) = (
        rest_of(request.uri(), "/control/"),
        rest_of(request.uri(), "/bucket/"),
    );
    match (action, token) {
        (Some(action), _) => control::answer(&instance, &action, request).await,
        (None, Some(token)) => instance.answer_as_bucket(&token, request).await,
        (None, None) => instance.answer(request).await,
    }
}

/// What of a path comes after a prefix.
fn rest_of(uri: &Uri, prefix: &str) -> Option<String> {
    uri.path().strip_prefix(prefix).map(str::to_owned)
}

/// Where clients reach an instance.
fn mount(address: SocketAddr, id: &str) -> String {
    format!("http://{address}/i/{id}")
}

/// The id of an instance and the address below its mount, with its escapes as they came.
fn split_mount(path_and_query: &str) -> Option<(&str, &str)> {
    let mounted = path_and_query.strip_prefix("/i/")?;
    Some(mounted.split_at(mounted.find('/')?))
}

fn with_path(uri: &Uri, path_and_query: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path_and_query).ok()?);
    Uri::from_parts(parts).ok()
}

/// A control request that could not be answered.
pub(crate) fn failure(status: StatusCode, error: impl ToString) -> Response {
    (status, Json(json!({ "error": error.to_string() }))).into_response()
}

fn unknown_instance() -> Response {
    failure(StatusCode::NOT_FOUND, "there is no such instance")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<(&str, &str)>) {
        assert_eq!(split_mount(path), expected);
    }

    #[test]
    fn the_mount_is_taken_off_and_the_rest_stays_byte_for_byte() {
        check("/i/i1/sync", Some(("i1", "/sync")));
        check(
            "/i/i1/segments/a%3Ab?st=x%20y",
            Some(("i1", "/segments/a%3Ab?st=x%20y")),
        );
        check("/i/i1", None);
        check("/elsewhere", None);
    }
}
