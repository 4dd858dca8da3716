//! What clients and origins send, through hyper and the door's checks.

use super::plain::Message;
use super::wire::{Wire, run};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use pumice_door_http::fields::{Arrival, Hop, clean_request, clean_response};
use pumice_door_http::framing::{Limits, check_request, check_response};
use pumice_door_http::freshness::Times;
use pumice_door_http::head::{Head, NewHead};
use pumice_door_http::key::{Query, Scheme, Target};
use pumice_door_http::rules::Rule;
use pumice_door_http::store::{Exchange, may_store};
use std::cell::RefCell;
use std::convert::Infallible;

const FIELDS_MAX: usize = 128;
const HOP: Hop<'_> = Hop {
    pseudonym: "pumice-1",
    version: Version::HTTP_11,
};

/// What a client sends on one connection, after a byte that says in which pieces. Every request that is taken is the one that stands there.
pub(crate) fn request(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else {
        return;
    };
    let taken = RefCell::new(Vec::new());
    let serve = service_fn(|request: Request<Incoming>| async {
        let (parts, body) = request.into_parts();
        let limits = Limits::default();
        let host = check_request(&parts.method, &parts.uri, parts.version, &parts.headers, &limits);
        let mut response = Response::new(Empty::<hyper::body::Bytes>::new());
        match host.map(str::to_owned) {
            Ok(host) => {
                // What is not whole is no request.
                if let Ok(body) = body.collect().await {
                    taken.borrow_mut().push((parts, host, body.to_bytes()));
                }
            }
            Err(refused) => {
                *response.status_mut() = refused.status();
                let close = http::HeaderValue::from_static("close");
                response.headers_mut().insert(http::header::CONNECTION, close);
            }
        }
        Ok::<_, Infallible>(response)
    });
    let wire = Wire {
        bytes,
        piece: usize::from(first % 32) + 1,
        is_held: false,
    };
    let connection = hyper::server::conn::http1::Builder::new()
        .max_headers(FIELDS_MAX)
        .serve_connection(wire, serve);
    // An error ends the connection.
    let _ = run(connection);
    let mut rest = bytes;
    for (parts, host, body) in taken.into_inner() {
        let message = Message::head(&mut rest).expect("a head that can be read");
        let [method, target, version] = message.start;
        assert_eq!(parts.method.as_str().as_bytes(), method);
        assert_eq!(format!("{:?}", parts.version).as_bytes(), version);
        if !target.contains(&b'#') {
            let path = parts
                .uri
                .path_and_query()
                .expect("a path was found")
                .as_str()
                .as_bytes();
            assert!(
                target.ends_with(path) || path == b"/" || path.starts_with(b"/?"),
                "{target:?} {path:?}"
            );
        }
        same_fields(&message, &parts.headers);
        let hosts = message.values("host");
        assert!(
            hosts.len() == 1 && hosts[0].eq_ignore_ascii_case(host.as_bytes()),
            "{hosts:?}"
        );
        assert_eq!(
            message.body(false, &mut rest).expect("a body that can be read"),
            body
        );
        onward(parts.headers, &host);
    }
}

/// The fields that the origin gets have what this server says of the client, and nothing that the client said of itself.
fn onward(mut fields: HeaderMap, host: &str) {
    let arrival = Arrival {
        scheme: Scheme::Http,
        host,
        client: None,
    };
    if clean_request(&mut fields, HOP, arrival).is_err() {
        assert!(fields.contains_key("via"));
        return;
    }
    for (name, said) in [("x-forwarded-host", host), ("x-forwarded-proto", "http")] {
        let lines: Vec<_> = fields.get_all(name).iter().collect();
        assert_eq!(lines, [said]);
    }
    for name in [
        "connection",
        "transfer-encoding",
        "upgrade",
        "te",
        "expect",
        "x-forwarded-for",
        "x-original-url",
    ] {
        assert!(!fields.contains_key(name), "{name}");
    }
    assert!(
        clean_request(&mut fields, HOP, arrival).is_err(),
        "it has been here"
    );
    Target::new(Scheme::Http, host, "/", &Query::default()).expect("the host was checked");
}

