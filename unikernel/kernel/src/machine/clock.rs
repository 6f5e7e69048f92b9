//! The monotonic clock: the time-stamp counter (TSC), and its frequency as told by CPUID or measured.

mod timers;

use core::arch::x86_64::{_mm_lfence, _rdtsc};
use core::fmt;
use core::hint;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use log::warn;
use raw_cpuid::CpuId;
use spin::Once;

use self::timers::{Counter, Timer};
use super::apic;
use crate::firmware::Tables;
use crate::ratio::Ratio;

const NS_PER_S: u64 = 1_000_000_000;

/// How long counters are compared. The PIT ticks each 0.84 µs and is good to about 200 in a million then, the PM timer to
/// 70, the HPET to 20.
const WINDOW_MS: u64 = 4;

/// How often a reference is read before it counts as standing still. A read takes at least 0.1 µs.
const REFERENCE_POLLS: u32 = 1_000_000;

/// How often a sample is taken to find one that nothing interrupted.
const SAMPLES: usize = 5;

/// The frequencies that are believed of a TSC.
const TSC_HZ: RangeInclusive<u64> = 100_000_000..=16_000_000_000;

/// The TSC when the kernel started: the clock's zero.
static START: AtomicU64 = AtomicU64::new(0);

static CLOCK: Once<Clock> = Once::new();

struct Clock {
    calibration: Calibration,
    /// From TSC ticks to nanoseconds.
    ns: Ratio,
    /// From nanoseconds to ticks of the APIC timer.
    apic: Ratio,
}

/// Where the TSC's frequency is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// CPUID leaf 0x15: the crystal and the TSC's multiple of it.
    CpuidTsc,
    /// CPUID leaf 0x16: the nominal frequency of the CPU.
    CpuidNominal,
    /// CPUID leaf 0x40000010, from a hypervisor.
    Hypervisor,
    /// Measured against a timer.
    Measured(Timer),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CpuidTsc => f.write_str("CPUID leaf 0x15"),
            Self::CpuidNominal => f.write_str("CPUID leaf 0x16"),
            Self::Hypervisor => f.write_str("hypervisor, CPUID leaf 0x40000010"),
            Self::Measured(timer) => write!(f, "measured by {timer}"),
        }
    }
}

/// What the clock and the timers run at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calibration {
    /// Where the TSC's frequency is from; the APIC timer is measured against the TSC.
    pub(crate) source: Source,
    /// The TSC's frequency in Hz.
    pub(crate) tsc_hz: u64,
    /// The frequency of the local APIC's timer in Hz.
    pub(crate) apic_timer_hz: u64,
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mhz = |hz: u64| (hz / 1_000_000, hz / 1_000 % 1_000);
        let (tsc, tsc_khz) = mhz(self.tsc_hz);
        let (apic, apic_khz) = mhz(self.apic_timer_hz);
        write!(
            f,
            "TSC {tsc}.{tsc_khz:03} MHz ({}), APIC timer {apic}.{apic_khz:03} MHz",
            self.source
        )
    }
}

/// Why there is no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalibrationError {
    /// CPUID does not tell the TSC's frequency, and neither HPET, PM timer nor PIT counts.
    NoReference,
    /// The TSC's frequency in Hz, which can not be.
    ImplausibleTsc(u64),
    /// The local APIC timer's frequency in Hz, which can not be.
    ImplausibleApicTimer(u64),
}

impl fmt::Display for CalibrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReference => f.write_str(
                "no clock: CPUID tells no TSC frequency, and no HPET, ACPI PM timer or PIT counts; enable one of them",
            ),
            Self::ImplausibleTsc(hz) => write!(f, "no clock: the TSC seems to run at {hz} Hz"),
            Self::ImplausibleApicTimer(hz) => write!(f, "no timer: the local APIC's seems to run at {hz} Hz"),
        }
    }
}

impl core::error::Error for CalibrationError {}

/// Sets the clock to zero. Call it first of all, on the boot CPU.
pub(crate) fn start() {
    START.store(tsc(), Ordering::Relaxed);
}

