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

/// Whether `instruction`, of 64-bit code, surely completes and passes control to the one behind it: it accesses no memory and can
/// not fault. Of the others many do so too.
///
/// Source: Intel SDM volume 2, appendix A (opcode maps).
#[must_use]
pub fn surely_completes(instruction: &[u8]) -> bool {
    // Operand size and segments, then REX.
    let legacy = |byte: &u8| matches!(byte, 0x66 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
    let start = instruction.iter().take_while(|&byte| legacy(byte)).count();
    let opcode = match &instruction[start..] {
        [0x40..=0x4f, rest @ ..] => rest,
        rest => rest,
    };
    let registers = |modrm: u8| modrm >= 0xc0;
    let digit = |modrm: u8| (modrm >> 3) & 7;
    match *opcode {
        // MOVSXD, IMUL, arithmetic on an immediate number, TEST, XCHG, MOV, shifts.
        [
            0x63 | 0x69 | 0x6b | 0x80 | 0x81 | 0x83..=0x8b | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3,
            modrm,
            ..,
        ] => registers(modrm),
        // LEA; XCHG and NOP; CDQE, CQO; TEST and MOV of an immediate number.
        [0x8d | 0x90..=0x99 | 0xa8 | 0xa9 | 0xb0..=0xbf, ..] => true,
        // TEST, NOT, NEG, MUL, IMUL; not DIV.
        [0xf6 | 0xf7, modrm, ..] => registers(modrm) && digit(modrm) < 6,
        // INC, DEC.
        [0xfe | 0xff, modrm, ..] => registers(modrm) && digit(modrm) < 2,
        // CMOVcc, SETcc, BT and its kin, IMUL, MOVZX, MOVSX.
        [
            0x0f,
            0x40..=0x4f | 0x90..=0x9f | 0xa3 | 0xab | 0xaf | 0xb3 | 0xb6 | 0xb7 | 0xba | 0xbb | 0xbe | 0xbf,
            modrm,
            ..,
        ] => registers(modrm),
        // NOP with an operand, which it does not access; BSWAP.
        [0x0f, 0x1f | 0xc8..=0xcf, ..] => true,
        // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP: of registers, then of an immediate number.
        [byte @ 0x00..=0x3f, modrm, ..] if byte & 7 < 4 => registers(modrm),
        [byte @ 0x00..=0x3f, ..] => matches!(byte & 7, 4 | 5),
        _ => false,
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

    #[test]
    fn what_may_fault_or_jump_does_not_surely_complete() {
        let complete: [&[u8]; 14] = [
            &[0x48, 0x01, 0xd8],                   // add rax, rbx
            &[0x48, 0x83, 0xe8, 0x01],             // sub rax, 1
            &[0x3c, 0x07],                         // cmp al, 7
            &[0x31, 0xc0],                         // xor eax, eax
            &[0x48, 0x8d, 0x04, 0x9b],             // lea rax, [rbx+rbx*4]
            &[0x48, 0x89, 0xd8],                   // mov rax, rbx
            &[0x41, 0xb9, 0x01, 0x00, 0x00, 0x00], // mov r9d, 1
            &[0x48, 0xc1, 0xe0, 0x03],             // shl rax, 3
            &[0x0f, 0xb6, 0xc3],                   // movzx eax, bl
            &[0x0f, 0x94, 0xc0],                   // sete al
            &[0x0f, 0x1f, 0x40, 0x00],             // nop [rax]
            &[0x66, 0x90],                         // nop
            &[0xf7, 0xd8],                         // neg eax
            &[0xff, 0xc9],                         // dec ecx
        ];
        for bytes in complete {
            assert!(surely_completes(bytes), "{bytes:x?}");
        }
        let others: [&[u8]; 19] = [
            &[0x48, 0x8b, 0x03],                   // mov rax, [rbx]
            &[0x48, 0x01, 0x03],                   // add [rbx], rax
            &[0x0f, 0xb6, 0x03],                   // movzx eax, byte [rbx]
            &[0xf7, 0xf3],                         // div ebx
            &[0xff, 0xd0],                         // call rax
            &[0xff, 0xe0],                         // jmp rax
            &[0x50],                               // push rax
            &[0xc3],                               // ret
            &[0xe8, 0x00, 0x00, 0x00, 0x00],       // call
            &[0x74, 0x00],                         // je
            &[0x0f, 0x84, 0x00, 0x00, 0x00, 0x00], // je
            &[0xf3, 0xaa],                         // rep stosb
            &[0xf0, 0x48, 0x01, 0x03],             // lock add [rbx], rax
            &[0x0f, 0x0b],                         // ud2
            &[0xcc],                               // int3
            &[0xf4],                               // hlt
            &[0x0f, 0x30],                         // wrmsr
            &[0xf3, 0x90],                         // pause
            &[0x0f, 0x01, 0xf8],                   // swapgs
        ];
        for bytes in others {
            assert!(!surely_completes(bytes), "{bytes:x?}");
        }
        assert!(!surely_completes(&[]));
    }
}
