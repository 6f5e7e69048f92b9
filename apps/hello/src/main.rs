//! The smallest Homenode application: every CPU says hello.
#![cfg_attr(not(feature = "hosted"), no_std, no_main)]

use homenode::{println, thread};

#[homenode::main]
fn main() {
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().get() {
            scope.spawn(|| {
                let (cpu, node) = (thread::current_cpu(), thread::current_node());
                println!("hello from CPU {cpu} on node {node}");
            });
        }
    });
}
