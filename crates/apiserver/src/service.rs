//! The server as a service: a request in, an answer out, with or without a socket.

use std::{
    convert::Infallible,
    env,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, request::Parts};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use moorline_machinery::{gvk::GroupVersionResource, status::ApiError};
use serde_json::json;
use tower_service::Service;

use crate::{
    auth::{Action, ResourceAction, User, issuer_discovery},
    body::Body,
    core::Core,
    discovery, negotiate, openapi,
    path::{self, ResourcePath, Verb},
    query::Query,
    resource::ResourceType,
    respond,
    rest::{self, Asides, Call},
    streams::{self, RequestBody, StreamCall},
};

/// The most bytes that a request may carry, as in Kubernetes.
const BODY_LIMIT: usize = 3 << 20;

/// How long a request may take to arrive whole.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// The API server for one user: what `kube::Client::new` sits on, and what a listener calls once it knows who calls.
#[derive(Clone)]
pub struct ApiService {
    core: Arc<Core>,
    user: Arc<User>,
}

impl ApiService {
    /// The server as `user` meets it.
    pub fn new(core: Arc<Core>, user: User) -> Self {
        Self {
            core,
            user: Arc::new(user),
        }
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let is_head = parts.method == Method::HEAD;
        let result = match path::parse(parts.uri.path()).filter(streams::leads_into_a_pod) {
            Some(path) => self.stream(parts, &path, body.map_err(Into::into).boxed_unsync()).await,
            None => match collect(body).await {
                Ok(body) => self.dispatch(&parts, body).await,
                Err(error) => Err(error),
            },
        };
        let mut response = result.unwrap_or_else(|error| respond::error(&error));
        if is_head {
            *response.body_mut() = Body::empty();
        }
        response
    }

    /// Behind a pointer, as [`stream`](Self::stream) is: a future is compiled where it is waited for, and this one is
    /// most of the server.
    fn dispatch<'a>(&'a self, parts: &'a Parts, body: Bytes) -> BoxFuture<'a, Result<Response<Body>, ApiError>> {
        Box::pin(async move {
            let query = Query::parse(parts.uri.query().unwrap_or_default());
            let path = parts.uri.path();
            match path::parse(path) {
                Some(found) => self.resource(parts, &found, &query, body).await,
                None => self.other(parts, path.trim_end_matches('/'), &query).await,
            }
        })
    }

    /// Answers a request that leads into a pod, whose body is none of the server's business.
    fn stream<'a>(
        &'a self,
        parts: Parts,
        path: &'a ResourcePath,
        body: RequestBody,
    ) -> BoxFuture<'a, Result<Response<Body>, ApiError>> {
        Box::pin(async move {
            let query = Query::parse(parts.uri.query().unwrap_or_default());
            let verb = Verb::of(&parts.method, path, false).ok_or_else(ApiError::method_not_allowed)?;
            let action = Action::from(ResourceAction::of(verb, path));
            self.core.authorizer.permit(&self.user, &action)?;
            self.served(path, verb)?;
            streams::answer(StreamCall {
                core: &self.core,
                user: &self.user,
                path,
                query: &query,
                parts,
                body,
            })
            .await
        })
    }

    /// The resource that a path is about, if there is one.
    fn find(&self, path: &ResourcePath) -> Result<Arc<ResourceType>, ApiError> {
        let gvr = GroupVersionResource::new(path.group.as_str(), path.version.as_str(), path.resource.as_str());
        self.core.registry.find(&gvr).ok_or_else(ApiError::path_not_found)
    }

    /// The resource that a path is about, if it is served there and knows the verb.
    fn served(&self, path: &ResourcePath, verb: Verb) -> Result<Arc<ResourceType>, ApiError> {
        let resource = self.find(path)?;
        let fits = match path.subresource.as_str() {
            "" => resource.verbs.contains(&verb),
            subresource => resource
                .subresource(subresource)
                .is_some_and(|found| found.verbs.contains(&verb)),
        };
        let across = path.namespace.is_empty();
        // Of what lives in namespaces, no object has a path outside of them.
        let placed = if across {
            !resource.namespaced || path.name.is_empty()
        } else {
            resource.namespaced
        };
        if !placed || (!path.subresource.is_empty() && resource.subresource(&path.subresource).is_none()) {
            return Err(ApiError::path_not_found());
        }
        if across && resource.namespaced && !matches!(verb, Verb::List | Verb::Watch) {
            return Err(if resource.strategy.as_custom().is_some() {
                ApiError::path_not_found()
            } else {
                ApiError::method_not_allowed()
            });
        }
        if !fits {
            return Err(ApiError::method_not_supported(
                &resource.group_resource(),
                verb.as_str(),
            ));
        }
        Ok(resource)
    }

    async fn resource(
        &self,
        parts: &Parts,
        path: &ResourcePath,
        query: &Query,
        body: Bytes,
    ) -> Result<Response<Body>, ApiError> {
        let core = &self.core;
        core.authorizer
            .permit(&self.user, &Action::of(&parts.method, &parts.uri))?;
        if !core.registry.served().has_group(&path.group) {
            return Ok(no_page());
        }
        let Some(verb) = Verb::of(&parts.method, path, query.flag("watch")) else {
            self.find(path)?;
            return Err(ApiError::method_not_allowed());
        };
        let resource = self.served(path, verb)?;
        if resource.strategy.as_custom().is_none() {
            negotiate::offered(&parts.headers, verb)?;
        }
        let tables = matches!(verb, Verb::Get | Verb::List | Verb::Watch);
        let answer = match negotiate::answer(&parts.headers, tables) {
            Ok(answer) => answer,
            Err(error) => {
                let mut response = respond::error(&error);
                if let Some(warning) = resource.strategy.deprecation() {
                    respond::warn(&mut response, warning);
                }
                return Ok(response);
            }
        };
        let asides = Asides::default();
        let call = Call {
            core,
            resource,
            path,
            verb,
            query,
            headers: &parts.headers,
            user: &self.user,
            answer,
            body,
            asides: &asides,
        };
        let mut response = rest::handle(&call).await.unwrap_or_else(|error| respond::error(&error));
        if let Some(warning) = call.resource.strategy.deprecation() {
            respond::warn(&mut response, warning);
        }
        for warning in asides.into_warnings() {
            respond::warn(&mut response, &warning);
        }
        Ok(response)
    }

    async fn other(&self, parts: &Parts, path: &str, query: &Query) -> Result<Response<Body>, ApiError> {
        let core = &self.core;
        core.authorizer
            .permit(&self.user, &Action::of(&parts.method, &parts.uri))?;
        let headers = &parts.headers;
        let reads = matches!(parts.method, Method::GET | Method::HEAD);
        // The oldest paths never looked at the method.
        let takes_all = matches!(path, "" | "/healthz" | "/livez" | "/readyz" | "/apis");
        let is_known = takes_all || path == "/version" || path.starts_with("/openapi") || path.starts_with("/api");
        if !reads && is_known && !takes_all {
            return Err(ApiError::method_not_allowed());
        }
        Ok(match path {
            "/healthz" | "/livez" | "/readyz" => health(core, path, query),
            "/version" => version(),
            issuer_discovery::CONFIGURATION_PATH => {
                let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
                // With HTTP/2 it is part of the address alone.
                let authority = parts.uri.authority().map(http::uri::Authority::as_str);
                let host = host.or(authority).unwrap_or_default();
                let document = issuer_discovery::configuration(core.authenticator.tokens(), host);
                respond::value(StatusCode::OK, &document, negotiate::Encoding::Json)
            }
            issuer_discovery::KEYS_PATH => {
                let keys = issuer_discovery::keys(core.authenticator.tokens());
                respond::value(StatusCode::OK, &keys, negotiate::Encoding::Json)
            }
            "" => paths(core),
            _ if path.starts_with("/openapi") => openapi::handle(core, path, query, headers).await,
            _ if path.starts_with("/api") => discovery::handle(&core.registry.served(), path, headers)?,
            _ => no_page(),
        })
    }
}

