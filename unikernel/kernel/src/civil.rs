//! The civil calendar: from the CMOS clock's registers to a date, and from that to seconds since 1970.

/// A date and time of day in UTC, in the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CivilTime {
    /// The year, for example 2026.
    pub(crate) year: u16,
    /// The month, 1 to 12.
    pub(crate) month: u8,
    /// The day of the month, from 1.
    pub(crate) day: u8,
    /// The hour, 0 to 23.
    pub(crate) hour: u8,
    /// The minute, 0 to 59.
    pub(crate) minute: u8,
    /// The second, 0 to 60 (a leap second counts as the next minute's first).
    pub(crate) second: u8,
}

impl CivilTime {
    /// Seconds since 1970-01-01 00:00:00 UTC as POSIX counts them, or `None` if this is no such date or lies before it.
    pub(crate) fn unix_seconds(self) -> Option<u64> {
        let valid = self.year >= 1970
            && (1..=12).contains(&self.month)
            && (1..=days_in_month(self.year, self.month)).contains(&self.day)
            && self.hour <= 23
            && self.minute <= 59
            && self.second <= 60;
        if !valid {
            return None;
        }
        let seconds_of_day =
            (u64::from(self.hour) * 60 + u64::from(self.minute)) * 60 + u64::from(self.second);
        Some(days_since_1970(self.year, self.month, self.day) * 86_400 + seconds_of_day)
    }
}

/// The registers of a CMOS clock in their own encoding (Motorola MC146818A data sheet, "Address Map").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CmosRegisters {
    /// The second.
    pub(crate) second: u8,
    /// The minute.
    pub(crate) minute: u8,
    /// The hour; on a 12-hour clock, bit 7 says afternoon.
    pub(crate) hour: u8,
    /// The day of the month.
    pub(crate) day: u8,
    /// The month.
    pub(crate) month: u8,
    /// The year in its century.
    pub(crate) year: u8,
    /// The century, where there is a register for it.
    pub(crate) century: Option<u8>,
    /// Register B, which says how the others are encoded.
    pub(crate) register_b: u8,
}

impl CmosRegisters {
    /// The date that the registers stand for, which may be impossible. Without a century, years from 70 on are the 20th's.
    pub(crate) fn decode(self) -> CivilTime {
        /// Register B: hours count to 24.
        const HOURS_24: u8 = 1 << 1;
        /// Register B: numbers are binary, else BCD.
        const BINARY: u8 = 1 << 2;
        const AFTERNOON: u8 = 1 << 7;

        let binary = self.register_b & BINARY != 0;
        let number = |value: u8| {
            if binary {
                value
            } else {
                (value >> 4) * 10 + (value & 0xf)
            }
        };
        let hour = if self.register_b & HOURS_24 != 0 {
            number(self.hour)
        } else {
            number(self.hour & !AFTERNOON) % 12 + if self.hour & AFTERNOON != 0 { 12 } else { 0 }
        };
        let year = u16::from(number(self.year));
        let century = match self.century.map(number) {
            Some(century @ 19..) => u16::from(century),
            _ if year >= 70 => 19,
            _ => 20,
        };
        CivilTime {
            year: century * 100 + year,
            month: number(self.month),
            day: number(self.day),
            hour,
            minute: number(self.minute),
            second: number(self.second),
        }
    }
}

