//! Runs an image in QEMU: starts it, watches it, stops it, and says how it ended.

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::console::{Console, Sink};
use crate::interrupt;
use crate::machine::{Machine, Mebibytes};
use crate::qemu::{Accelerator, AcceleratorChoice, Qemu, Version};
use crate::record::{End, Record};

/// The port on which the guest serves its metrics.
pub const METRICS_PORT: u16 = 9100;

/// How often a run looks whether the user wants to stop.
const POLL: Duration = Duration::from_millis(100);

/// Which port of the host leads to the guest's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Port 9100, which must be free.
    #[default]
    DefaultPort,
    /// This port, which must be free.
    Port(u16),
    /// Any free port.
    FreePort,
    /// The machine has no network card.
    None,
}

impl Network {
    /// The host's port, or `None` without a network card.
    fn choose(self) -> Result<Option<u16>> {
        let (port, option) = match self {
            Self::None => return Ok(None),
            Self::FreePort => (0, ""),
            Self::DefaultPort => (METRICS_PORT, ""),
            Self::Port(port) => (port, "--metrics-port: "),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| {
            format!(
                "{option}port {port} of 127.0.0.1 is not free; with --metrics-port 0 a free one is chosen"
            )
        })?;
        Ok(Some(listener.local_addr()?.port()))
    }
}

/// What to boot, and on which machine.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The machine.
    pub machine: Machine,
    /// What executes the guest's instructions.
    pub accelerator: AcceleratorChoice,
    /// The way to the guest's metrics.
    pub network: Network,
    /// The kernel's command line, the application's arguments included.
    pub command_line: String,
    /// Further arguments for QEMU.
    pub qemu_arguments: Vec<String>,
}

/// A guest that runs. It is stopped when this is dropped.
pub struct Running {
    child: Child,
    console: Console,
    complaints: Option<JoinHandle<String>>,
    directory: TempDir,
    started: Instant,
    metrics_port: Option<u16>,
    memory: Mebibytes,
}

/// How a guest ended, and what it wrote.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// What it wrote to the console, carriage returns left out. Of more than 16 MiB, the end.
    pub console: String,
    /// How long it ran, QEMU's own start included.
    pub duration: Duration,
    /// What QEMU itself had to say: warnings, as a rule nothing.
    pub complaints: String,
}

impl Launch {
    /// Starts QEMU with the image at `image`; `on_first_byte` is called when the console's first byte comes, or none will.
    ///
    /// # Errors
    /// If the machine's options contradict each other, the port is not free, or QEMU can not be started.
    pub fn start(
        &self,
        qemu: &Qemu,
        image: &Path,
        sink: Sink,
        on_first_byte: impl FnOnce() + Send + 'static,
    ) -> Result<Running> {
        let accelerator = qemu.accelerator(self.accelerator)?;
        let machine = self.machine.arguments(accelerator)?;
        if self.machine.needs_x2apic()? && accelerator != Accelerator::Kvm {
            ensure!(
                qemu.version >= Version::EMULATES_X2APIC,
                "--cpus {}: so many need an x2APIC, which QEMU emulates from {} on; this one is {}",
                self.machine.cpus,
                Version::EMULATES_X2APIC,
                qemu.version
            );
        }
        let directory = tempfile::Builder::new()
            .prefix("homenode-")
            .tempdir()
            .context("no temporary folder")?;
        let metrics_port = self.network.choose()?;
        let mut command = qemu.command();
        command.args(machine);
        command
            .arg("-kernel")
            .arg(image)
            .arg("-append")
            .arg(&self.command_line);
        command.args(device_arguments(
            &directory.path().join(DEBUG_CONSOLE),
            metrics_port,
        ));
        command.args(&self.qemu_arguments);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start QEMU")?;
        let started = Instant::now();
        let stdout = child.stdout.take().context("QEMU has no standard output")?;
        let mut stderr = child.stderr.take().context("QEMU has no standard error")?;
        let complaints = thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before an error is all that can be told.
            let _ = stderr.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).trim_end().to_owned()
        });
        let console = Console::start(stdout, sink, on_first_byte);
        Ok(Running {
            child,
            console,
            complaints: Some(complaints),
            directory,
            started,
            metrics_port,
            memory: self.machine.memory,
        })
    }
}