/// The answer where nothing of the API begins.
fn no_page() -> Response<Body> {
    respond::text(StatusCode::NOT_FOUND, "404 page not found\n")
}

async fn collect<B>(body: B) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let read = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, BODY_LIMIT).collect()).await;
    let Ok(read) = read else {
        return Err(ApiError::timeout("the body of the request did not come in time", 0));
    };
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::request_entity_too_large(BODY_LIMIT)),
        Err(error) => Err(ApiError::bad_request(format!(
            "the body of the request could not be read: {error}"
        ))),
    }
}

/// The version that clients gate their features by.
pub const VERSION: &str = "v1.36.4";

fn version() -> Response<Body> {
    let info = json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": format!("{VERSION}+moorline-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none", "compiler": "rustc", "platform": format!("{}/{}", env::consts::OS, platform()),
    });
    respond::value(StatusCode::OK, &info, negotiate::Encoding::Json)
}

/// The machine's kind, in the words of Go.
fn platform() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn health(core: &Core, path: &str, query: &Query) -> Response<Body> {
    let checks = [
        ("ping", true),
        ("store", matches!(core.store.health(), moorline_store::Health::Ready)),
    ];
    let name = path.trim_start_matches('/');
    let healthy = name == "livez" || checks.iter().all(|(_, passed)| *passed);
    if healthy && !query.flag("verbose") {
        return respond::text(StatusCode::OK, "ok");
    }
    let lines: String = checks
        .iter()
        .map(|(check, passed)| {
            if *passed {
                format!("[+]{check} ok\n")
            } else {
                format!("[-]{check} failed: writes are refused\n")
            }
        })
        .collect();
    let (status, verdict) = if healthy {
        (StatusCode::OK, "passed")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "failed")
    };
    respond::text(status, format!("{lines}{name} check {verdict}\n"))
}

/// What there is, for one who asks for nothing.
fn paths(core: &Core) -> Response<Body> {
    let served = core.registry.served();
    let mut paths = vec![
        "/api".to_owned(),
        "/api/v1".to_owned(),
        "/apis".to_owned(),
        "/apis/".to_owned(),
    ];
    for (group, versions) in served.groups().filter(|(group, _)| !group.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{version}")));
    }
    paths.extend(
        [
            "/healthz",
            "/livez",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned),
    );
    paths.sort_unstable();
    respond::value(StatusCode::OK, &json!({ "paths": paths }), negotiate::Encoding::Json)
}

impl<B> Service<Request<B>> for ApiService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.answer(request).await) })
    }
}
