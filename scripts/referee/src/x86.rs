//! The few instructions that are recognised by their bytes.

/// A marker: the 8-byte NOP `0f 1f 84 00 NN 00 ed 5e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The phase of this even number starts.
    Start(u8),
    /// The phase of this even number ends; the marker bears the next odd number.
    End(u8),
}

impl Marker {
    /// The marker that `instruction` is, if it is one.
    #[must_use]
    pub fn decode(instruction: &[u8]) -> Option<Self> {
        let [0x0f, 0x1f, 0x84, 0x00, number, 0x00, 0xed, 0x5e] = *instruction else {
            return None;
        };
        let phase = number & !1;
        Some(if number == phase {
            Self::Start(phase)
        } else {
            Self::End(phase)
        })
    }
}

/// A string instruction with a repeat prefix.
///
/// Source: Intel SDM volume 2, "REP/REPE/REPZ/REPNE/REPNZ".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatedString {
    /// `STOS`, `MOVS`: each iteration stores once.
    OneStore,
    /// `LODS`, `SCAS`, `OUTS`: each iteration loads once.
    OneLoad,
    /// `CMPS`: each iteration loads twice.
    TwoLoads,
    /// `INS`: QEMU stores twice in each iteration, first a zero so that the instruction can be restarted after a fault.
    TwoStores,
}

impl RepeatedString {
    /// The repeated string instruction that `instruction` is, if it is one.
    #[must_use]
    pub fn decode(instruction: &[u8]) -> Option<Self> {
        let mut repeated = false;
        for &byte in instruction {
            match byte {
                0xf2 | 0xf3 => repeated = true,
                // Operand size, address size, segments, REX.
                0x66 | 0x67 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x40..=0x4f => {}
                _ if !repeated => return None,
                0xa4 | 0xa5 | 0xaa | 0xab => return Some(Self::OneStore),
                0x6e | 0x6f | 0xac..=0xaf => return Some(Self::OneLoad),
                0xa6 | 0xa7 => return Some(Self::TwoLoads),
                0x6c | 0x6d => return Some(Self::TwoStores),
                _ => return None,
            }
        }
        None
    }

    /// Whether its iterations are seen as stores; else as loads.
    #[must_use]
    pub fn is_seen_by_stores(self) -> bool {
        matches!(self, Self::OneStore | Self::TwoStores)
    }

    /// How many such accesses make an iteration: 1 or 2.
    #[must_use]
    pub fn accesses_per_iteration(self) -> u64 {
        match self {
            Self::OneStore | Self::OneLoad => 1,
            Self::TwoLoads | Self::TwoStores => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_numbers_start_and_odd_ones_end() {
        let marker = |number| Marker::decode(&[0x0f, 0x1f, 0x84, 0x00, number, 0x00, 0xed, 0x5e]);
        assert_eq!(marker(0), Some(Marker::Start(0)));
        assert_eq!(marker(1), Some(Marker::End(0)));
        assert_eq!(marker(0xfe), Some(Marker::Start(0xfe)));
        assert_eq!(marker(0xff), Some(Marker::End(0xfe)));
    }

    #[test]
    fn other_nops_are_no_markers() {
        assert_eq!(
            Marker::decode(&[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00]),
            None
        );
        assert_eq!(
            Marker::decode(&[0x0f, 0x1f, 0x84, 0x00, 0x02, 0x01, 0xed, 0x5e]),
            None
        );
        assert_eq!(
            Marker::decode(&[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x02, 0x00, 0xed, 0x5e]),
            None
        );
        assert_eq!(Marker::decode(&[0x0f, 0x1f, 0x84]), None);
        assert_eq!(Marker::decode(&[]), None);
    }

    #[test]
    fn repeated_string_instructions_are_told_from_the_rest() {
        use RepeatedString::{OneLoad, OneStore, TwoLoads, TwoStores};
        let known: [(&[u8], Option<RepeatedString>); 12] = [
            (&[0xf3, 0xaa], Some(OneStore)),                   // rep stosb
            (&[0xf3, 0x48, 0xab], Some(OneStore)),             // rep stosq
            (&[0xf3, 0x48, 0xa5], Some(OneStore)),             // rep movsq
            (&[0x65, 0xf3, 0x67, 0x66, 0xa5], Some(OneStore)), // rep movsw, segment and address size overridden
            (&[0xf2, 0xae], Some(OneLoad)),                    // repne scasb
            (&[0xf3, 0x6f], Some(OneLoad)),                    // rep outsl
            (&[0xf3, 0xa6], Some(TwoLoads)),                   // repe cmpsb
            (&[0xf3, 0x6c], Some(TwoStores)),                  // rep insb
            (&[0x48, 0xab], None),                             // stosq, once
            (&[0xf3, 0x90], None),                             // pause
            (&[0xf3, 0x0f, 0xa4], None),                       // no string instruction after the escape byte
            (&[0xf3], None),
        ];
        for (bytes, expected) in known {
            assert_eq!(RepeatedString::decode(bytes), expected, "{bytes:x?}");
        }
    }
}
