//! What the boot tests share: they boot an image with a few words and look at how it ended and what it wrote.
//!
//! A boot takes seconds, so a test that needs no boot of its own looks at one that others look at too: a `LazyLock<Outcome>`.

pub mod http;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use xtask::console::Sink;
use xtask::emulator::{Launch, Running};
use xtask::{build, command_line, emulator, setup};

pub use xtask::emulator::Network;
pub use xtask::machine::{Machine, Mebibytes};
pub use xtask::qemu::{AcceleratorChoice, Qemu, Version};
pub use xtask::record::End;

/// How many machines run at the same time. Each has a thread for every CPU, so that more would not be faster.
const MACHINES_AT_ONCE: usize = 2;

/// How long a guest may run unless a test says otherwise: long, since emulators run on slow and busy machines.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A boot to be made.
#[derive(Clone, Debug)]
pub struct Boot {
    image: ImageSource,
    launch: Launch,
    kernel_words: String,
    arguments: Vec<String>,
    timeout: Duration,
}

/// Where the image comes from.
#[derive(Clone, Debug)]
enum ImageSource {
    /// An application of the workspace.
    Application(&'static str),
    /// A file.
    File(PathBuf),
}

impl Boot {
    /// A boot of the application `name`, on a machine of 1 node, 2 CPUs and 512 MiB, by emulation.
    #[must_use]
    pub fn application(name: &'static str) -> Self {
        Self::of(ImageSource::Application(name))
    }

    /// A boot of the bootable file `path`, on the same machine.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self::of(ImageSource::File(path.to_owned()))
    }

    fn of(image: ImageSource) -> Self {
        let machine = Machine {
            nodes: 1,
            cpus: 2,
            memory: Mebibytes(512),
            ..Machine::default()
        };
        let launch = Launch {
            machine,
            // The same everywhere, whatever the host offers.
            accelerator: AcceleratorChoice::Tcg,
            network: Network::FreePort,
            ..Launch::default()
        };
        Self {
            image,
            launch,
            kernel_words: String::new(),
            arguments: Vec::new(),
            timeout: TIMEOUT,
        }
    }

    /// Takes this number of nodes and CPUs, and this much memory.
    #[must_use]
    pub fn machine(mut self, nodes: u32, cpus: u32, memory: &str) -> Self {
        let memory = memory.parse().expect("a size like 512M");
        self.launch.machine = Machine {
            nodes,
            cpus,
            memory,
            ..self.launch.machine
        };
        self
    }

    /// Adds nodes without CPUs.
    #[must_use]
    pub fn cpuless(mut self, nodes: u32) -> Self {
        self.launch.machine.cpuless = nodes;
        self
    }

    /// Adds nodes without memory.
    #[must_use]
    pub fn memoryless(mut self, nodes: u32) -> Self {
        self.launch.machine.memoryless = nodes;
        self
    }

    /// Sets a distance, as in `0:1:25`.
    #[must_use]
    pub fn distance(mut self, distance: &str) -> Self {
        self.launch
            .machine
            .distances
            .push(distance.parse().expect("a distance like 0:1:25"));
        self
    }

    /// Lets the firmware say nothing about nodes.
    #[must_use]
    pub fn no_acpi_numa(mut self) -> Self {
        self.launch.machine.no_acpi_numa = true;
        self
    }

    /// What executes the guest's instructions: emulation with a thread for each CPU unless this is called.
    #[must_use]
    pub fn accelerator(mut self, accelerator: AcceleratorChoice) -> Self {
        self.launch.accelerator = accelerator;
        self
    }

    /// Words for the kernel's command line.
    #[must_use]
    pub fn cmdline(mut self, words: &str) -> Self {
        words.clone_into(&mut self.kernel_words);
        self
    }

