//! The HTTP server over bytes: what it answers, and that no peer can hold it up.

mod common;

use std::time::Duration;

use common::Machine;
use homenode_metrics::{
    Action, CLOSE_TIMEOUT, EVICTION_AGE, HEAD_TIMEOUT, MAX_HEAD_BYTES, RESPONSE_TIMEOUT, Server, StatusCode,
};
use proptest::collection::vec;
use proptest::prelude::*;

const START: Duration = Duration::from_secs(100);

/// The answer to a request that arrives in these pieces: `None` while more is awaited.
fn answer<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<String> {
    let machine = Machine::new();
    let mut server = Server::new(1);
    server.accept(0, START);
    for piece in pieces {
        server.receive(0, piece, START, &machine);
    }
    let pending = server.pending(0).to_vec();
    if pending.is_empty() {
        assert_eq!(server.poll(0, START), Action::Keep);
        return None;
    }
    server.sent(0, pending.len(), START);
    assert_eq!(server.poll(0, START), Action::Close);
    Some(String::from_utf8(pending).expect("responses are UTF-8"))
}

fn whole(request: &str) -> String {
    answer([request.as_bytes()]).expect("the request is complete")
}

fn get(path: &str) -> String {
    whole(&format!("GET {path} HTTP/1.1\r\nHost: homenode\r\n\r\n"))
}

/// Code, header fields, and body of a response.
fn split(response: &str) -> (u16, &str, &str) {
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let code = head.strip_prefix("HTTP/1.1 ").expect("a status line")[..3]
        .parse()
        .expect("a code");
    (code, head, body)
}

fn has_field(head: &str, field: &str) -> bool {
    head.split("\r\n").any(|line| line == field)
}

#[test]
fn whole_response() {
    let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
    assert_eq!(get("/healthz"), expected);
    assert_eq!(whole("GET /healthz HTTP/1.0\r\n\r\n"), expected);
    assert_eq!(
        whole("GET /healthz?verbose=1 HTTP/1.1\r\nhost: a\r\nX-Y: \u{fc}\r\n\r\nbody"),
        expected
    );
    assert_eq!(
        whole("GET http://homenode:9100/healthz HTTP/1.1\r\nHost: a\r\n\r\n"),
        expected
    );
}

#[test]
fn routes() {
    for (path, content_type, part) in [
        ("/", "text/plain; charset=utf-8", "/metrics"),
        ("http://homenode", "text/plain; charset=utf-8", "/metrics"),
        (
            "/metrics",
            "text/plain; version=0.0.4; charset=utf-8",
            "homenode_threads{state=\"running\"} 2\n",
        ),
        ("/topology", "application/json", "{\"nodes\":2}\n"),
        (
            "/status",
            "application/json",
            "\"program\":{\"name\":\"fft3d\",\"state\":\"running\"}",
        ),
    ] {
        let response = get(path);
        let (code, head, body) = split(&response);
        assert_eq!(code, 200, "{path}");
        assert!(
            has_field(head, &format!("Content-Type: {content_type}")),
            "{path}: {head}"
        );
        assert!(
            has_field(head, &format!("Content-Length: {}", body.len())),
            "{path}: {head}"
        );
        assert!(body.contains(part), "{path}: {body}");
    }
}

#[test]
fn openmetrics_when_asked_for() {
    let response = whole(
        "GET /metrics HTTP/1.1\r\nHost: a\r\naccept: application/openmetrics-text\r\nAccept: */*;q=0.1\r\n\r\n",
    );
    let (code, head, body) = split(&response);
    assert_eq!(code, 200);
    assert!(
        has_field(
            head,
            "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"
        ),
        "{head}"
    );
    assert!(body.ends_with("\n# EOF\n"), "{body}");
}

#[test]
fn head_is_get_without_the_body() {
    for path in ["/", "/metrics", "/topology", "/status", "/healthz", "/nothing"] {
        let head = whole(&format!("HEAD {path} HTTP/1.1\r\nHost: homenode\r\n\r\n"));
        let get = get(path);
        let (_, get_head, _) = split(&get);
        assert_eq!(head, format!("{get_head}\r\n\r\n"), "{path}");
    }
}

