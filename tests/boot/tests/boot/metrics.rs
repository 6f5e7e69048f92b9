//! The guest is watched over the network while it runs, by clients that behave and by clients that do not.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use boot_tests::{Boot, End, Guest, http};
use serde_json::{Value, json};
use xtask::setup;

/// How long clients wait who have to share the guest with many others.
const PATIENCE: Duration = Duration::from_secs(120);

/// A guest that lives for so many seconds.
fn sleeping(seconds: &str) -> Guest {
    Boot::application("guest")
        .machine(2, 4, "512M")
        .arguments(&["sleep", seconds])
        .start()
}

fn get(guest: &Guest, path: &str) -> http::Response {
    http::get(guest.port(), path, &[]).unwrap_or_else(|error| panic!("GET {path}: {error}"))
}

#[test]
fn a_running_program_is_scraped() {
    let guest = sleeping("20");
    let metrics = guest.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert_eq!(
        metrics.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(
        metrics.body.contains("homenode_numa_hit_total{node=\"0\"}"),
        "{}",
        metrics.body
    );
    promtool_accepts(&metrics.body);

    let open_metrics = http::get(
        guest.port(),
        "/metrics",
        &["Accept: application/openmetrics-text; version=1.0.0"],
    );
    let open_metrics = open_metrics.unwrap();
    assert!(
        open_metrics
            .header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    assert!(open_metrics.body.ends_with("# EOF\n"));

    let topology: Value = serde_json::from_str(&get(&guest, "/topology").body).unwrap();
    assert_eq!(topology["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(topology["nodes"][1]["cpus"], json!([2, 3]));
    assert_eq!(topology["distances"], json!([[10, 20], [20, 10]]));
    let status: Value = serde_json::from_str(&get(&guest, "/status").body).unwrap();
    assert_eq!(status["program"], json!({"name": "guest", "state": "running"}));
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    for (number, node) in nodes.iter().enumerate() {
        assert_eq!((&node["node"], &node["cpus_online"]), (&json!(number), &json!(2)));
        assert_memory_adds_up(&node["memory"]);
    }
    assert_eq!(get(&guest, "/healthz").status, 200);
    assert_eq!(get(&guest, "/nothing-here").status, 404);
    guest.finish().assert_end(End::Program(0));
}

/// The memory of a node that has 256 MiB.
fn assert_memory_adds_up(memory: &Value) {
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    let (total, free) = (bytes("total_bytes"), bytes("free_bytes"));
    assert!((200 << 20..=256 << 20).contains(&total), "{memory}");
    assert!(0 < free && free < total, "{memory}");
    let orders = memory["free_bytes_by_order"].as_array().unwrap();
    let sum: u64 = orders.iter().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(sum, free, "{memory}");
}

fn promtool_accepts(metrics: &str) {
    let promtool = setup::promtool().expect("promtool is missing: run `cargo xtask setup`");
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let complaints = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}\n{metrics}",
        String::from_utf8_lossy(&complaints)
    );
}

#[test]
fn misbehaving_clients_do_not_stop_the_program() {
    let guest = sleeping("45");
    assert_eq!(guest.get("/healthz").status, 200);
    let port = guest.port();

    // Nothing, garbage, a request that never ends, a field that is too long, a method that is not served.
    drop(http::connect(port).unwrap());
    let garbage: Vec<u8> = (0..2000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let answer_or_nothing = |bytes: &[u8]| http::exchange(port, bytes).unwrap_or_default();
    answer_or_nothing(&garbage);
    let oversized = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 100_000]].concat();
    answer_or_nothing(&oversized);
    assert!(answer_or_nothing(b"BREW /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with(b"HTTP/1.1 405"));
    assert_eq!(get(&guest, "/healthz").status, 200);

    // A client that sends a byte now and then is sent away.
    let mut slow = http::connect(port).unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) && slow.write_all(b"G").is_ok() {
        thread::sleep(Duration::from_millis(500));
        slow.set_nonblocking(true).unwrap();
        if !matches!(slow.read(&mut [0; 64]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock) {
            break;
        }
        slow.set_nonblocking(false).unwrap();
    }
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "the slow client is still connected"
    );

    assert_eq!(guest.get("/healthz").status, 200);
    guest.finish().assert_end(End::Program(0));
}

/// Lets a hundred clients ask for the metrics at once. One that is refused asks again: an emulator queues few connections.
fn ask_a_hundred_times_at_once(port: u16) {
    let ask = move || http::get_patiently(port, "/metrics", PATIENCE);
    let clients: Vec<_> = (0..100).map(|_| thread::spawn(ask)).collect();
    for (number, client) in clients.into_iter().enumerate() {
        match client.join().unwrap() {
            Ok(answer) => assert_eq!(answer.status, 200, "client {number}"),
            Err(error) => panic!("client {number} was not answered in {PATIENCE:?}: {error}"),
        }
    }
}

/// The sum of all samples of the metric `name`.
fn sum_of(metrics: &str, name: &str) -> u64 {
    let samples = metrics
        .lines()
        .filter(|line| line.split(['{', ' ']).next() == Some(name));
    let values: Vec<u64> = samples
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(!values.is_empty(), "no {name}:\n{metrics}");
    values.iter().sum()
}

/// The free bytes of all nodes, when no connection but the one that asks is open.
fn free_bytes_at_rest(guest: &Guest) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let metrics = guest.get("/metrics").body;
        match sum_of(&metrics, "homenode_http_connections_open") {
            1 => return sum_of(&metrics, "homenode_memory_free_bytes"),
            open => assert!(Instant::now() < deadline, "{open} connections stay open"),
        }
        thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn a_hundred_clients_at_once_are_answered_and_leave_nothing_behind() {
    let guest = sleeping("600");
    assert_eq!(guest.get("/healthz").status, 200);
    // The first hundred let the kernel's heap grow to what they need at most.
    ask_a_hundred_times_at_once(guest.port());
    let before = free_bytes_at_rest(&guest);
    ask_a_hundred_times_at_once(guest.port());
    assert_eq!(free_bytes_at_rest(&guest), before);
}

#[test]
fn metrics_linger_after_the_program() {
    let boot = Boot::application("guest")
        .machine(1, 2, "256M")
        .arguments(&["exit", "4"]);
    let guest = boot.cmdline("metrics.linger=15s").start();
    guest.wait_for("ended with status 4");
    assert_eq!(guest.get("/healthz").status, 200);
    guest.finish().assert_end(End::Program(4));
}
