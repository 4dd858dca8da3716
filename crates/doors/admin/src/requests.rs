//! Requests as they come: an answer without an end.

use crate::figures::{NotRecorded, Requests, Source};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How often requests are looked for.
const LOOK: Duration = Duration::from_millis(2);

/// How long nothing is sent before an empty line is, by which both sides see whether the other is there.
const SILENCE: Duration = Duration::from_secs(1);

/// Empty lines without a request between them that count as progress: one who stops to read while nothing is asked for, of whom buffers hide that,
/// keeps the place no longer than an hour.
const SILENT_MAX: u32 = 3600;

/// The largest R of one key in R.
const ONE_IN_MAX: u64 = 1_000_000;

/// Parts of an answer that a connection has taken: it may go on for as long as that grows.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn parts(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An answer under way.
struct Telling {
    requests: Box<dyn Requests>,
    progress: Progress,
    last: Instant,
    /// Empty lines since the last request.
    silent: u32,
}

impl Telling {
    /// The next lines, at most what workers keep. Is asked for them when the peer has taken most of those before.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let mut lines = Vec::new();
        loop {
            self.requests.take(&mut lines);
            if lines.is_empty() && self.last.elapsed() >= SILENCE {
                lines.push(b'\n');
                self.silent += 1;
            } else if !lines.is_empty() {
                self.silent = 0;
            }
            if !lines.is_empty() {
                self.last = Instant::now();
                if self.silent <= SILENT_MAX {
                    self.progress.0.fetch_add(1, Ordering::Relaxed);
                }
                return Some((Ok(lines.into()), self));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

pub(crate) async fn requests(
    State(source): State<Arc<dyn Source>>,
    Extension(progress): Extension<Progress>,
    RawQuery(query): RawQuery,
) -> Response {
    let refused = |status, why: &'static str| (status, why).into_response();
    let Some(one_in) = one_in(query.as_deref().unwrap_or("")) else {
        return refused(
            StatusCode::BAD_REQUEST,
            "expected /requests?sample=R, where R is from 1 to 1000000\n",
        );
    };
    match source.record(one_in) {
        Ok(requests) => {
            let last = Instant::now();
            let telling = Telling {
                requests,
                progress,
                last,
                silent: 0,
            };
            let body = Body::from_stream(stream::unfold(telling, Telling::next));
            ([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
        }
        Err(NotRecorded::Never) => refused(StatusCode::NOT_FOUND, "no requests are told here\n"),
        Err(NotRecorded::Busy) => refused(
            StatusCode::CONFLICT,
            "another recording is under way: there is one at a time\n",
        ),
    }
}

/// R of a query.
fn one_in(query: &str) -> Option<u64> {
    if query.is_empty() {
        return Some(1);
    }
    let one_in = query.strip_prefix("sample=")?.parse().ok()?;
    (1..=ONE_IN_MAX).contains(&one_in).then_some(one_in)
}