/// The name of the file that receives the debug console.
const DEBUG_CONSOLE: &str = "debug-console";

/// QEMU's arguments for devices: a serial console on standard output, a debug console, a device that stops QEMU, a network card.
fn device_arguments(debug_console: &Path, metrics_port: Option<u16>) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-device",
        "isa-debug-exit,iobase=0xf4,iosize=0x04",
        "-debugcon",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push(format!("file:{}", debug_console.display()));
    if let Some(port) = metrics_port {
        arguments.extend([
            "-netdev".to_owned(),
            format!("user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:{METRICS_PORT}"),
            "-device".to_owned(),
            // Nothing is booted from the network: without a ROM the firmware does not try.
            "virtio-net-pci,netdev=net0,disable-legacy=on,romfile=".to_owned(),
        ]);
    }
    arguments
}

impl Running {
    /// The port of 127.0.0.1 that leads to the guest's metrics.
    pub fn metrics_port(&self) -> Option<u16> {
        self.metrics_port
    }

    /// The console's text so far.
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// Waits until a line of the console, past or to come, satisfies `wanted`, and returns it.
    ///
    /// # Errors
    /// If the guest ends, or `timeout` passes, before there is such a line.
    pub fn wait_for_line(&self, timeout: Duration, wanted: impl Fn(&str) -> bool) -> Result<String> {
        self.console
            .wait_for_line(Instant::now() + timeout, wanted)
            .with_context(|| {
                format!(
                    "the expected line did not come within {timeout:?}; the console:\n{}",
                    self.console()
                )
            })
    }

    /// Waits until the guest ends, stops it if it runs longer than `timeout` from its start, and says how it ended.
    ///
    /// # Errors
    /// If QEMU itself fails, if the guest's record is malformed, or if the console could not be passed on.
    pub fn finish(mut self, timeout: Option<Duration>) -> Result<Outcome> {
        let stopped = loop {
            if self.console.wait_for_end(POLL) {
                break None;
            }
            if interrupt::requested() {
                break Some(End::Interrupted);
            }
            if timeout.is_some_and(|timeout| self.started.elapsed() >= timeout) {
                break Some(End::Timeout);
            }
            if let Some(error) = self.console.sink_error() {
                self.stop();
                bail!("the console could not be passed on: {error}");
            }
        };
        let status = match stopped {
            Some(_) => self.stop(),
            None => Some(self.child.wait().context("cannot wait for QEMU")?),
        };
        let duration = self.started.elapsed();
        self.console.finish();
        let console = self.console.text();
        let complaints = self
            .complaints
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default();
        // After ctrl-C, QEMU had the same signal and may have been faster.
        if let Some(end) = stopped.or(interrupt::requested().then_some(End::Interrupted)) {
            return Ok(Outcome {
                end,
                console,
                duration,
                complaints,
            });
        }

        let debug_console = std::fs::read(self.directory.path().join(DEBUG_CONSOLE)).unwrap_or_default();
        let debug_console = String::from_utf8_lossy(&debug_console);
        let end = match Record::parse(&debug_console)? {
            Some(record) => End::from(record),
            None if status.is_some_and(|status| status.success()) => {
                if !debug_console.trim().is_empty() {
                    eprintln!("the debug console's last lines:\n{}", debug_console.trim_end());
                }
                End::Reset
            }
            None => {
                let status = status.map(|status| status.to_string()).unwrap_or_default();
                let remedy = remedy(&complaints, self.memory);
                bail!("{remedy}QEMU failed ({status}): {complaints}");
            }
        };
        Ok(Outcome {
            end,
            console,
            duration,
            complaints,
        })
    }