#[test]
fn refusals() {
    let long = "a".repeat(MAX_HEAD_BYTES);
    let many = "a: b\r\n".repeat(65);
    for (request, expected) in [
        ("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("get /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("GET /metrics HTTP/1.1\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET /metrics\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost a\r\n\r\n", 400),
        ("\x16\x03\x01\x02\0\x01\0\x01", 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (&format!("GET /{long}"), 431),
        (&format!("GET / HTTP/1.1\r\nX: {long}"), 431),
        (&format!("GET / HTTP/1.1\r\n{many}\r\n"), 431),
    ] {
        let response = whole(request);
        let (code, head, body) = split(&response);
        assert_eq!(code, expected, "{request:?}");
        assert_eq!(has_field(head, "Allow: GET, HEAD"), code == 405, "{request:?}");
        assert!(!body.is_empty(), "{request:?}: a refusal says why");
    }
}

#[test]
fn the_largest_head_is_taken() {
    let request = |padding| format!("GET /healthz HTTP/1.0\r\nX: {}\r\n\r\n", "a".repeat(padding));
    let padding = MAX_HEAD_BYTES - request(0).len();
    assert_eq!(split(&whole(&request(padding))).0, 200);
    assert_eq!(split(&whole(&request(padding + 1))).0, 431);
}

#[test]
fn a_request_may_be_split_anywhere() {
    let request = b"GET /metrics HTTP/1.1\r\nHost: homenode\r\nAccept: application/openmetrics-text\r\n\r\n";
    let expected = answer([&request[..]]).expect("a response");
    assert_eq!(split(&expected).0, 200);
    for at in 0..=request.len() {
        let (a, b) = request.split_at(at);
        assert_eq!(answer([a, b]).as_ref(), Some(&expected), "split at {at}");
    }
    assert_eq!(answer(request.chunks(1)).as_ref(), Some(&expected));
}

/// Bytes that come near to being a request.
fn nearly_a_request() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        5 => prop::sample::select(vec![
            "GET ", "HEAD ", "PUT ", "/", "/metrics", "/status?x", "*", " HTTP/1.1\r\n", " HTTP/1.0\n", " HTTP/2.0\r\n", "\r\n",
            "\r\n\r\n", "\n", "\r", "Host: a\r\n", "Accept: */*;q=", "Accept: text/plain\r\n", ": ", " ", "\t", "\0", "http://",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
        1 => (prop::sample::select(vec![b'a', b' ', b'\n', b'/']), 0_usize..5000).prop_map(|(byte, count)| vec![byte; count]),
    ];
    prop_oneof![
        4 => vec(token.clone(), 0..12),
        4 => vec(token, 0..6).prop_map(|mut tokens| {
            tokens.insert(0, b"GET /healthz HTTP/1.1\r\nHost: a\r\n".to_vec());
            tokens.push(b"\r\n\r\n".to_vec());
            tokens
        }),
    ]
    .prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever arrives, in whatever pieces, and however slowly the answer is taken: nothing panics, the answer depends on
    /// the bytes alone, and the connection ends.
    #[test]
    fn anything_ends_in_an_answer_or_an_abort(
        bytes in prop_oneof![3 => nearly_a_request(), 1 => vec(any::<u8>(), 0..6000)],
        cuts in vec(any::<prop::sample::Index>(), 0..6),
        portion in 1_usize..3000,
    ) {
        let expected = answer([&bytes[..]]);

        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let machine = Machine::new();
        let mut server = Server::new(1);
        server.accept(0, START);
        for cut in cuts.windows(2) {
            server.receive(0, &bytes[cut[0]..cut[1]], START, &machine);
        }
        let mut sent = Vec::new();
        while !server.pending(0).is_empty() {
            let portion = &server.pending(0)[..portion.min(server.pending(0).len())];
            let count = portion.len();
            sent.extend_from_slice(portion);
            server.sent(0, count, START);
        }
        match expected {
            Some(expected) => {
                prop_assert_eq!(String::from_utf8(sent).unwrap(), expected);
                prop_assert_eq!(server.poll(0, START), Action::Close);
                prop_assert_eq!(server.statistics().responses().map(|(_, count)| count).sum::<u64>(), 1);
            }
            None => {
                prop_assert_eq!(sent, b"");
                prop_assert_eq!(server.poll(0, START), Action::Keep);
            }
        }
        prop_assert_eq!(server.poll(0, START + HEAD_TIMEOUT), Action::Abort);
        prop_assert_eq!(server.statistics().open(), 0);
    }
}

#[test]
fn a_head_that_trickles_in_is_cut_off_at_its_deadline() {
    let machine = Machine::new();
    let mut server = Server::new(1);
    server.accept(0, START);
    let mut now = START;
    for byte in b"GET /metrics HTTP/1.1\r\nHost: homenode".chunks(1).cycle() {
        server.receive(0, byte, now, &machine);
        if server.poll(0, now) == Action::Abort {
            break;
        }
        now += Duration::from_millis(500);
    }
    assert_eq!(now, START + HEAD_TIMEOUT);
    assert_eq!(
        (server.statistics().timed_out(), server.statistics().open()),
        (1, 0)
    );
}

#[test]
fn a_response_that_is_taken_slowly_is_cut_off_at_its_deadline() {
    let machine = Machine::new();
    let mut server = Server::new(1);
    server.accept(0, START);
    server.receive(0, b"GET /metrics HTTP/1.0\r\n\r\n", START, &machine);
    let mut now = START;
    while server.poll(0, now) == Action::Keep {
        server.sent(0, 1, now);
        now += Duration::from_secs(1);
    }
    assert_eq!(now, START + RESPONSE_TIMEOUT);
    assert!(server.pending(0).is_empty(), "the response's memory is free");
    assert_eq!(server.statistics().timed_out(), 1);
}

#[test]
fn a_peer_that_does_not_close_is_cut_off_at_its_deadline() {
    let machine = Machine::new();
    let mut server = Server::new(1);
    server.accept(0, START);
    server.receive(0, b"GET /healthz HTTP/1.0\r\n\r\n", START, &machine);
    server.sent(0, server.pending(0).len(), START);
    assert_eq!(
        server.poll(0, START + CLOSE_TIMEOUT - Duration::from_nanos(1)),
        Action::Close
    );
    assert_eq!(server.poll(0, START + CLOSE_TIMEOUT), Action::Abort);
}

#[test]
fn a_peer_that_closes_early_is_closed_and_one_that_has_asked_is_answered() {
    let machine = Machine::new();
    let mut server = Server::new(2);
    for (slot, request) in [b"GET /".as_slice(), b"GET /healthz HTTP/1.0\r\n\r\n"]
        .into_iter()
        .enumerate()
    {
        server.accept(slot, START);
        server.receive(slot, request, START, &machine);
        server.peer_closed(slot, START);
    }
    assert_eq!(server.poll(0, START), Action::Close);
    assert_eq!(server.poll(1, START), Action::Keep);
    assert!(server.pending(1).ends_with(b"ok\n"));
}

#[test]
fn a_full_server_makes_room_by_cutting_off_who_stalled_longest() {
    let machine = Machine::new();
    let mut server = Server::new(3);
    let ms = |ms| START + Duration::from_millis(ms);
    server.accept(0, ms(0));
    server.receive(0, b"GET /metrics HTTP/1.0\r\n\r\n", ms(0), &machine);
    server.accept(1, ms(10));
    assert_eq!(server.evict(ms(2000)), None, "a slot is free");
    server.accept(2, ms(20));
    // The first takes its response bit by bit, the second sends its head bit by bit.
    server.sent(0, 1, ms(400));
    server.receive(1, b"G", ms(400), &machine);
    assert_eq!(
        server.evict(ms(10) + EVICTION_AGE - Duration::from_nanos(1)),
        None,
        "none has stalled for long enough"
    );
    assert_eq!(server.evict(ms(10) + EVICTION_AGE), Some(1));
    assert_eq!(server.evict(ms(2000)), None, "a slot is free again");
    server.accept(1, ms(600));
    assert_eq!(server.evict(ms(2000)), Some(2));
    assert_eq!(
        (
            server.statistics().accepted(),
            server.statistics().evicted(),
            server.statistics().open()
        ),
        (4, 2, 2)
    );
}

#[test]
fn responses_are_counted_by_code_and_shown_in_the_next_scrape() {
    let machine = Machine::new();
    let mut server = Server::new(1);
    let mut ask = |request: &[u8]| {
        server.accept(0, START);
        server.receive(0, request, START, &machine);
        let response = String::from_utf8(server.pending(0).to_vec()).unwrap();
        server.release(0);
        (response, server.statistics().clone())
    };
    ask(b"GET /healthz HTTP/1.0\r\n\r\n");
    ask(b"\0");
    ask(b"GET /x HTTP/1.0\r\n\r\n");
    let (response, statistics) = ask(b"GET /metrics HTTP/1.0\r\n\r\n");
    for line in [
        "homenode_http_requests_total{code=\"200\"} 1\n",
        "homenode_http_requests_total{code=\"400\"} 1\n",
        "homenode_http_requests_total{code=\"404\"} 1\n",
        "homenode_http_requests_total{code=\"431\"} 0\n",
        "homenode_http_connections_total 4\n",
        "homenode_http_connections_open 1\n",
    ] {
        assert!(response.contains(line), "{line}{response}");
    }
    let count = |wanted| {
        statistics
            .responses()
            .find(|&(code, _)| code == wanted)
            .unwrap()
            .1
    };
    assert_eq!((count(StatusCode::Ok), count(StatusCode::NotFound)), (2, 1));
}
