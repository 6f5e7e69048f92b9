//! What `cargo xtask compare` and the first process of its Linux guest agree on: where the initramfs has the program and its
//! arguments, and how the guest's counters are written to the console.

/// The program in the initramfs.
pub const PROGRAM: &str = "program";

/// The program's arguments in the initramfs, each ended by a NUL byte, as in `/proc/PID/cmdline`.
pub const ARGUMENTS: &str = "arguments";

/// The program's arguments as the file [`ARGUMENTS`] has them. An argument can not contain a NUL byte; Linux could not pass it on.
#[must_use]
pub fn encode_arguments(arguments: &[String]) -> Vec<u8> {
    arguments
        .iter()
        .flat_map(|argument| argument.bytes().chain([0]))
        .collect()
}

/// The arguments in the file [`ARGUMENTS`].
///
/// # Errors
/// If they are not UTF-8.
pub fn decode_arguments(file: &[u8]) -> Result<Vec<String>, std::str::Utf8Error> {
    let text = std::str::from_utf8(file)?;
    Ok(text.split_terminator('\0').map(str::to_owned).collect())
}

/// A part of the console: what a file of Linux's said at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `/proc/vmstat` before the program ran.
    VmstatBefore,
    /// `/proc/interrupts` before the program ran.
    InterruptsBefore,
    /// `/proc/vmstat` after the program ended.
    VmstatAfter,
    /// `/proc/interrupts` after the program ended.
    InterruptsAfter,
}

impl Section {
    /// The file that is shown.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::VmstatBefore | Self::VmstatAfter => "/proc/vmstat",
            Self::InterruptsBefore | Self::InterruptsAfter => "/proc/interrupts",
        }
    }

    const fn time(self) -> &'static str {
        match self {
            Self::VmstatBefore | Self::InterruptsBefore => "before",
            Self::VmstatAfter | Self::InterruptsAfter => "after",
        }
    }

    fn delimiter(self, edge: &str) -> String {
        format!("--- {edge} of {} {} the program ---", self.file(), self.time())
    }

    /// The text between two lines that delimit it.
    #[must_use]
    pub fn wrap(self, text: &str) -> String {
        let line_end = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let (start, end) = (self.delimiter("start"), self.delimiter("end"));
        format!("{start}\n{text}{line_end}{end}\n")
    }

    /// This section's text in what came from the console, or `None` if it is not there as a whole.
    #[must_use]
    pub fn find(self, console: &str) -> Option<&str> {
        let (start, end) = (self.delimiter("start") + "\n", self.delimiter("end") + "\n");
        let from = console.find(&start)? + start.len();
        let text = &console[from..];
        Some(&text[..text.find(&end)?])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sections_are_found_whole_or_not_at_all() {
        let vmstat = Section::VmstatBefore.wrap("nr_free_pages 7\n");
        let console = format!("noise\n{vmstat}{}more\n", Section::VmstatAfter.wrap("pgfault 1"));
        assert_eq!(Section::VmstatBefore.find(&console), Some("nr_free_pages 7\n"));
        assert_eq!(Section::VmstatAfter.find(&console), Some("pgfault 1\n"));
        assert_eq!(Section::InterruptsBefore.find(&console), None);
        let torn = &console[..console.find("end of").unwrap()];
        assert_eq!(Section::VmstatBefore.find(torn), None);
    }

    proptest! {
        #[test]
        fn arguments_come_out_as_they_went_in(arguments in proptest::collection::vec("[^\0]{0,12}", 0..6)) {
            prop_assert_eq!(decode_arguments(&encode_arguments(&arguments)).unwrap(), arguments);
        }
    }
}
