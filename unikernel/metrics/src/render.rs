//! The contents of `/metrics`.

use alloc::string::String;
use core::fmt::Display;

use crate::app;
use crate::counters::{CpuCounter, CpuCounters, NodeCounter};
use crate::exposition::{Exposition, Family, Format, Samples};
use crate::server::HttpStatistics;
use crate::status::Source;

const BUILD_INFO: Family = Family::info("build_info", "The kernel's version.");
const UPTIME: Family = Family::gauge("uptime_seconds", "Time since the kernel's entry.");
const BOOT_TIME: Family = Family::gauge("boot_time_seconds", "Unix time of the kernel's entry.");
const BOOT_DURATION: Family = Family::gauge(
    "boot_duration_seconds",
    "Time from the kernel's entry to the application's main.",
);
const CPUS_ONLINE: Family = Family::gauge("cpus_online", "CPUs that run, by node.");
const THREADS: Family = Family::gauge("threads", "Threads, by state.");
const MEMORY_TOTAL: Family = Family::gauge(
    "memory_total_bytes",
    "Memory that the frame allocator manages, by node.",
);
const MEMORY_FREE: Family = Family::gauge(
    "memory_free_bytes",
    "Free memory, by node and order: it lies in free blocks of 2^order frames of 4 KiB.",
);
const MEMORY_CACHED: Family = Family::gauge(
    "memory_cached_bytes",
    "How much of the free memory lies in the CPUs' caches, by node.",
);
const MEMORY_KEPT: Family = Family::gauge(
    "memory_kept_bytes",
    "How much free memory programs leave to the kernel, by node.",
);
const MEMORY_MAPPED: Family = Family::gauge(
    "memory_mapped_bytes",
    "Program memory mapped to the node's frames, by node and page size.",
);
const TLB_GENERATION: Family = Family::gauge(
    "tlb_generation",
    "The newest generation of translations that CPUs are to drop.",
);
const TLB_GENERATION_LAG: Family = Family::gauge(
    "tlb_generation_lag",
    "Generations that the CPU of the node which is furthest behind has yet to pass, idle ones left out.",
);
const TLB_PENDING: Family = Family::gauge(
    "tlb_pending_bytes",
    "Memory that CPUs of the node gave back and that waits for CPUs to drop translations.",
);
const PACKETS_RECEIVED: Family =
    Family::counter("network_receive_packets_total", "Ethernet frames received.");
const PACKETS_TRANSMITTED: Family =
    Family::counter("network_transmit_packets_total", "Ethernet frames sent.");
const HTTP_REQUESTS: Family = Family::counter("http_requests_total", "HTTP responses begun, by status code.");
const HTTP_CONNECTIONS: Family = Family::counter("http_connections_total", "HTTP connections accepted.");
const HTTP_ABORTED: Family = Family::counter(
    "http_connections_aborted_total",
    "HTTP connections cut off: past a deadline, or to make room for a newer one.",
);
const HTTP_OPEN: Family = Family::gauge("http_connections_open", "HTTP connections open now.");

/// The text of `/metrics` in `format`.
#[must_use]
pub fn render(format: Format, source: &dyn Source, http: &HttpStatistics) -> String {
    let mut out = Exposition::new(format);
    let status = source.status();
    out.family(&BUILD_INFO).sample(&[("version", &status.version)], 1);
    out.family(&UPTIME).sample(&[], status.uptime);
    if let Some(boot_time) = status.boot_time {
        out.family(&BOOT_TIME).sample(&[], boot_time);
    }
    out.family(&BOOT_DURATION).sample(&[], status.boot_duration);

    let mut cpus_online = out.family(&CPUS_ONLINE);
    for node in &status.nodes {
        cpus_online.sample(&[("node", &node.node)], node.cpus_online);
    }
    let mut threads = out.family(&THREADS);
    for (state, number) in status.threads.by_state() {
        threads.sample(&[("state", &state)], number);
    }
    out.family(&TLB_GENERATION).sample(&[], status.tlb.generation);
    let mut generation_lag = out.family(&TLB_GENERATION_LAG);
    for node in &status.nodes {
        generation_lag.sample(&[("node", &node.node)], node.tlb.generation_lag);
    }
    let mut pending = out.family(&TLB_PENDING);
    for node in &status.nodes {
        pending.sample(&[("node", &node.node)], node.tlb.pending_bytes);
    }
    let mut memory_total = out.family(&MEMORY_TOTAL);
    for node in &status.nodes {
        memory_total.sample(&[("node", &node.node)], node.memory.total_bytes);
    }
    let mut memory_free = out.family(&MEMORY_FREE);
    for node in &status.nodes {
        for (order, &bytes) in node.memory.free.by_order().iter().enumerate() {
            memory_free.sample(&[("node", &node.node), ("order", &order)], bytes);
        }
    }
    let mut memory_cached = out.family(&MEMORY_CACHED);
    for node in &status.nodes {
        memory_cached.sample(&[("node", &node.node)], node.memory.cached_bytes);
    }
    let mut memory_kept = out.family(&MEMORY_KEPT);
    for node in &status.nodes {
        memory_kept.sample(&[("node", &node.node)], node.memory.kept_bytes);
    }
    let mut memory_mapped = out.family(&MEMORY_MAPPED);
    for node in &status.nodes {
        for (page_size, bytes) in node.mapped_bytes.by_page_size() {
            memory_mapped.sample(&[("node", &node.node), ("page_size", &page_size)], bytes);
        }
    }

    let cpus = source.cpu_counters();
    for counters in NodeCounter::ALL.chunk_by(|a, b| a.family().name() == b.family().name()) {
        let mut samples = out.family(counters[0].family());
        for node in &status.nodes {
            for &counter in counters {
                let sum = CpuCounters::sum_node(cpus.iter().map(|&(_, cpu)| cpu), node.node, counter);
                labelled(&mut samples, ("node", &node.node), counter.label(), sum);
            }
        }
    }
    for counters in CpuCounter::ALL.chunk_by(|a, b| a.family().name() == b.family().name()) {
        let mut samples = out.family(counters[0].family());
        for (cpu, values) in &cpus {
            for &counter in counters {
                labelled(&mut samples, ("cpu", cpu), counter.label(), values.get(counter));
            }
        }
    }

    out.family(&PACKETS_RECEIVED)
        .sample(&[], status.network.received_packets);
    out.family(&PACKETS_TRANSMITTED)
        .sample(&[], status.network.transmitted_packets);
    let mut requests = out.family(&HTTP_REQUESTS);
    for (code, number) in http.responses() {
        requests.sample(&[("code", &code.number())], number);
    }
    out.family(&HTTP_CONNECTIONS).sample(&[], http.accepted());
    out.family(&HTTP_ABORTED)
        .sample(&[("reason", &"deadline")], http.timed_out())
        .sample(&[("reason", &"evicted")], http.evicted());
    out.family(&HTTP_OPEN).sample(&[], http.open());

    for (counter, sum) in app::sums() {
        out.family(counter.family()).sample(&[], sum);
    }
    out.finish()
}

/// One sample with the label `place` and perhaps another.
fn labelled(samples: &mut Samples<'_>, place: (&str, &dyn Display), label: Option<(&str, &str)>, value: u64) {
    match label {
        Some((name, text)) => samples.sample(&[place, (name, &text)], value),
        None => samples.sample(&[place], value),
    };
}
