//! Every route there is: method, path, what it asks of its caller, and its handler.

use axum::extract::Request;
use axum::handler::Handler;
use axum::middleware::{self, Next};
use axum::routing::{self, MethodRouter};
use axum::{Extension, Router};

use super::answer::ApiAnswer;
use super::caller::{ApiCaller, RouteNeed};
use super::failure::ApiFailure;
use super::state::Api;
use super::tokens::TokenRight;
use super::{
    attached, attached_executions, backends, directories, events, executions, file_parts, files,
    job_output, jobs, lifetime, metrics, openapi, sandboxes, snapshots, terminal, usage,
};

const NEEDS_NOTHING: RouteNeed = RouteNeed::Open;
const NEEDS_READ: RouteNeed = RouteNeed::Right(TokenRight::Read);
const NEEDS_RUN: RouteNeed = RouteNeed::Right(TokenRight::Run);
const NEEDS_ADMIN: RouteNeed = RouteNeed::Right(TokenRight::Admin);

/// One method of one path.
struct ApiRoute {
    #[allow(dead_code, reason = "tests compare it with the document; its handler has it too")]
    method: &'static str,
    path: &'static str,
    need: RouteNeed,
    handler: MethodRouter<Api>,
}

fn get<H: Handler<T, Api>, T: 'static>(path: &'static str, need: RouteNeed, to: H) -> ApiRoute {
    ApiRoute { method: "get", path, need, handler: routing::get(to) }
}

fn post<H: Handler<T, Api>, T: 'static>(path: &'static str, need: RouteNeed, to: H) -> ApiRoute {
    ApiRoute { method: "post", path, need, handler: routing::post(to) }
}

fn put<H: Handler<T, Api>, T: 'static>(path: &'static str, need: RouteNeed, to: H) -> ApiRoute {
    ApiRoute { method: "put", path, need, handler: routing::put(to) }
}

fn delete<H: Handler<T, Api>, T: 'static>(path: &'static str, need: RouteNeed, to: H) -> ApiRoute {
    ApiRoute { method: "delete", path, need, handler: routing::delete(to) }
}

fn list_routes() -> Vec<ApiRoute> {
    vec![
        get("/v1/health", NEEDS_NOTHING, backends::get_health),
        get("/v1/ready", NEEDS_NOTHING, backends::get_ready),
        get("/v1/openapi.json", NEEDS_READ, openapi::get_openapi),
        get("/v1/metrics", NEEDS_ADMIN, metrics::get_metrics),
        get("/v1/backends", NEEDS_READ, backends::list_backends),
        post("/v1/sandboxes", NEEDS_RUN, sandboxes::create_sandbox),
        get("/v1/sandboxes", NEEDS_READ, sandboxes::list_sandboxes),
        get("/v1/sandboxes/{id}", NEEDS_READ, sandboxes::get_sandbox),
        delete("/v1/sandboxes/{id}", NEEDS_RUN, sandboxes::delete_sandbox),
        post("/v1/sandboxes/{id}/extend", NEEDS_RUN, lifetime::extend_sandbox),
        get("/v1/sandboxes/{id}/events", NEEDS_READ, lifetime::stream_sandbox_events),
        post("/v1/sandboxes/{id}/pause", NEEDS_RUN, sandboxes::pause_sandbox),
        post("/v1/sandboxes/{id}/resume", NEEDS_RUN, sandboxes::resume_sandbox),
        post("/v1/sandboxes/{id}/fork", NEEDS_RUN, sandboxes::fork_sandbox),
        post("/v1/sandboxes/{id}/snapshots", NEEDS_RUN, snapshots::take_snapshot),
        post("/v1/sandboxes/{id}/restore", NEEDS_RUN, snapshots::restore_snapshot),
        get("/v1/snapshots", NEEDS_READ, snapshots::list_snapshots),
        get("/v1/snapshots/{id}", NEEDS_READ, snapshots::get_snapshot),
        delete("/v1/snapshots/{id}", NEEDS_RUN, snapshots::delete_snapshot),
        post("/v1/sandboxes/{id}/executions", NEEDS_RUN, executions::start_execution),
        get("/v1/sandboxes/{id}/executions", NEEDS_READ, executions::list_executions),
        get("/v1/executions/{id}", NEEDS_READ, executions::get_execution),
        get("/v1/executions/{id}/events", NEEDS_READ, events::stream_events),
        get("/v1/executions/{id}/terminal", NEEDS_RUN, terminal::open_terminal),
        post("/v1/executions/{id}/input", NEEDS_RUN, executions::send_input),
        post("/v1/executions/{id}/signal", NEEDS_RUN, executions::send_signal),
        post("/v1/executions/{id}/resize", NEEDS_RUN, executions::resize_terminal),
        post("/v1/executions/{id}/cancel", NEEDS_RUN, executions::cancel_execution),
        get("/v1/sandboxes/{id}/files", NEEDS_READ, files::download_file),
        put("/v1/sandboxes/{id}/files", NEEDS_RUN, files::upload_file),
        delete("/v1/sandboxes/{id}/files", NEEDS_RUN, files::remove_file),
        get("/v1/sandboxes/{id}/files/stat", NEEDS_READ, files::stat_file),
        get("/v1/sandboxes/{id}/files/list", NEEDS_READ, files::list_files),
        post("/v1/sandboxes/{id}/files/move", NEEDS_RUN, files::move_file),
        post("/v1/sandboxes/{id}/files/directory", NEEDS_RUN, files::make_directory),
        get("/v1/sandboxes/{id}/files/tar", NEEDS_READ, directories::download_directory),
        put("/v1/sandboxes/{id}/files/tar", NEEDS_RUN, directories::upload_directory),
        get("/v1/sandboxes/{id}/files/part", NEEDS_READ, file_parts::read_file_part),
        post("/v1/sandboxes/{id}/files/part", NEEDS_RUN, file_parts::write_file_part),
        post("/v1/sandboxes/{id}/files/mode", NEEDS_RUN, file_parts::set_file_mode),
        post("/v1/attached", NEEDS_RUN, attached::create_attached),
        get("/v1/attached", NEEDS_READ, attached::list_attached),
        delete("/v1/attached", NEEDS_RUN, attached::delete_attached),
        post("/v1/sandboxes/{id}/attached", NEEDS_RUN, attached_executions::run_attached),
        post("/v1/executions/{id}/stdin", NEEDS_RUN, attached_executions::stream_input),
        get("/v1/jobs", NEEDS_READ, jobs::list_jobs),
        get("/v1/jobs/{id}", NEEDS_READ, jobs::get_job),
        get("/v1/jobs/{id}/output", NEEDS_READ, job_output::get_job_output),
        get("/v1/usage", NEEDS_READ, usage::get_usage),
    ]
}

