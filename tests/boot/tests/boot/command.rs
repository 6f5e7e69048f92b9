//! `cargo xtask` from outside: what it prints, and the status that it exits with.

use std::process::Output;

use xtask::workspace;

fn xtask(arguments: &[&str]) -> Output {
    workspace::cargo()
        .args(["run", "--quiet", "--package=xtask", "--"])
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

/// A run of `guest` on a small machine, with `options` before the application's arguments.
fn run(options: &[&str], arguments: &[&str]) -> Output {
    let machine = [
        "run",
        "guest",
        "--nodes=2",
        "--cpus=2",
        "--memory=256M",
        "--metrics-port=0",
        "--accel=tcg",
    ];
    xtask(&[machine.as_slice(), options, &["--"], arguments].concat())
}

#[test]
fn run_exits_with_the_applications_status_and_passes_the_console_on() {
    let output = run(&[], &["exit", "7"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("nodes: 2, CPUs: 2"),
        "{}",
        stdout(&output)
    );
    assert!(
        stderr(&output).contains("metrics: http://127.0.0.1:"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn with_json_only_one_line_of_json_goes_to_standard_output() {
    let output = run(&["--json"], &["exit", "3"]);
    assert_eq!(output.status.code(), Some(3));
    let json: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(
        (&json["status"], &json["cause"], &json["app"]),
        (&3.into(), &"program".into(), &().into())
    );
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
    assert!(stderr(&output).contains("nodes: 2, CPUs: 2"));
}

#[test]
fn every_other_end_has_a_status_and_a_message_of_its_own() {
    let cases = [
        (run(&[], &["panic"]), 101, "the guest panicked"),
        (run(&[], &["undefined"]), 102, "a CPU exception"),
        (
            run(&["--cmdline=numa=fake=0"], &[]),
            103,
            "the kernel did not boot",
        ),
        (run(&[], &["triple-fault"]), 104, "triple fault"),
        (run(&["--timeout=5"], &["spin"]), 124, "timeout"),
        (run(&["--qemu-arg=-no-such-option"], &[]), 125, "QEMU failed"),
        (run(&["--distance=0:9:20"], &[]), 125, "--distance 0:9:20"),
        (xtask(&["run", "gest"]), 125, "did you mean `guest`?"),
        (
            xtask(&["run", "guest", "--no-such-option"]),
            125,
            "--no-such-option",
        ),
    ];
    for (output, status, message) in cases {
        assert_eq!(
            output.status.code(),
            Some(status),
            "{message}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(message),
            "{message}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn build_prints_the_path_of_the_image_and_nothing_else() {
    let output = xtask(&["build", "hello"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let path = stdout(&output).strip_suffix('\n').unwrap();
    assert!(
        path.ends_with("/hello.elf") && std::path::Path::new(path).is_file(),
        "{path}"
    );
}
