//! How threads hand regions to each other, without entering the kernel.

use homenode::sync::Mutex;

use crate::parcel::Parcel;

/// Parcels that may wait for one thread.
const PLACES: usize = 4;

/// What waits for one thread. Nobody waits for a lock: one that is held is passed by, so that no CPU comes to a safe point here.
pub(crate) struct Mailbox([Mutex<Option<Parcel>>; PLACES]);

impl Mailbox {
    pub(crate) const fn new() -> Self {
        Self([const { Mutex::new(None) }; PLACES])
    }

    /// Leaves a parcel, or returns it if all places are taken.
    pub(crate) fn post(&self, parcel: Parcel) -> Result<(), Parcel> {
        let mut free = self
            .0
            .iter()
            .filter_map(Mutex::try_lock)
            .filter(|place| place.is_none());
        match free.next() {
            Some(mut place) => {
                *place = Some(parcel);
                Ok(())
            }
            None => Err(parcel),
        }
    }

    /// Takes a parcel out, if there is one.
    pub(crate) fn take(&self) -> Option<Parcel> {
        self.0.iter().find_map(|place| place.try_lock()?.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag::Stamp;

    #[test]
    fn what_is_posted_is_taken_once_and_more_is_returned() {
        let mailbox = Mailbox::new();
        let parcel = |round| {
            let stamp = Stamp { thread: 7, round };
            Parcel::new(1, stamp).expect("there are addresses")
        };
        assert!(mailbox.take().is_none());
        for round in 1..=PLACES as u64 {
            assert!(mailbox.post(parcel(round)).is_ok());
        }
        let returned = mailbox.post(parcel(100)).expect_err("there is no room");
        assert_eq!(returned.stamp().round, 100);
        let mut rounds: Vec<u64> = core::iter::from_fn(|| mailbox.take())
            .map(|parcel| parcel.stamp().round)
            .collect();
        rounds.sort_unstable();
        assert!(rounds.into_iter().eq(1..=PLACES as u64));
    }
}