    /// Stops QEMU and takes its status.
    fn stop(&mut self) -> Option<std::process::ExitStatus> {
        // It fails only if QEMU has ended already, which `wait` then sees.
        let _ = self.child.kill();
        self.child.wait().ok()
    }
}

/// What to say before QEMU's `complaints` of a machine with `memory`, where the user can mend it.
fn remedy(complaints: &str, memory: Mebibytes) -> String {
    if complaints.contains("cannot set up guest memory") {
        return format!(
            "--memory {}M: this host can not give so much, so take less; ",
            memory.0
        );
    }
    String::new()
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The line of JSON for a run that could not be made: as [`Outcome::to_json`], and `error`, which says why.
pub fn failure_json(status: u8, error: &str) -> String {
    let error = serde_json::Value::from(error);
    format!(r#"{{"status":{status},"cause":"failure","seconds":0.000,"app":null,"error":{error}}}"#)
}

impl Outcome {
    /// The last line of the console that is a JSON object, which is what an application prints with `--json`.
    pub fn last_json_line(&self) -> Option<&str> {
        let mut lines = self
            .console
            .lines()
            .rev()
            .map(str::trim)
            .filter(|line| line.starts_with('{'));
        lines.find(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
    }

    /// The outcome as one line of JSON: `status`, `cause`, `seconds`, and the application's last line of JSON as `app`.
    pub fn to_json(&self) -> String {
        let app = self.last_json_line().unwrap_or("null");
        let (status, cause, seconds) = (self.end.status(), self.end.cause(), self.duration.as_secs_f64());
        format!(r#"{{"status":{status},"cause":"{cause}","seconds":{seconds:.3},"app":{app}}}"#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_arguments_are_those_of_a_headless_machine() {
        let file = Path::new("/tmp/x/debug-console");
        assert_eq!(
            device_arguments(file, Some(9123)).join(" "),
            "-nodefaults -no-user-config -no-reboot -display none -serial stdio \
             -device isa-debug-exit,iobase=0xf4,iosize=0x04 -debugcon file:/tmp/x/debug-console \
             -netdev user,id=net0,hostfwd=tcp:127.0.0.1:9123-:9100 \
             -device virtio-net-pci,netdev=net0,disable-legacy=on,romfile="
        );
        assert!(!device_arguments(file, None).join(" ").contains("net"));
    }

    #[test]
    fn a_busy_port_is_refused_with_the_remedy() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let message = Network::Port(port).choose().unwrap_err().to_string();
        assert!(
            message.contains(&port.to_string()) && message.contains("--metrics-port 0"),
            "{message}"
        );
        let free = Network::FreePort.choose().unwrap().unwrap();
        assert_ne!(free, port);
        assert_eq!(Network::None.choose().unwrap(), None);
    }

    #[test]
    fn memory_that_the_host_has_not_is_named() {
        let complaints = "qemu-system-x86_64: cannot set up guest memory 'memory0': Cannot allocate memory";
        assert!(remedy(complaints, Mebibytes(1 << 20)).starts_with("--memory 1048576M: "));
        assert_eq!(remedy("Segmentation fault", Mebibytes(1 << 20)), "");
    }

    fn outcome(console: &str) -> Outcome {
        Outcome {
            end: End::Program(2),
            console: console.to_owned(),
            duration: Duration::from_millis(1500),
            complaints: String::new(),
        }
    }

    #[test]
    fn json_wraps_the_applications_last_line_of_json() {
        let json = outcome("{\"a\":1}\n{\"gflops\": 2.5}\n{not json}\nbye\n").to_json();
        assert_eq!(
            json,
            r#"{"status":2,"cause":"program","seconds":1.500,"app":{"gflops": 2.5}}"#
        );
        assert_eq!(
            failure_json(125, "no \"x\""),
            r#"{"status":125,"cause":"failure","seconds":0.000,"app":null,"error":"no \"x\""}"#
        );
        assert_eq!(
            outcome("nothing\n").to_json(),
            r#"{"status":2,"cause":"program","seconds":1.500,"app":null}"#
        );
    }
}
