//! Thread-local values: `thread_local!`, with one surface on both lower halves.
//!
//! On the bare machine, stable Rust has no thread-local statics without `std`. So a value's initial state is a static in the section
//! `.homenode_tls`, which the linker script puts between `__tls_template_start` and `__tls_template_end`; every thread owns a copy of
//! that range, and a value is found at the same distance from the copy's start as its template is from the section's.

use core::fmt;

/// The largest alignment of a thread-local value in bytes: that of the template and of its copies.
pub const MAX_ALIGN: usize = 64;

/// A value of which every thread has its own. Made by [`thread_local!`](crate::thread_local).
pub struct LocalKey<T: 'static>(Key<T>);

impl<T> LocalKey<T> {
    /// What keeps the two lower halves alike: a value is never dropped and fits into a thread's block.
    const CHECKED: () = {
        assert!(
            !core::mem::needs_drop::<T>(),
            "a thread-local value is never dropped, so it must need no drop"
        );
        assert!(
            align_of::<T>() <= MAX_ALIGN,
            "a thread-local value's alignment is 64 at most"
        );
    };

    /// The key behind [`thread_local!`](crate::thread_local).
    #[doc(hidden)]
    #[must_use]
    pub const fn __new(key: Key<T>) -> Self {
        const { Self::CHECKED };
        Self(key)
    }

    /// Calls `f` with the calling thread's value.
    #[inline]
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        with(&self.0, f)
    }
}

impl<T> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

#[cfg(feature = "hosted")]
mod half {
    /// How a value is found: by `std`.
    #[doc(hidden)]
    pub type Key<T> = &'static std::thread::LocalKey<T>;

    pub(super) fn with<T, R>(key: &Key<T>, f: impl FnOnce(&T) -> R) -> R {
        key.with(f)
    }
}

#[cfg(not(feature = "hosted"))]
mod half {
    use core::cell::UnsafeCell;

    use crate::sys;

    /// How a value is found: by the address of its template.
    #[doc(hidden)]
    pub type Key<T> = &'static Template<T>;

    /// The initial state of a thread-local value. Never read here but by the copy that a new thread gets; the cell keeps all of them
    /// in writable memory, since a section is of one kind.
    #[doc(hidden)]
    #[repr(transparent)]
    pub struct Template<T>(UnsafeCell<T>);

    // SAFETY: only the template's address is used.
    unsafe impl<T> Sync for Template<T> {}

    impl<T> Template<T> {
        #[doc(hidden)]
        pub const fn __new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }
    }

    unsafe extern "C" {
        /// The first byte of the section `.homenode_tls`.
        static __tls_template_start: u8;
    }

    #[inline]
    pub(super) fn with<T, R>(template: &Key<T>, f: impl FnOnce(&T) -> R) -> R {
        let offset = template.0.get().addr() - (&raw const __tls_template_start).addr();
        // SAFETY: the template lies in the section, so the sum lies in this thread's copy of it, which has the section's alignment
        // (at least `MAX_ALIGN`), was initialised from it and lives as long as the thread. The value is not sent to another thread:
        // `f` can not keep the reference, and only this thread computes this address.
        f(unsafe { &*sys::thread_local_base().add(offset).cast::<T>() })
    }
}

#[doc(hidden)]
pub use half::Key;
#[cfg(not(feature = "hosted"))]
#[doc(hidden)]
pub use half::Template;
use half::with;

/// Declares values of which every thread has its own, initialised by a constant and never dropped.
///
/// ```
/// use core::cell::Cell;
///
/// homenode::thread_local! {
///     static STEPS: Cell<u64> = const { Cell::new(0) };
/// }
///
/// STEPS.with(|steps| steps.set(steps.get() + 1));
/// assert_eq!(homenode::thread::spawn(|| STEPS.with(|steps| steps.get())).join(), 0);
/// ```
#[cfg(feature = "hosted")]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = const $value:block);+ $(;)?) => {$(
        $(#[$attribute])*
        $visibility static $name: $crate::tls::LocalKey<$type> = $crate::tls::LocalKey::__new({
            ::std::thread_local! { static VALUE: $type = const $value; }
            &VALUE
        });
    )+};
}

/// Declares values of which every thread has its own, initialised by a constant and never dropped.
///
/// ```ignore
/// homenode::thread_local! {
///     static STEPS: Cell<u64> = const { Cell::new(0) };
/// }
///
/// STEPS.with(|steps| steps.set(steps.get() + 1));
/// ```
#[cfg(not(feature = "hosted"))]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = const $value:block);+ $(;)?) => {$(
        $(#[$attribute])*
        $visibility static $name: $crate::tls::LocalKey<$type> = $crate::tls::LocalKey::__new({
            #[unsafe(link_section = ".homenode_tls")]
            static TEMPLATE: $crate::tls::Template<$type> = $crate::tls::Template::__new(const $value);
            &TEMPLATE
        });
    )+};
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use crate::thread;

    crate::thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(7) };
        static OTHER: Cell<[u8; 3]> = const { Cell::new(*b"abc") };
    }

    #[test]
    fn every_thread_has_its_own() {
        COUNT.with(|count| count.set(1));
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    assert_eq!(COUNT.with(Cell::get), 7);
                    COUNT.with(|count| count.set(number));
                    thread::yield_now();
                    assert_eq!(COUNT.with(Cell::get), number);
                    assert_eq!(OTHER.with(Cell::get), *b"abc");
                });
            }
        });
        assert_eq!(COUNT.with(Cell::get), 1);
    }
}