/// The service behind every connection. A request carries its [`ApiCaller`].
pub(crate) fn build_router(api: Api) -> Router {
    let routed = list_routes().into_iter().fold(Router::new(), |router, route| {
        let ApiRoute { need, path, handler, .. } = route;
        let check = middleware::from_fn(
            move |Extension(caller): Extension<ApiCaller>, request: Request, next: Next| async move {
                caller.check_need(need)?;
                Ok::<_, ApiFailure>(next.run(request).await)
            },
        );
        router.route(path, handler.layer(check))
    });
    routed
        .fallback(answer_no_route)
        .method_not_allowed_fallback(answer_wrong_method)
        .with_state(api)
}

async fn answer_no_route(request: Request) -> ApiAnswer {
    Err(ApiFailure::not_found("path", request.uri().path())
        .remedy("/v1/openapi.json lists the paths there are"))
}

async fn answer_wrong_method() -> ApiAnswer {
    Err(ApiFailure::wrong_method())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use axum::body::Body;
    use http::StatusCode;
    use stockade_core::SandboxSpec;
    use stockade_engine::{Engine, EngineConfig};
    use tower_service::Service;

    use super::*;
    use crate::api::ApiOptions;
    use crate::api::openapi::OPENAPI_JSON;

    fn described() -> BTreeSet<(String, String)> {
        let document: serde_json::Value = serde_json::from_str(OPENAPI_JSON).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let methods = paths.flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
            methods.map(|method| (method.clone(), path.clone()))
        });
        methods.collect()
    }

    #[test]
    fn the_document_describes_every_route_and_no_other() {
        let routes = list_routes();
        let routed: BTreeSet<_> =
            routes.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
        assert_eq!(routed.len(), routes.len(), "a route is there twice");
        assert_eq!(routed, described());
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI_JSON).unwrap();
        let references = OPENAPI_JSON.split("\"$ref\": \"#").skip(1);
        for reference in references.map(|rest| rest.split('"').next().unwrap()) {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }

    async fn ask(router: &mut Router, method: &str, path: &str) -> (StatusCode, serde_json::Value) {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.extension(ApiCaller::OwnUser).body(Body::empty()).unwrap();
        let response = router.call(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn build_test_router(dir: &std::path::Path) -> Router {
        let engine = Engine::open(EngineConfig::at(dir.join("state")), Vec::new()).await.unwrap();
        let (configured, max_lifetime) = (SandboxSpec::default(), Duration::from_secs(60));
        let options = ApiOptions { configured, max_sandboxes: 1, max_lifetime };
        build_router(Api::new(engine, options))
    }

    #[tokio::test]
    async fn every_path_of_the_document_is_routed_and_answers_in_one_shape() {
        let dir = tempfile::tempdir().unwrap();
        let mut router = build_test_router(dir.path()).await;
        for (method, path) in described() {
            let path = path.replace("{id}", "none");
            let (status, body) = ask(&mut router, &method.to_uppercase(), &path).await;
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            let message = body["error"]["message"].as_str().unwrap_or_default();
            assert!(!message.contains("no path"), "{method} {path}: {body}");
            assert!(status.is_success() || body["error"]["code"].is_string(), "{path}: {body}");
        }
    }

    #[tokio::test]
    async fn what_is_not_there_is_said_in_the_same_shape() {
        let dir = tempfile::tempdir().unwrap();
        let mut router = build_test_router(dir.path()).await;
        for (method, path, status, code) in [
            ("GET", "/", 404, "not-found"),
            ("GET", "/v1/nothing", 404, "not-found"),
            ("PATCH", "/v1/health", 405, "method-not-allowed"),
            ("GET", "/v1/sandboxes/..%2f..%2fetc", 404, "not-found"),
            ("GET", "/v1/sandboxes/%ff", 404, "not-found"),
            ("GET", "/v1/executions/A", 404, "not-found"),
            ("GET", "/v1/sandboxes?state=odd", 400, "invalid"),
            ("GET", "/v1/sandboxes?nonsense=1", 400, "invalid"),
            ("GET", "/v1/jobs?since=yesterday", 400, "invalid"),
        ] {
            let (found, body) = ask(&mut router, method, path).await;
            let got = (found.as_u16(), body["error"]["code"].as_str().unwrap_or_default());
            assert_eq!(got, (status, code), "{method} {path}: {body}");
        }
    }
}
