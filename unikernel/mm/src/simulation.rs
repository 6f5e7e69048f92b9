//! What a simulated machine needs of this crate: a moment before each access to what CPUs share, and word of each frame that is
//! handed out or given back.

use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use homenode_topology::PhysRange;

static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static FRAME_HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// What happens to frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEvent {
    /// They are handed out.
    Allocated,
    /// They are given back, and may be handed out again from now on.
    Freed,
}

/// Calls `hook` before each access to shared atomics from now on, with their address (or 0 before a fence), or nothing.
pub fn set_hook(hook: Option<fn(address: usize)>) {
    let hook = hook.map_or(ptr::null_mut(), |hook| hook as *mut ());
    HOOK.store(hook, Ordering::Release);
}

/// Calls `hook` whenever a frame allocator hands out frames or gets them back from now on, or nothing.
pub fn set_frame_hook(hook: Option<fn(range: PhysRange, event: FrameEvent)>) {
    let hook = hook.map_or(ptr::null_mut(), |hook| hook as *mut ());
    FRAME_HOOK.store(hook, Ordering::Release);
}

/// Calls the hook.
#[inline]
pub(crate) fn step(address: usize) {
    let hook = HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: only `set_hook` stores here, and what it stores is such a function.
        unsafe { mem::transmute::<*mut (), fn(usize)>(hook)(address) };
    }
}

/// Calls the hook for frames.
pub(crate) fn frames(range: PhysRange, event: FrameEvent) {
    let hook = FRAME_HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: only `set_frame_hook` stores here, and what it stores is such a function.
        unsafe { mem::transmute::<*mut (), fn(PhysRange, FrameEvent)>(hook)(range, event) };
    }
}