/// The time since [`start`]; 0 before [`calibrate`].
pub(crate) fn now() -> Duration {
    Duration::from_nanos(now_ns())
}

/// The time since [`start`] in nanoseconds; 0 before [`calibrate`].
pub(crate) fn now_ns() -> u64 {
    CLOCK.get().map_or(0, |clock| {
        clock
            .ns
            .apply(tsc().saturating_sub(START.load(Ordering::Relaxed)))
    })
}

/// How many ticks to arm the APIC timer with to wait `ns` nanoseconds: at least 1, so that a timer is never left disarmed.
///
/// A wait that is too long for the timer's 32 bits (4 s at 1 GHz) is cut: who waits must look at the clock and arm again.
///
/// # Panics
/// Before [`calibrate`].
pub(crate) fn ns_to_apic_ticks(ns: u64) -> u32 {
    let clock = CLOCK.get().expect("timers are armed after clock::calibrate");
    u32::try_from(clock.apic.apply(ns)).unwrap_or(u32::MAX).max(1)
}

/// Finds the frequencies of the TSC and of the APIC timer, and starts the clock. Call it once, on the boot CPU, with
/// interrupts off, after `LocalApic::init_this_cpu`. It takes about 4 ms.
///
/// Both are compared with the best reference there is. What CPUID says wins if it agrees with that within 1 %, since it is
/// exact; the nominal frequency of leaf 0x16 is not, and counts only where there is no reference.
///
/// # Errors
/// If no frequency can be found, or it is impossible.
pub(crate) fn calibrate(tables: &Tables<'_>) -> Result<&'static Calibration, CalibrationError> {
    let told = told_by_cpuid();
    let measured = Timer::ALL.into_iter().find_map(|timer| {
        let reference = timer.start(tables)?;
        let (apic, hz) = with_apic_timer(|| tsc_hz_by(&reference));
        if hz.is_none() {
            warn!("the {timer} stands still; it is not used");
        }
        hz.map(|hz| (timer, hz, apic))
    });
    let (source, tsc_hz, apic) = match (told, measured) {
        (Some((source, told_hz)), Some((_, hz, apic))) if agree(told_hz, hz) => (source, told_hz, apic),
        (told, Some((timer, hz, apic))) => {
            if let Some((source, told_hz)) = told {
                warn!("{source} says that the TSC runs at {told_hz} Hz, but by the {timer} it is {hz} Hz");
            }
            (Source::Measured(timer), hz, apic)
        }
        (told, None) => {
            let (source, hz) = told
                .or_else(nominal_frequency)
                .ok_or(CalibrationError::NoReference)?;
            (source, hz, with_apic_timer(|| wait_by_tsc(hz)).0)
        }
    };
    if !TSC_HZ.contains(&tsc_hz) {
        return Err(CalibrationError::ImplausibleTsc(tsc_hz));
    }
    let apic_timer_hz = scale(tsc_hz, apic.ticks, apic.tsc);
    let apic = Ratio::new(NS_PER_S, apic_timer_hz).filter(|_| apic_timer_hz >= 1_000_000);
    let apic = apic.ok_or(CalibrationError::ImplausibleApicTimer(apic_timer_hz))?;
    let ns = Ratio::new(tsc_hz, NS_PER_S).ok_or(CalibrationError::ImplausibleTsc(tsc_hz))?;

    let invariant = CpuId::new()
        .get_advanced_power_mgmt_info()
        .is_some_and(|power| power.has_invariant_tsc());
    let emulated = CpuId::new()
        .get_feature_info()
        .is_some_and(|features| features.has_hypervisor());
    if !invariant && !emulated {
        warn!("the CPU does not promise an invariant TSC; the clock drifts if its speed changes");
    }
    let calibration = Calibration {
        source,
        tsc_hz,
        apic_timer_hz,
    };
    Ok(&CLOCK
        .call_once(|| Clock {
            calibration,
            ns,
            apic,
        })
        .calibration)
}

/// The TSC, read after all earlier instructions (Intel SDM volume 2B, RDTSC).
fn tsc() -> u64 {
    // SAFETY: every 64-bit CPU has SSE2 and the TSC, and the kernel runs at a level that may read it.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// `hz` × `part` ÷ `whole`; 0 if that is no number.
fn scale(hz: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(hz) * u128::from(part);
    product
        .checked_div(u128::from(whole))
        .and_then(|hz| u64::try_from(hz).ok())
        .unwrap_or(0)
}

/// The exact frequency of the TSC in Hz where CPUID tells one that can be.
fn told_by_cpuid() -> Option<(Source, u64)> {
    let cpuid = CpuId::new();
    let tsc = cpuid.get_tsc_info().and_then(|info| info.tsc_frequency());
    let hypervisor = cpuid.get_hypervisor_info().and_then(|info| info.tsc_frequency());
    let told = [
        tsc.map(|hz| (Source::CpuidTsc, hz)),
        hypervisor.map(|khz| (Source::Hypervisor, u64::from(khz) * 1_000)),
    ];
    told.into_iter().flatten().find(|(_, hz)| TSC_HZ.contains(hz))
}

/// The nominal frequency of the CPU in Hz, to the MHz, at which the TSC should run.
fn nominal_frequency() -> Option<(Source, u64)> {
    let info = CpuId::new().get_processor_frequency_info()?;
    let hz = u64::from(info.processor_base_frequency()) * 1_000_000;
    (hz != 0).then_some((Source::CpuidNominal, hz))
}

/// Whether two measurements of a frequency differ by 1 % at most.
fn agree(hz: u64, other: u64) -> bool {
    hz.abs_diff(other) <= hz / 100
}

/// By how much the TSC and another counter advanced in the same window.
struct Elapsed {
    tsc: u64,
    ticks: u64,
}

/// A counter's value and the TSC at that instant.
struct Sample {
    tsc: u64,
    count: u32,
}

impl Sample {
    /// Reads a counter a few times and keeps the reading that took the least time: nothing interrupted that one.
    fn take(counter: impl Fn() -> u32) -> Self {
        let readings = [(); SAMPLES].map(|()| {
            let before = tsc();
            let count = counter();
            let took = tsc().saturating_sub(before);
            (
                took,
                Self {
                    tsc: before + took / 2,
                    count,
                },
            )
        });
        let [first, rest @ ..] = readings;
        rest.into_iter()
            .fold(first, |best, next| if next.0 < best.0 { next } else { best })
            .1
    }
}

/// Runs `window` and returns how far the APIC timer and the TSC came in it, and what `window` returned.
fn with_apic_timer<T>(window: impl FnOnce() -> T) -> (Elapsed, T) {
    let apic = apic::local();
    apic.arm_oneshot(u32::MAX);
    let first = Sample::take(|| apic.current_count());
    let result = window();
    let last = Sample::take(|| apic.current_count());
    apic.disarm();
    let elapsed = Elapsed {
        tsc: last.tsc.saturating_sub(first.tsc),
        // The timer counts down.
        ticks: u64::from(first.count.saturating_sub(last.count)),
    };
    (elapsed, result)
}

/// Waits for about `WINDOW_MS` by a TSC of known frequency.
fn wait_by_tsc(tsc_hz: u64) {
    let first = tsc();
    while tsc().saturating_sub(first) < tsc_hz / 1_000 * WINDOW_MS {
        hint::spin_loop();
    }
}

/// The TSC's frequency in Hz by comparison with `reference` for `WINDOW_MS`; `None` if that stands still.
fn tsc_hz_by(reference: &Counter) -> Option<u64> {
    let enough = reference.hz * WINDOW_MS / 1_000;
    let first = Sample::take(|| reference.read());
    let counts = (0..REFERENCE_POLLS).any(|_| {
        hint::spin_loop();
        reference.ticks_between(first.count, reference.read()) >= enough
    });
    let last = Sample::take(|| reference.read());
    let ticks = reference.ticks_between(first.count, last.count);
    counts.then(|| scale(reference.hz, last.tsc.saturating_sub(first.tsc), ticks))
}