/// The length of a month (1 to 12) in days.
fn days_in_month(year: u16, month: u8) -> u8 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a valid date that is not before it.
///
/// The year is taken to begin in March, which puts the leap day at its end; (153 m + 2) / 5 is the number of days before
/// the m-th month then.
fn days_since_1970(year: u16, month: u8, day: u8) -> u64 {
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH: u64 = 719_468;
    let from_march = u64::from((month + 9) % 12);
    let year = u64::from(year) - u64::from(month <= 2);
    let day_of_year = (153 * from_march + 2) / 5 + u64::from(day) - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(year: u16, month: u8, day: u8, hour: u8, minute: u8, second: u8) -> Option<u64> {
        CivilTime {
            year,
            month,
            day,
            hour,
            minute,
            second,
        }
        .unix_seconds()
    }

    /// Known answers: `date -u -d … +%s`.
    #[test]
    fn known_dates() {
        assert_eq!(at(1970, 1, 1, 0, 0, 0), Some(0));
        assert_eq!(at(1999, 12, 31, 23, 59, 59), Some(946_684_799));
        assert_eq!(at(2000, 2, 29, 12, 0, 0), Some(951_825_600));
        assert_eq!(at(2000, 3, 1, 0, 0, 0), Some(951_868_800));
        assert_eq!(at(2009, 2, 13, 23, 31, 30), Some(1_234_567_890));
        assert_eq!(at(2038, 1, 19, 3, 14, 8), Some(1 << 31));
        assert_eq!(at(2100, 3, 1, 0, 0, 0), Some(4_107_542_400));
    }

    #[test]
    fn every_day_is_one_after_the_day_before() {
        let mut expected = 0;
        for year in 1970..=2400 {
            for month in 1..=12 {
                for day in 1..=days_in_month(year, month) {
                    assert_eq!(
                        at(year, month, day, 0, 0, 0),
                        Some(expected * 86_400),
                        "{year}-{month}-{day}"
                    );
                    expected += 1;
                }
            }
        }
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for (year, month, day) in [
            (1969, 12, 31),
            (2026, 0, 1),
            (2026, 13, 1),
            (2026, 1, 0),
            (2026, 4, 31),
            (2100, 2, 29),
        ] {
            assert_eq!(at(year, month, day, 0, 0, 0), None);
        }
        assert_eq!(at(2026, 1, 1, 24, 0, 0), None);
        assert_eq!(at(2026, 1, 1, 0, 60, 0), None);
        assert_eq!(at(2026, 1, 1, 0, 0, 61), None);
    }

    const BCD_24: u8 = 0b010;
    const BINARY_24: u8 = 0b110;
    const BCD_12: u8 = 0b000;

    fn registers(hour: u8, year: u8, century: Option<u8>, register_b: u8) -> CmosRegisters {
        CmosRegisters {
            second: 0x05,
            minute: 0x04,
            hour,
            day: 0x03,
            month: 0x02,
            year,
            century,
            register_b,
        }
    }

    #[test]
    fn cmos_encodings() {
        let expected = CivilTime {
            year: 2026,
            month: 2,
            day: 3,
            hour: 23,
            minute: 4,
            second: 5,
        };
        assert_eq!(registers(0x23, 0x26, Some(0x20), BCD_24).decode(), expected);
        assert_eq!(registers(23, 26, Some(20), BINARY_24).decode(), expected);
        assert_eq!(registers(0x91, 0x26, None, BCD_12).decode(), expected);
    }

    #[test]
    fn cmos_midnight_and_noon_are_12() {
        for (hour, expected) in [(0x12, 0), (0x01, 1), (0x11, 11), (0x92, 12), (0x81, 13)] {
            assert_eq!(
                registers(hour, 0x26, None, BCD_12).decode().hour,
                expected,
                "{hour:#x}"
            );
        }
    }

    #[test]
    fn cmos_centuries() {
        for (year, century, expected) in [
            (0x69, None, 2069),
            (0x70, None, 1970),
            (0x70, Some(0x20), 2070),
            (0x99, Some(0x19), 1999),
            (0x26, Some(0), 2026),
        ] {
            assert_eq!(registers(0, year, century, BCD_24).decode().year, expected);
        }
    }

    #[test]
    fn cmos_garbage_is_no_date() {
        // What reads as all ones is no clock at all.
        let nothing = CmosRegisters {
            second: 0xff,
            minute: 0xff,
            hour: 0xff,
            day: 0xff,
            month: 0xff,
            year: 0xff,
            century: Some(0xff),
            register_b: 0xff,
        };
        assert_eq!(nothing.decode().unix_seconds(), None);
        assert_eq!(
            CmosRegisters {
                register_b: 0,
                ..nothing
            }
            .decode()
            .unix_seconds(),
            None
        );
    }
}
