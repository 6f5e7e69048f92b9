//! What is at which path.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use crate::accept::negotiate;
use crate::http::{Request, Response, StatusCode};
use crate::render::render;
use crate::server::HttpStatistics;
use crate::status::Source;

/// Makes the response at one path.
type Handler = fn(&Request<'_>, &dyn Source, &HttpStatistics) -> Response;

/// Path, description, handler.
const ROUTES: [(&str, &str, Handler); 5] = [
    ("/", "this page", index),
    (
        "/metrics",
        "counters and gauges for Prometheus, or in OpenMetrics format by the Accept header",
        metrics,
    ),
    (
        "/topology",
        "nodes, CPUs, memory and distances, as JSON",
        topology,
    ),
    ("/status", "program, threads and memory, as JSON", status),
    ("/healthz", "ok", healthz),
];

/// The response to a well-formed request.
pub(crate) fn respond(request: &Request<'_>, source: &dyn Source, http: &HttpStatistics) -> Response {
    match ROUTES.iter().find(|(path, ..)| *path == request.path()) {
        Some((_, _, handler)) => handler(request, source, http),
        None => Response::text(
            StatusCode::NotFound,
            format!("nothing here; there is:\n\n{}", listing()),
        ),
    }
}

fn listing() -> String {
    ROUTES
        .iter()
        .fold(String::new(), |mut text, (path, description, _)| {
            writeln!(text, "{path:10} {description}").expect("writing to a string cannot fail");
            text
        })
}

fn index(_: &Request<'_>, _: &dyn Source, _: &HttpStatistics) -> Response {
    Response::text(StatusCode::Ok, format!("Homenode\n\n{}", listing()))
}

fn metrics(request: &Request<'_>, source: &dyn Source, http: &HttpStatistics) -> Response {
    let format = negotiate(request.header("accept"));
    Response::new(
        StatusCode::Ok,
        format.content_type(),
        render(format, source, http),
    )
}

fn topology(_: &Request<'_>, source: &dyn Source, _: &HttpStatistics) -> Response {
    json(source.topology())
}

fn status(_: &Request<'_>, source: &dyn Source, _: &HttpStatistics) -> Response {
    match serde_json::to_string(&source.status()) {
        Ok(text) => json(text),
        Err(error) => Response::text(
            StatusCode::InternalServerError,
            format!("the status is no JSON: {error}\n"),
        ),
    }
}

fn healthz(_: &Request<'_>, _: &dyn Source, _: &HttpStatistics) -> Response {
    Response::text(StatusCode::Ok, "ok\n")
}

fn json(mut text: String) -> Response {
    text.push('\n');
    Response::new(StatusCode::Ok, "application/json", text)
}
