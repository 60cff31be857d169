//! The system's allocator, which counts while it is told to.

#![expect(
    unsafe_code,
    reason = "an allocator is an unsafe trait; this one hands everything on as it is"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ON: AtomicBool = AtomicBool::new(false);
static TIMES: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// What was allocated over a piece of work, by all threads.
#[derive(Clone, Copy)]
pub(crate) struct Allocated {
    /// How many times; growing a buffer counts too.
    pub(crate) times: usize,
    /// How many bytes; a buffer that grows counts with what it grows by.
    pub(crate) bytes: usize,
    /// The most bytes that were held at one time, beyond those held before.
    pub(crate) peak: usize,
    /// The bytes held at the end, beyond those held before.
    pub(crate) kept: isize,
}

/// Counts over `work`. One count at a time.
pub(crate) fn count<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    for counter in [&TIMES, &BYTES] {
        counter.store(0, Relaxed);
    }
    for counter in [&LIVE, &PEAK] {
        counter.store(0, Relaxed);
    }
    ON.store(true, Relaxed);
    let done = work();
    ON.store(false, Relaxed);
    let allocated = Allocated {
        times: TIMES.load(Relaxed),
        bytes: BYTES.load(Relaxed),
        peak: PEAK.load(Relaxed).unsigned_abs(),
        kept: LIVE.load(Relaxed),
    };
    (done, allocated)
}

struct Counting;

// SAFETY: every call goes to the system's allocator with the arguments that came, and what it returns is returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grown(size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`, and the block came from the system's allocator.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if ON.load(Relaxed) {
            LIVE.fetch_sub(layout.size().cast_signed(), Relaxed);
        }
        // SAFETY: the caller keeps the contract of `dealloc`, and the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

fn grown(to: usize, from: usize) {
    if ON.load(Relaxed) {
        TIMES.fetch_add(1, Relaxed);
        BYTES.fetch_add(to.saturating_sub(from), Relaxed);
        let by = to.cast_signed() - from.cast_signed();
        PEAK.fetch_max(LIVE.fetch_add(by, Relaxed) + by, Relaxed);
    }
}
