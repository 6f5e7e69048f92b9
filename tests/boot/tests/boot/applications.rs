//! The applications, as a new user runs them.

use boot_tests::{Boot, End, application_image};

/// The largest image that is accepted, in bytes.
const LARGEST_IMAGE: u64 = 3_000_000;

#[test]
fn hello_is_said_by_every_cpu_on_its_node() {
    let outcome = Boot::application("hello").machine(4, 8, "1G").run();
    outcome.assert_end(End::Program(0));
    for cpu in 0..8 {
        outcome.line(&format!("hello from CPU {cpu} on node {}", cpu / 2));
    }
}

#[test]
fn images_are_small() {
    for name in ["fft3d", "hello"] {
        let bytes = application_image(name).metadata().unwrap().len();
        assert!(bytes <= LARGEST_IMAGE, "{name}: {bytes} bytes");
    }
}

#[test]
fn fft3d_verifies_itself() {
    let outcome = Boot::application("fft3d")
        .machine(4, 8, "1G")
        .arguments(&["--n", "32", "--json"])
        .run();
    outcome.assert_end(End::Program(0));
    assert!(outcome.json().is_object());
}

#[test]
fn fft3d_matches_the_published_checksums() {
    let outcome = Boot::application("fft3d")
        .machine(2, 4, "1G")
        .arguments(&["--npb", "S"])
        .run();
    outcome.assert_end(End::Program(0));
}

#[test]
fn fft3d_answers_bad_arguments_with_its_usage_and_status_2() {
    let outcome = Boot::application("fft3d").arguments(&["--n", "7"]).run();
    outcome.assert_end(End::Program(2));
    outcome.line("--n");
}

#[test]
fn fft3d_says_which_node_lacks_memory() {
    let outcome = Boot::application("fft3d")
        .machine(2, 2, "256M")
        .arguments(&["--n", "512"])
        .run();
    outcome.assert_end(End::Program(3));
    outcome.line("node");
}
