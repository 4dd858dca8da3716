//! Heads that are refused, and fields on their way through.

use crate::table::{fields, response, rows};
use http::{HeaderMap, Method, Version};
use pumice_door_http::fields::{Arrival, Hop, clean_request, clean_response};
use pumice_door_http::framing::{Limits, check_request, check_response};
use pumice_door_http::key::Scheme;

fn version(text: &str) -> Version {
    match text {
        "1.0" => Version::HTTP_10,
        "1.1" => Version::HTTP_11,
        "2" => Version::HTTP_2,
        _ => panic!("{text}"),
    }
}

fn status(method: &str, uri: &str, version: Version, fields: &HeaderMap) -> u16 {
    let (method, uri): (Method, _) = (method.parse().unwrap(), uri.parse().unwrap());
    let checked = check_request(&method, &uri, version, fields, &Limits::default());
    checked.map_or_else(|refused| refused.status().as_u16(), |_| 200)
}

#[test]
fn requests_that_can_be_read_in_two_ways_are_refused() {
    let table = "
        GET     | /            | 1.1 | host: a                                          | 200
        GET     | http://a:80/ | 1.1 | host: A:80                                       | 200
        GET     | http://a/    | 2   |                                                  | 200
        GET     | http://a/    | 2   | host: a & te: trailers                           | 200
        OPTIONS | *            | 1.1 | host: a                                          | 200
        POST    | /            | 1.1 | host: a & content-length: 007                    | 200
        POST    | /            | 1.1 | host: a & transfer-encoding: Chunked             | 200
        GET     | /            | 1.1 |                                                  | 400
        GET     | /            | 1.0 |                                                  | 400
        GET     | /            | 2   |                                                  | 400
        GET     | http://a/    | 1.1 |                                                  | 400
        GET     | /            | 1.1 | host: a & host: a                                | 400
        GET     | /            | 1.1 | host: a, b                                       | 400
        GET     | /            | 1.1 | host: a@b                                        | 400
        GET     | /            | 1.1 | host:                                            | 400
        GET     | http://a/    | 1.1 | host: b                                          | 400
        GET     | http://a/    | 2   | host: b                                          | 400
        GET     | http://u@a/  | 2   |                                                  | 400
        GET     | *            | 1.1 | host: a                                          | 400
        GET     | a:80         | 1.1 | host: a:80                                       | 400
        CONNECT | a:80         | 1.1 | host: a:80                                       | 501
        TRACE   | /            | 1.1 | host: a                                          | 501
        POST    | /            | 1.1 | host: a & content-length: 1 & content-length: 2  | 400
        POST    | /            | 1.1 | host: a & content-length: 1 & content-length: 1  | 400
        POST    | /            | 1.1 | host: a & content-length: 1, 1                   | 400
        POST    | /            | 1.1 | host: a & content-length: +1                     | 400
        POST    | /            | 1.1 | host: a & content-length: -1                     | 400
        POST    | /            | 1.1 | host: a & content-length: 0x1                    | 400
        POST    | /            | 1.1 | host: a & content-length:                        | 400
        POST    | /            | 1.1 | host: a & content-length: 9223372036854775808    | 400
        POST    | /            | 1.1 | host: a & content-length: 1 & transfer-encoding: chunked | 400
        POST    | /            | 1.0 | host: a & transfer-encoding: chunked             | 400
        POST    | /            | 1.1 | host: a & transfer-encoding: gzip, chunked       | 501
        POST    | /            | 1.1 | host: a & transfer-encoding: chunked, chunked    | 400
        POST    | /            | 1.1 | host: a & transfer-encoding: chunked & transfer-encoding: identity | 400
        POST    | /            | 1.1 | host: a & transfer-encoding: xchunked            | 400
        POST    | /            | 1.1 | host: a & transfer-encoding:                     | 400
        POST    | http://a/    | 2   | transfer-encoding: chunked                       | 400
        GET     | http://a/    | 2   | connection: close                                | 400
        GET     | http://a/    | 2   | te: gzip                                         | 400
    ";
    for [method, uri, of, lines, expected] in rows(table) {
        let seen = status(method, uri, version(of), &fields(lines));
        assert_eq!(seen.to_string(), expected, "{method} {uri} {of} {lines}");
    }
}

