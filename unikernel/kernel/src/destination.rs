//! Whom one write to the interrupt command register reaches.
//!
//! Section numbers are those of the Intel SDM, volume 3A, as in `machine/apic.rs`.

use core::iter;

use homenode_topology::ApicId;

/// A CPU's logical id: one bit of 16 within a cluster (13.12.10.1). The flat ids of xAPIC mode are a cluster of 8 (13.6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogicalId(u32);

/// The bits that tell the members of a cluster apart.
const MEMBERS: u32 = 0xffff;

impl LogicalId {
    /// The id that a logical destination register holds; `None` if it names nobody.
    pub(crate) fn new(register: u32) -> Option<Self> {
        (register & MEMBERS != 0).then_some(Self(register))
    }

    /// As a destination field takes it.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// Both together, if they are different members of one cluster.
    fn with(self, other: Self) -> Option<Self> {
        let same_cluster = (self.0 ^ other.0) & !MEMBERS == 0;
        let different = self.0 & other.0 & MEMBERS == 0;
        (same_cluster && different).then_some(Self(self.0 | other.0))
    }
}

/// How a CPU is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// By itself.
    pub(crate) id: ApicId,
    /// Together with others; `None` where that does not work.
    pub(crate) logical: Option<LogicalId>,
}

/// The CPUs that one interrupt command reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// One CPU. Hypervisors' hardware delivers these without an exit where it takes one for logical destinations.
    Physical(ApicId),
    /// Several of a cluster.
    Logical(LogicalId),
}

/// The destinations that reach each of `targets` once: one for each run of targets in the same cluster.
pub(crate) fn destinations(targets: impl Iterator<Item = Address>) -> impl Iterator<Item = Destination> {
    let mut targets = targets.peekable();
    iter::from_fn(move || {
        let first = targets.next()?;
        let mut destination = Destination::Physical(first.id);
        let mut reached = first.logical;
        while let Some(more) = targets.peek().and_then(|next| reached?.with(next.logical?)) {
            destination = Destination::Logical(more);
            reached = Some(more);
            targets.next();
        }
        Some(destination)
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use proptest::prelude::*;

    /// The address of an APIC in x2APIC mode, by the rule of 13.12.10.2.
    fn x2apic(id: u32) -> Address {
        Address {
            id: ApicId(id),
            logical: LogicalId::new(id >> 4 << 16 | 1 << (id & 15)),
        }
    }

    fn reach(targets: impl IntoIterator<Item = Address>) -> Vec<Destination> {
        destinations(targets.into_iter()).collect()
    }

    /// The CPUs of `all` that accept an interrupt, as hardware decides it.
    fn accepting(all: &[Address], destination: Destination) -> impl Iterator<Item = ApicId> {
        all.iter()
            .filter(move |address| match (destination, address.logical) {
                (Destination::Physical(id), _) => address.id == id,
                (Destination::Logical(to), Some(own)) => {
                    to.bits() >> 16 == own.bits() >> 16 && to.bits() & own.bits() & MEMBERS != 0
                }
                (Destination::Logical(_), None) => false,
            })
            .map(|address| address.id)
    }

    #[test]
    fn nobody_is_reached_by_nothing_and_one_cpu_by_its_own_id() {
        assert_eq!(reach([]), []);
        assert_eq!(reach([x2apic(17)]), [Destination::Physical(ApicId(17))]);
    }

    #[test]
    fn a_cluster_takes_one_command() {
        assert_eq!(
            reach((0..40).map(x2apic)),
            [0xffff, 0x1_ffff, 0x2_00ff].map(|bits| Destination::Logical(LogicalId(bits)))
        );
        // Three sockets of three cores, and none of the second socket.
        assert_eq!(
            reach([0, 1, 2, 8, 9, 10].map(x2apic)),
            [Destination::Logical(LogicalId(0x707))]
        );
    }

    #[test]
    fn flat_ids_are_one_cluster() {
        let flat = |cpu: u32| Address {
            id: ApicId(cpu * 0x20),
            logical: LogicalId::new(1 << cpu),
        };
        assert_eq!(reach((1..8).map(flat)), [Destination::Logical(LogicalId(0xfe))]);
    }

    #[test]
    fn cpus_that_claim_the_same_bit_are_reached_one_by_one() {
        let same = |id| Address {
            id: ApicId(id),
            logical: LogicalId::new(1),
        };
        assert_eq!(
            reach([0, 1, 2].map(same)),
            [0, 1, 2].map(|id| Destination::Physical(ApicId(id)))
        );
    }

    #[test]
    fn a_register_without_a_member_is_no_logical_id() {
        assert_eq!(LogicalId::new(0), None);
        assert_eq!(LogicalId::new(0x3_0000), None);
    }

    proptest! {
        #[test]
        fn each_target_is_reached_once_and_nobody_else(
            cpus in prop::collection::btree_map(0u32..200, (any::<bool>(), prop::bool::weighted(0.8)), 0..100)
        ) {
            let address = |(&id, &(_, logical)): (&u32, &(bool, bool))| {
                let address = x2apic(id);
                Address { logical: address.logical.filter(|_| logical), ..address }
            };
            let all: Vec<_> = cpus.iter().map(address).collect();
            let targets = || cpus.iter().filter(|(_, (wanted, _))| *wanted).map(address);
            let mut reached: Vec<ApicId> = destinations(targets())
                .flat_map(|destination| accepting(&all, destination))
                .collect();
            reached.sort_unstable();
            prop_assert_eq!(reached, targets().map(|address| address.id).collect::<Vec<_>>());
        }
    }
}