/// The fields are those of the message, but for lengths that hyper takes out: those beside a coding, and the same once more.
fn same_fields(message: &Message<'_>, fields: &HeaderMap) {
    let is_coded = !message.values("transfer-encoding").is_empty();
    for name in message.fields.iter().map(|(name, _)| name.as_str()) {
        let (plain, read): (Vec<_>, Vec<_>) = (
            message.values(name),
            fields
                .get_all(name)
                .iter()
                .map(|value| value.as_bytes())
                .collect(),
        );
        if name == "content-length" {
            assert!(is_coded || read.len() == 1 || read == plain, "{plain:?} {read:?}");
        } else {
            assert_eq!(plain, read, "{name}");
        }
    }
    assert!(
        fields
            .keys()
            .all(|name| !message.values(name.as_str()).is_empty())
    );
}

/// What an origin answers, after two bytes: what was asked, and in which pieces the answer comes. What is taken is what stands there, and comes
/// back from a stored head.
pub(crate) fn answer(data: &[u8]) {
    let Some((&[asked, piece], bytes)) = data.split_first_chunk() else {
        return;
    };
    let method = [Method::GET, Method::HEAD, Method::POST, Method::GET][usize::from(asked % 4)].clone();
    let wire = Wire {
        bytes,
        piece: usize::from(piece) + 1,
        is_held: true,
    };
    let asking = Request::builder().method(&method).uri("/").header("host", "a");
    let asking = asking
        .body(Empty::<hyper::body::Bytes>::new())
        .expect("it is sound");
    let exchanged = run(async {
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder
            .max_headers(FIELDS_MAX)
            .max_header_size(32 << 10)
            .max_buf_size(32 << 10);
        let (mut sender, mut connection) = builder.handshake(wire).await.ok()?;
        let drive = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx));
        let exchange = async {
            let (parts, body) = sender.send_request(asking).await.ok()?.into_parts();
            let length = check_response(parts.status, parts.version, &parts.headers).ok()?;
            (parts.status != StatusCode::SWITCHING_PROTOCOLS).then_some(())?;
            let body = body.collect().await.ok()?.to_bytes();
            drop(sender);
            Some((parts, length, body))
        };
        let (_, exchanged) = futures_util::future::join(drive, exchange).await;
        let leftover = connection.into_parts().read_buf;
        exchanged.filter(|_| leftover.is_empty())
    });
    let Some(Some((parts, length, body))) = exchanged else {
        return;
    };
    let mut rest = bytes;
    let message = loop {
        let message = Message::head(&mut rest).expect("a head that can be read");
        if !message.start[1].starts_with(b"1") {
            break message;
        }
    };
    assert_eq!(message.start[1], parts.status.as_str().as_bytes());
    same_fields(&message, &parts.headers);
    let is_bodiless = method == Method::HEAD || matches!(parts.status.as_u16(), 204 | 304);
    if is_bodiless {
        assert!(body.is_empty());
    } else {
        assert_eq!(
            message.body(true, &mut rest).expect("a body that can be read"),
            body
        );
        assert!(length.is_none_or(|length| length == body.len() as u64));
    }
    let mut fields = parts.headers;
    clean_response(&mut fields, HOP);
    let now = i64::from(piece) << 24;
    let exchange = Exchange {
        method: &method,
        request: &HeaderMap::new(),
        status: parts.status,
        response: &fields,
        times: Times {
            requested_secs: now,
            received_secs: now,
        },
        body_bytes: length,
    };
    let Ok(storing) = may_store(&exchange, &Rule::default(), 1 << 20) else {
        return;
    };
    assert!(method == Method::GET && length.is_none_or(|bytes| bytes <= 1 << 20));
    let new = NewHead {
        status: parts.status,
        storing: &storing,
        key: "http://a/",
        variant: None,
        fields: &fields,
        received_secs: now,
    };
    let Ok(stored) = new.encode() else { return };
    let head = Head::decode(&stored, body.len() as u64).expect("what was encoded");
    assert_eq!((head.status, head.freshness), (parts.status, storing.freshness));
    for (name, value) in head.fields() {
        let name = std::str::from_utf8(name).expect("a name");
        let is_there = fields.get_all(name).iter().any(|line| line.as_bytes() == value);
        assert!(is_there || name == "date", "{name}");
        assert!(!storing.left_out.iter().any(|left_out| left_out == name));
    }
}
