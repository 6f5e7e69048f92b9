//! The attribute `#[homenode::main]`.
