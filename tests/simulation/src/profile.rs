//! What kind of program runs: chosen anew from time to time, so that a run sees many kinds.

use homenode_mm::PageSize;

use crate::hardware::memory::FRAME;
use crate::random::Random;

/// What a core does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Access,
    Compute,
    Stray,
    Reserve,
    Release,
    Revoke,
    Drain,
    Idle,
    Loop,
    Populate,
    Discard,
    Protect,
    SetPolicy,
    Move,
    Query,
    Visit,
}

/// How likely each choice is.
type Weights = [(Choice, u32); 16];

const fn weights(accesses: u32, strays: u32, reservations: u32, changes: u32) -> Weights {
    [
        (Choice::Access, accesses),
        (Choice::Compute, 25),
        (Choice::Stray, strays),
        (Choice::Reserve, reservations + reservations / 8),
        (Choice::Release, reservations),
        (Choice::Revoke, reservations / 4),
        (Choice::Drain, 1),
        (Choice::Idle, 12),
        (Choice::Loop, 6),
        (Choice::Populate, changes / 2),
        (Choice::Discard, changes),
        (Choice::Protect, changes),
        (Choice::SetPolicy, changes / 4),
        (Choice::Move, changes / 2),
        (Choice::Query, 30),
        (Choice::Visit, 4),
    ]
}

/// The sizes of reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// A few pages of 4 KiB.
    Few,
    /// A few pages of 2 MiB, and parts of them.
    Large,
    /// From one page to hundreds of GiB.
    All,
}

/// A kind of program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) choices: Weights,
    /// The most reservations at a time.
    pub(crate) regions: usize,
    /// How many pages of a reservation are used again and again.
    pub(crate) hot_pages: u64,
    /// The most points that a core passes in a turn, by how likely that is.
    pub(crate) turns: [(u64, u32); 4],
    sizes: Sizes,
    /// After how many operations on average a core comes to a safe point: any of these, by core.
    pub(crate) safe_points: [u64; 4],
    /// How many operations pass on average, when memory is short, before a core gives some back.
    pub(crate) patience: u64,
}

/// Any: cores meet now and then.
const MIXED: Profile = Profile {
    choices: weights(400, 10, 24, 40),
    regions: 24,
    hot_pages: 16,
    turns: [(1, 1), (8, 3), (64, 3), (4096, 1)],
    sizes: Sizes::All,
    safe_points: [1, 2, 16, 1 << 20],
    patience: 2,
};

/// All cores work on the same few pages.
const HOT: Profile = Profile {
    choices: weights(300, 5, 6, 60),
    regions: 2,
    hot_pages: 3,
    turns: [(1, 2), (8, 4), (64, 2), (512, 1)],
    sizes: Sizes::Large,
    safe_points: [1, 4, 64, 1 << 20],
    patience: 2,
};

/// Small reservations come and go, and the tables that they share with others.
const CHURN: Profile = Profile {
    choices: weights(200, 60, 200, 20),
    regions: 8,
    hot_pages: 8,
    turns: [(1, 1), (8, 4), (64, 2), (512, 1)],
    sizes: Sizes::Few,
    safe_points: [1, 2, 16, 1 << 20],
    patience: 2,
};

/// Large pages are divided and moved.
const LARGE: Profile = Profile {
    choices: weights(300, 10, 24, 80),
    regions: 6,
    hot_pages: 8,
    turns: [(1, 1), (8, 3), (64, 3), (4096, 1)],
    sizes: Sizes::Large,
    safe_points: [1, 2, 16, 1 << 20],
    patience: 2,
};

/// Memory is short all the time.
const SCARCE: Profile = Profile {
    choices: [
        (Choice::Access, 300),
        (Choice::Compute, 25),
        (Choice::Stray, 10),
        (Choice::Reserve, 60),
        (Choice::Release, 30),
        (Choice::Revoke, 8),
        (Choice::Drain, 1),
        (Choice::Idle, 12),
        (Choice::Loop, 6),
        (Choice::Populate, 150),
        (Choice::Discard, 20),
        (Choice::Protect, 60),
        (Choice::SetPolicy, 20),
        (Choice::Move, 20),
        (Choice::Query, 10),
        (Choice::Visit, 4),
    ],
    regions: 24,
    hot_pages: 1000,
    turns: [(1, 1), (8, 3), (64, 3), (4096, 1)],
    sizes: Sizes::All,
    safe_points: [1, 2, 16, 1 << 20],
    patience: 16,
};

impl Profile {
    /// One of the kinds.
    pub(crate) fn choose(random: &Random) -> Self {
        random.pick(&[MIXED, HOT, CHURN, LARGE, SCARCE])
    }

    /// How many points a core passes in one turn.
    pub(crate) fn turn_length(&self, random: &Random) -> u32 {
        random.skewed(random.weighted(&self.turns)) as u32
    }

    /// The size of a reservation in bytes.
    pub(crate) fn bytes(&self, random: &Random) -> u64 {
        const LARGE: u64 = PageSize::Size2MiB.bytes();
        const GIANT: u64 = PageSize::Size1GiB.bytes();
        let bytes = match (self.sizes, random.below(32)) {
            (Sizes::Few, 0..30) | (Sizes::Large, 0..2) | (Sizes::All, 0..8) => FRAME * (1 + random.below(16)),
            (Sizes::Few, _) | (Sizes::All, 8..13) => FRAME * (1 + random.below(1024)),
            (Sizes::Large, 2..15) | (Sizes::All, 13..18) => LARGE * (1 + random.below(8)),
            (Sizes::Large, 15..30) | (Sizes::All, 18..24) => {
                LARGE * (1 + random.below(8)) + FRAME * random.below(512)
            }
            (Sizes::Large, _) | (Sizes::All, 24..27) => GIANT - LARGE * random.below(3),
            (Sizes::All, 27..31) => GIANT * (1 + random.below(4)) + FRAME * random.below(1024),
            (Sizes::All, _) => 512 * GIANT,
        };
        // Not all programs ask for whole pages.
        bytes - if random.once_in(4) { random.below(FRAME) } else { 0 }
    }
}
