//! The first process of a Linux guest: mounts what a program expects, runs the program, shows the kernel's counters before and
//! after it, and stops the emulator with the program's status.

use std::convert::Infallible;
use std::ffi::CStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result, ensure};
use linux_init::{ARGUMENTS, PROGRAM, Section, decode_arguments};
use x86_64::instructions::port::PortWriteOnly;

/// The port of QEMU's debug console, which carries the record of how the guest ended.
const DEBUG_CONSOLE: u16 = 0xe9;

/// The first of four ports of QEMU's device isa-debug-exit, which ends the emulator.
const DEBUG_EXIT: u16 = 0xf4;

/// What is added to the number of a signal that ended a program to make a status, as shells do.
const SIGNAL_STATUS: i32 = 128;

fn main() -> Result<Infallible> {
    let record = match run() {
        Ok(status) => {
            let code = status
                .code()
                .or_else(|| Some(SIGNAL_STATUS + status.signal()?))
                .unwrap_or(1);
            if let Some(signal) = status.signal() {
                println!("error: signal {signal} ended the program");
            }
            format!("exit status={} cause=program\n", code & 0xff)
        }
        Err(error) => {
            println!("error: the Linux guest: {error:#}");
            "exit status=1 cause=boot\n".to_owned()
        }
    };
    stop(&record)
}

/// Runs the program between two looks at the counters.
fn run() -> Result<ExitStatus> {
    mount(c"proc", c"/proc")?;
    mount(c"sysfs", c"/sys")?;
    let file = Path::new("/").join(ARGUMENTS);
    let arguments = fs::read(&file).with_context(|| format!("the initramfs has no {}", file.display()))?;
    let arguments = decode_arguments(&arguments).context("the program's arguments are not UTF-8")?;

    show(&[Section::VmstatBefore, Section::InterruptsBefore])?;
    let program = Path::new("/").join(PROGRAM);
    let status = Command::new(&program).args(arguments).status();
    let status = status.with_context(|| format!("cannot run {}", program.display()))?;
    show(&[Section::VmstatAfter, Section::InterruptsAfter])?;
    Ok(status)
}

/// Makes the folder `target` and mounts a file system of the kernel's, which has no device, on it.
fn mount(kind: &CStr, target: &CStr) -> Result<()> {
    let name = target.to_string_lossy();
    fs::create_dir_all(&*name).with_context(|| format!("cannot make {name}"))?;
    // SAFETY: the strings end with a NUL byte and outlive the call, and these kinds take no data.
    let status = unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            core::ptr::null(),
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error()).with_context(|| format!("cannot mount {name}"));
    }
    Ok(())
}

/// Reads all files before anything is printed, since printing changes what they say.
fn show(sections: &[Section]) -> Result<()> {
    let mut text = String::new();
    for section in sections {
        let file = section.file();
        let content = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        text += &section.wrap(&content);
    }
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to the console")
}

/// Leaves the record on the debug console and ends the emulator. Returns only if that is impossible; Linux then panics, since its
/// first process has ended, and the record, or that it is missing, tells.
fn stop(record: &str) -> Result<Infallible> {
    // SAFETY: the call waits until the console's device has sent everything, and touches no memory.
    unsafe { libc::tcdrain(libc::STDOUT_FILENO) };
    for (port, count) in [(DEBUG_CONSOLE, 1), (DEBUG_EXIT, 4)] {
        // SAFETY: the call changes which ports this process may use, and touches no memory.
        let status = unsafe { libc::ioperm(port.into(), count, 1) };
        ensure!(
            status == 0,
            "no access to port {port:#x}: {}",
            io::Error::last_os_error()
        );
    }
    for byte in record.bytes() {
        // SAFETY: this process may use the port, and QEMU's debug console takes any byte.
        unsafe { PortWriteOnly::new(DEBUG_CONSOLE).write(byte) };
    }
    // SAFETY: this process may use the ports, and the write ends the emulator.
    unsafe { PortWriteOnly::new(DEBUG_EXIT).write(0_u32) };
    anyhow::bail!("the machine has no device isa-debug-exit at port {DEBUG_EXIT:#x}")
}
