//! The numbers that a running machine shows: counters, their names, Prometheus and JSON texts, and the HTTP server's
//! protocol side.
//!
//! This crate knows no hardware, no sockets and no clock. The kernel adds to [`CpuCounters`], implements [`Source`], and
//! moves bytes between its TCP sockets and a [`Server`]; time is a [`core::time::Duration`] since boot.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod accept;
mod app;
mod counters;
mod exposition;
mod http;
mod render;
mod routes;
mod server;
mod status;

pub use accept::negotiate;
pub use app::AppCounter;
pub use counters::{CpuCounter, CpuCounters, NodeCounter, NodeCounters};
pub use exposition::Format;
pub use http::{
    Action, CLOSE_TIMEOUT, Connection, HEAD_TIMEOUT, MAX_HEAD_BYTES, Method, RESPONSE_TIMEOUT, Request,
    Response, StatusCode,
};
pub use render::render;
pub use server::{EVICTION_AGE, HttpStatistics, Server};
pub use status::{
    FreeMemory, MappedBytes, NetworkStatus, NodeMemory, NodeStatus, NodeTlb, PageTableLocks, Program,
    ProgramState, Source, Status, Threads, Tlb,
};
