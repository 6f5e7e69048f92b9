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
    let status = status(&guest);
    assert_eq!(status["program"], json!({"name": "guest", "state": "running"}));
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    for (number, node) in nodes.iter().enumerate() {
        assert_eq!((&node["node"], &node["cpus_online"]), (&json!(number), &json!(2)));
    }
    assert_eq!(get(&guest, "/healthz").status, 200);
    assert_eq!(get(&guest, "/nothing-here").status, 404);
    guest.finish().assert_end(End::Program(0));
}

/// The memory of a node that has 256 MiB, part of it in use.
fn assert_memory_adds_up(memory: &Value) {
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    let (total, free) = (bytes("total_bytes"), bytes("free_bytes"));
    assert!((200 << 20..=256 << 20).contains(&total), "{memory}");
    assert!(0 < free && free < total, "{memory}");
    let orders = memory["free_bytes_by_order"].as_array().unwrap();
    let sum: u64 = orders.iter().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(sum, free, "{memory}");
    assert!(bytes("cached_bytes") <= free, "{memory}");
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

/// The bytes that are mapped to frames of `node` of a `/status`, by pages of any size.
fn mapped_bytes(node: &Value) -> u64 {
    let sizes = node["mapped_bytes"].as_object().unwrap();
    sizes.values().map(|bytes| bytes.as_u64().unwrap()).sum()
}

/// What must hold of every `/status`, whatever the program does.
fn assert_consistent(status: &Value) {
    let locks = &status["page_table_locks"];
    let number = |name: &str| locks[name].as_u64().unwrap();
    assert!(number("contended") <= number("acquisitions"), "{locks}");
    for node in status["nodes"].as_array().unwrap() {
        assert_memory_adds_up(&node["memory"]);
        assert!(
            mapped_bytes(node) <= node["memory"]["total_bytes"].as_u64().unwrap(),
            "{node}"
        );
    }
}

fn status(guest: &Guest) -> Value {
    let status = serde_json::from_str(&guest.get("/status").body).unwrap();
    assert_consistent(&status);
    status
}

/// The workers of fft3d take their shares of the grid from their own nodes, and keep them until the program ends.
#[test]
fn mapped_memory_is_seen_on_its_nodes() {
    /// What the two workers of each node take: half of 128³ complex numbers of 16 bytes.
    const SHARE_BYTES: u64 = 16 << 20;
    let guest = Boot::application("fft3d")
        .machine(2, 4, "512M")
        .arguments(&["--n", "128", "--repeat", "1000000"])
        .start();
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        let status = status(&guest);
        let nodes = status["nodes"].as_array().unwrap();
        if nodes.iter().all(|node| mapped_bytes(node) >= SHARE_BYTES) {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}");
        thread::sleep(Duration::from_millis(500));
    };
    for node in status["nodes"].as_array().unwrap() {
        let bytes = |name: &str| node["memory"][name].as_u64().unwrap();
        assert!(
            bytes("total_bytes") - bytes("free_bytes") >= SHARE_BYTES,
            "{node}"
        );
    }
    assert_eq!(status["page_table_locks"]["scheme"], "split");

    // What only grows is no less a moment later.
    let metrics = guest.get("/metrics").body;
    let locks = &status["page_table_locks"];
    for (earlier, name) in [
        (&status["page_faults"], "homenode_pgfault_total"),
        (
            &locks["acquisitions"],
            "homenode_page_table_lock_acquisitions_total",
        ),
        (&locks["contended"], "homenode_page_table_lock_contended_total"),
    ] {
        let earlier = earlier.as_u64().unwrap();
        assert!(
            sum_of(&metrics, name) >= earlier,
            "{name} was {earlier}:\n{metrics}"
        );
    }
    assert!(
        sum_of(&metrics, "homenode_memory_mapped_bytes") >= 2 * SHARE_BYTES,
        "{metrics}"
    );
    // The program has no end.
    drop(guest);
}

/// Each page that hugelock touches is a fault, which takes at least one lock; when it has ended, the pages are gone.
#[test]
fn page_faults_and_locks_are_counted_and_mapped_memory_goes() {
    const PAGES: u64 = 64;
    let guest = Boot::application("hugelock")
        .machine(2, 4, "512M")
        .arguments(&["--pages", &PAGES.to_string(), "--threads", "4", "--own"])
        .cmdline("ptlock=coarse metrics.linger=30s")
        .start();
    guest.wait_for("ended with status 0");
    let status = status(&guest);
    let locks = &status["page_table_locks"];
    assert_eq!(locks["scheme"], "coarse");
    assert!(locks["acquisitions"].as_u64().unwrap() >= PAGES, "{locks}");
    assert!(status["page_faults"].as_u64().unwrap() >= PAGES, "{status}");
    let nodes = status["nodes"].as_array().unwrap();
    let mapped: u64 = nodes.iter().map(mapped_bytes).sum();
    // What is left is the main thread's.
    assert!((4096..PAGES << 20).contains(&mapped), "{status}");

    let metrics = guest.get("/metrics").body;
    let huge = sum_of(&metrics, "homenode_thp_fault_alloc_total");
    let fallbacks = sum_of(&metrics, "homenode_thp_fault_fallback_total");
    assert!(huge + fallbacks >= PAGES, "{metrics}");
    guest.finish().assert_end(End::Program(0));
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
