//! The HTTP server.

use crate::figures::{BooksFault, Source};
use crate::metrics;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;

/// What the door answers.
pub fn router(source: Arc<dyn Source>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics_text))
        .route("/stats", get(stats))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/books", get(books))
        .with_state(source)
}

/// Serves connections of `listener` until the future is dropped.
///
/// # Errors
/// Where the listener fails for good.
pub async fn serve(listener: TcpListener, source: Arc<dyn Source>) -> io::Result<()> {
    axum::serve(listener, router(source)).await
}

async fn index() -> &'static str {
    "Pumice. /metrics /stats /healthz /readyz /books\n"
}

async fn metrics_text(State(source): State<Arc<dyn Source>>) -> Response {
    match metrics::text(source.figures()) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn stats(State(source): State<Arc<dyn Source>>) -> Response {
    Json(source.figures()).into_response()
}

async fn readyz(State(source): State<Arc<dyn Source>>) -> Response {
    if source.is_ready() {
        let limitation = source.limitation().map(|what| format!("{what}\n"));
        format!("ready\n{}", limitation.unwrap_or_default()).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}

async fn books(State(source): State<Arc<dyn Source>>) -> Response {
    match source.check_books() {
        Ok(()) => "balanced\n".into_response(),
        Err(BooksFault::NotNow(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        Err(BooksFault::Unbalanced(what)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{what}\n")).into_response()
        }
    }
}
