//! The HTTP server.

use crate::figures::{BooksFault, Source};
use crate::metrics;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

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

/// Connections at once. A new one takes the place of the oldest: who asks and reads is done in milliseconds.
const MAX_CONNECTIONS: usize = 32;

/// How long a connection may take, from its start to the end of its one answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait after a failed accept, which is most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections of `listener` until the future is dropped, one request for each.
pub async fn serve(listener: TcpListener, source: Arc<dyn Source>) {
    let router = router(source);
    // Their tasks end with this future.
    let mut connections = JoinSet::new();
    let mut places = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        places.retain(|place: &AbortHandle| !place.is_finished());
        if places.len() == MAX_CONNECTIONS
            && let Some(oldest) = places.pop_front()
        {
            oldest.abort();
        }
        let answer = http1::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        // Whatever ends a connection is its client's affair.
        places.push_back(connections.spawn(async { drop(tokio::time::timeout(TIMEOUT, answer).await) }));
    }
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
    let limitation = source.limitation().map(|what| format!("{what}\n"));
    let (status, line) = match source.is_ready() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    (status, format!("{line}{}", limitation.unwrap_or_default())).into_response()
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
