//! The HTTP server.

use crate::figures::{BooksFault, Source};
use crate::metrics;
use crate::requests::{Progress, requests};
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

/// What the door answers, with a [`Progress`] for each connection.
fn router(source: Arc<dyn Source>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics_text))
        .route("/stats", get(stats))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/books", get(books))
        .route("/requests", get(requests))
        .with_state(source)
}

/// Connections at once. A new one takes the place of the oldest, but for that of `/requests`: who asks and reads is done in milliseconds.
const MAX_CONNECTIONS: usize = 32;

/// How long a connection may take, from its start to the end of its one answer; of `/requests`, to take more of it.
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
        places.retain(|(place, _): &(AbortHandle, Progress)| !place.is_finished());
        let oldest = places.iter().position(|(_, progress)| progress.parts() == 0);
        if places.len() >= MAX_CONNECTIONS
            && let Some((oldest, _)) = oldest.and_then(|at| places.remove(at))
        {
            oldest.abort();
        }
        let progress = Progress::default();
        let router = router.clone().layer(Extension(progress.clone()));
        let answer = http1::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        let answer = until_stuck(answer, progress.clone());
        places.push_back((connections.spawn(answer), progress));
    }
}

/// Serves a connection to its end, if it takes its answer. Whatever ends it is its client's affair.
async fn until_stuck(answer: impl Future, progress: Progress) {
    let mut answer = pin!(answer);
    let mut before = 0;
    while tokio::time::timeout(TIMEOUT, &mut answer).await.is_err() {
        let parts = progress.parts();
        if parts == before {
            return;
        }
        before = parts;
    }
}

async fn index() -> &'static str {
    "Pumice. /metrics /stats /healthz /readyz /books /requests\n"
}

async fn metrics_text(State(source): State<Arc<dyn Source>>, headers: HeaderMap) -> Response {
    let mut accepted = headers.get_all(ACCEPT).iter().flat_map(|value| value.to_str());
    let (text, kind) = match accepted.any(|kinds| kinds.contains("application/openmetrics-text")) {
        true => (metrics::open_metrics(source.figures()), metrics::OPEN_METRICS),
        false => (metrics::plain(source.figures()), metrics::PLAIN),
    };
    match text {
        Ok(text) => ([(CONTENT_TYPE, kind)], text).into_response(),
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