#[test]
fn blanks_and_sizes() {
    let with = |value: &str| {
        let mut all = fields("host: a");
        all.insert("x", value.parse().unwrap());
        status("GET", "/", Version::HTTP_11, &all)
    };
    assert_eq!(
        [with("b c"), with(" b"), with("b\t"), with(&"x".repeat(32 << 10))],
        [200, 400, 400, 431]
    );
    let mut many = fields("host: a");
    for number in 0..128 {
        many.append("x", number.into());
    }
    assert_eq!(status("GET", "/", Version::HTTP_11, &many), 431);
    let long = format!("/{}", "x".repeat(16 << 10));
    assert_eq!(status("GET", &long, Version::HTTP_11, &fields("host: a")), 414);
}

#[test]
fn origins_are_held_to_the_same() {
    let table = "
                                                  | 1.1 | Ok(None)
        content-length: 5                         | 1.1 | Ok(Some(5))
        204 content-length: 0                     | 1.1 | Ok(Some(0))
        304 content-length: 5                     | 1.1 | Ok(Some(5))
        transfer-encoding: chunked                | 1.1 | Ok(None)
        content-length: 5 & content-length: 6     | 1.1 | Err(())
        content-length: 5,5                       | 1.1 | Err(())
        content-length: 5 & transfer-encoding: chunked | 1.1 | Err(())
        transfer-encoding: gzip, chunked          | 1.1 | Err(())
        transfer-encoding: chunked                | 1.0 | Err(())
        204 transfer-encoding: chunked            | 1.1 | Err(())
        204 content-length: 5                     | 1.1 | Err(())
    ";
    for [answer, of, expected] in rows(table) {
        let (status, fields) = response(answer);
        let seen = check_response(status, version(of), &fields).map_err(|_| ());
        assert_eq!(format!("{seen:?}"), expected, "{answer}");
    }
}

const HOP: Hop<'_> = Hop {
    pseudonym: "pumice-1",
    version: Version::HTTP_11,
};

const ARRIVAL: Arrival<'_> = Arrival {
    scheme: Scheme::Https,
    host: "a:1",
    client: Some(std::net::IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)),
};

#[test]
fn what_a_client_claims_is_replaced() {
    let own = fields(
        r#"forwarded: for="[::1]";host="a:1";proto=https & x-forwarded-host: a:1 & x-forwarded-proto: https & x-forwarded-for: ::1 &
           via: 1.1 pumice-1"#,
    );
    let claims = "forwarded x-forwarded-host x-forwarded-prefix x_forwarded_for x-original-url x-original-host x-rewrite-url \
                  x-http-method-override x_real_ip expect proxy upgrade te keep-alive http2-settings";
    for claim in claims.split(' ') {
        let mut all = fields(&format!("{claim}: evil"));
        clean_request(&mut all, HOP, ARRIVAL).unwrap();
        assert_eq!(all, own, "{claim}");
    }
}

#[test]
fn connection_names_what_ends_here() {
    let mut all = fields(
        "connection: close, X-A & connection: x-b, Cache-Control, content-length, cookie & x-a: 1 & x-b: 2 & x-c: 3 & \
         cache-control: no-store & content-length: 4 & cookie: 5 & via: 2 b",
    );
    clean_response(&mut all, HOP);
    let kept =
        "x-c: 3 & cache-control: no-store & content-length: 4 & cookie: 5 & via: 2 b & via: 1.1 pumice-1";
    assert_eq!(all, fields(kept));
}

#[test]
fn circles_are_seen() {
    let table = "
        via: 1.1 other, HTTP/1.1  Pumice-1 (x, y) | true
        via: 1.1 other & via: 2 pumice-1          | true
        via: 1.1 other                            | false
        via: 1.1 pumice-12                        | false
        via: pumice-1                             | false
    ";
    for [via, is_loop] in rows(table) {
        let seen = clean_request(&mut fields(via), HOP, ARRIVAL).is_err();
        assert_eq!(seen.to_string(), is_loop, "{via}");
    }
}