    /// Arguments for the application.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// The way to the guest's metrics; any free port unless this is called.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.launch.network = network;
        self
    }

    /// Further arguments for QEMU.
    #[must_use]
    pub fn qemu_arguments(mut self, arguments: &[&str]) -> Self {
        self.launch.qemu_arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// How long the guest may run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Boots, and does not wait for the end.
    ///
    /// # Panics
    /// If the image can not be built or QEMU can not be started.
    #[must_use]
    pub fn start(mut self) -> Guest {
        let image = match &self.image {
            ImageSource::Application(name) => application_image(name),
            ImageSource::File(path) => path.clone(),
        };
        self.launch.command_line =
            command_line::join(&self.kernel_words, &self.arguments).expect("a command line");
        let permit = Permit::take();
        let running = self
            .launch
            .start(qemu(), &image, Sink::Nowhere, || ())
            .unwrap_or_else(|error| panic!("cannot boot: {error:#}"));
        Guest {
            running,
            timeout: self.timeout,
            _permit: permit,
        }
    }

    /// Boots, and waits for the end.
    ///
    /// # Panics
    /// If the image can not be built, or QEMU fails.
    #[must_use]
    pub fn run(self) -> Outcome {
        self.start().finish()
    }
}

/// A guest that runs. It is stopped when this is dropped.
pub struct Guest {
    running: Running,
    timeout: Duration,
    _permit: Permit,
}

impl Guest {
    /// Waits for a line of the console that contains `text`, and returns it.
    ///
    /// # Panics
    /// If the guest ends or its time is up before.
    pub fn wait_for(&self, text: &str) -> String {
        let line = self
            .running
            .wait_for_line(self.timeout, |line| line.contains(text));
        line.unwrap_or_else(|error| panic!("waiting for `{text}`: {error:#}"))
    }

    /// The port of 127.0.0.1 that leads to the guest's metrics.
    ///
    /// # Panics
    /// If the machine has no network card.
    pub fn port(&self) -> u16 {
        self.running
            .metrics_port()
            .expect("a machine with a network card")
    }

    /// Asks the guest for `path`, again and again until it answers, since the network comes up while the application starts.
    ///
    /// # Panics
    /// If it does not answer while its time lasts.
    pub fn get(&self, path: &str) -> http::Response {
        let answer = http::get_patiently(self.port(), path, self.timeout);
        answer.unwrap_or_else(|error| panic!("GET {path}: {error}; the console:\n{}", self.running.console()))
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If QEMU fails.
    #[must_use]
    pub fn finish(self) -> Outcome {
        let outcome = self.running.finish(Some(self.timeout));
        Outcome(outcome.unwrap_or_else(|error| panic!("{error:#}")))
    }
}

/// How a guest ended, and what it wrote.
#[derive(Clone, Debug)]
pub struct Outcome(emulator::Outcome);

impl Deref for Outcome {
    type Target = emulator::Outcome;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Outcome {
    /// Checks how the guest ended.
    ///
    /// # Panics
    /// If it ended otherwise.
    #[track_caller]
    pub fn assert_end(&self, end: End) {
        assert_eq!(self.end, end, "the console:\n{}", self.console);
    }

    /// The first line of the console that contains `text`.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn line(&self, text: &str) -> &str {
        let line = self.console.lines().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no line contains `{text}`; the console:\n{}", self.console))
    }

    /// The last line of JSON that the application printed.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        let line = self
            .last_json_line()
            .unwrap_or_else(|| panic!("no JSON; the console:\n{}", self.console));
        serde_json::from_str(line).expect("it was parsed before")
    }
}

/// The image of the application `name`, built when it is first asked for.
///
/// # Panics
/// If it does not build.
pub fn application_image(name: &str) -> PathBuf {
    static IMAGES: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let image = images.entry(name.to_owned()).or_insert_with(|| {
        build::build(name)
            .unwrap_or_else(|error| panic!("cannot build `{name}`: {error:#}"))
            .path
    });
    image.clone()
}

/// The QEMU that runs the images.
///
/// # Panics
/// If there is none and it can not be installed.
pub fn qemu() -> &'static Qemu {
    static QEMU: LazyLock<Qemu> = LazyLock::new(|| setup::qemu().unwrap_or_else(|error| panic!("{error:#}")));
    &QEMU
}

/// The right to run a machine.
struct Permit;

static FREE: Mutex<usize> = Mutex::new(MACHINES_AT_ONCE);
static FREED: Condvar = Condvar::new();

impl Permit {
    fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = FREED
            .wait_while(free, |free| *free == 0)
            .unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREED.notify_one();
    }
}
