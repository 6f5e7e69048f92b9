//! The console: a 16550 UART at COM1.

use core::fmt;
use core::hint;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;
use uart_16550::backend::PioBackend;
use uart_16550::{BaudRate, Config, Uart16550};
use x86_64::instructions::interrupts;

/// The base I/O port of the first serial port of a PC.
const COM1: u16 = 0x3f8;

/// How often a full transmitter is asked before the rest of a message is dropped. Each time costs about 1 µs on a real
/// port, and sending a full FIFO at 115,200 baud takes 1.4 ms.
const TRANSMIT_POLLS: u32 = 1 << 20;

/// How often an emergency message asks for the lock before it goes without.
const LOCK_POLLS: u32 = 1 << 20;

static CONSOLE: Mutex<Console> = Mutex::new(Console::new());

/// Whether `init` found the UART and set it up.
static PRESENT: AtomicBool = AtomicBool::new(false);

struct Console {
    uart: Uart16550<PioBackend>,
    /// The last message found the transmitter stuck, so the next one does not wait for it.
    stuck: bool,
}

impl Console {
    const fn new() -> Self {
        // SAFETY: COM1's eight ports belong to a UART or to nothing, and this module alone uses them. Two `Console`s at
        // once (see `write_emergency`) can mix up bytes on the wire, but share no memory.
        let Ok(uart) = (unsafe { Uart16550::new_port(COM1) }) else {
            panic!("COM1 is a valid port")
        };
        Self { uart, stuck: false }
    }

    /// Sends `bytes` with each `\n` as `\r\n`; drops the rest when the transmitter stays full.
    fn send(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            match line.strip_suffix(b"\n") {
                Some(text) => {
                    self.send_raw(text);
                    self.send_raw(b"\r\n");
                }
                None => self.send_raw(line),
            }
        }
    }

    fn send_raw(&mut self, mut bytes: &[u8]) {
        let mut polls = if self.stuck { 1 } else { TRANSMIT_POLLS };
        while !bytes.is_empty() && polls > 0 {
            let sent = self.uart.send_bytes(bytes);
            bytes = &bytes[sent..];
            if sent == 0 {
                polls -= 1;
                hint::spin_loop();
            } else {
                polls = TRANSMIT_POLLS;
            }
        }
        self.stuck = !bytes.is_empty();
    }
}

/// Looks for the UART and sets it to 115,200 baud, 8 data bits, no parity, FIFO on. Returns whether there is one.
///
/// Until then, and without a UART, all output is dropped.
pub(crate) fn init() -> bool {
    let config = Config {
        baud_rate: BaudRate::Baud115200,
        ..Config::DEFAULT
    };
    let present = interrupts::without_interrupts(|| CONSOLE.lock().uart.init(config)).is_ok();
    PRESENT.store(present, Ordering::Release);
    present
}

/// Writes `bytes` to the console as one piece, each `\n` as `\r\n`. Never blocks for long.
///
/// Inside the gate. `bytes` are read with the console's lock held, so they must not be able to fault.
pub(crate) fn write_bytes(bytes: &[u8]) {
    if !PRESENT.load(Ordering::Acquire) {
        return;
    }
    // A real port takes milliseconds: interrupts stay on meanwhile. A handler may have interrupted the lock's holder.
    if interrupts::are_enabled() {
        CONSOLE.lock().send(bytes);
    } else {
        write_emergency(bytes);
    }
}

/// Writes `bytes` to the console like [`write_bytes`], and does so even if the lock's holder never lets go of it, perhaps
/// since this CPU interrupted it. For crash reports: output may then be mixed with that of the holder.
pub(crate) fn write_emergency(bytes: &[u8]) {
    if !PRESENT.load(Ordering::Acquire) {
        return;
    }
    interrupts::without_interrupts(|| {
        for _ in 0..LOCK_POLLS {
            if let Some(mut console) = CONSOLE.try_lock() {
                console.send(bytes);
                return;
            }
            hint::spin_loop();
        }
        Console::new().send(bytes);
    });
}

/// The console as a formatter's target for crash reports, by way of [`write_emergency`].
pub(crate) struct Emergency;

impl fmt::Write for Emergency {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_emergency(text.as_bytes());
        Ok(())
    }
}
