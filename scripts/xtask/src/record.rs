//! How a guest ended: the record that it leaves on the debug console, and the exit status that follows from it.

use anyhow::{Context as _, Result};

/// The beginning of the record, the last line that a guest writes to the debug console.
const PREFIX: &str = "exit ";

/// What ended a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The application's `main` returned, or the application ended itself.
    Program,
    /// A panic, of the application or of the kernel.
    Panic,
    /// A CPU exception.
    Exception,
    /// The boot failed: the command line, the topology or the machine does not fit.
    Boot,
}

/// The record of a guest's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The status that the guest gave.
    pub status: u8,
    /// What ended it.
    pub cause: Cause,
}

impl Record {
    /// Finds the record in what a guest wrote to the debug console; `None` if its last line is none.
    ///
    /// # Errors
    /// If the last line is a record, but malformed.
    pub fn parse(console: &str) -> Result<Option<Self>> {
        let Some(line) = console.lines().rev().map(str::trim).find(|line| !line.is_empty()) else {
            return Ok(None);
        };
        let Some(words) = line.strip_prefix(PREFIX) else {
            return Ok(None);
        };
        let mut words = words.split_ascii_whitespace();
        let mut value = |key: &str| {
            let word = words.next().and_then(|word| word.split_once('='));
            word.filter(|(found, _)| *found == key).map(|(_, value)| value)
        };
        let record = (|| {
            let status = value("status")?.parse().ok()?;
            let cause = match value("cause")? {
                "program" => Cause::Program,
                "panic" => Cause::Panic,
                "exception" => Cause::Exception,
                "boot" => Cause::Boot,
                _ => return None,
            };
            Some(Self { status, cause })
        })();
        record
            .with_context(|| format!("the guest left a malformed record: `{line}`"))
            .map(Some)
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The application ended with this status.
    Program(u8),
    /// The application or the kernel panicked.
    Panic,
    /// The guest stopped at a CPU exception.
    Exception,
    /// The kernel refused to boot.
    Boot,
    /// The machine was reset without a record: a triple fault, or a reset.
    Reset,
    /// The guest ran longer than it may, and was stopped.
    Timeout,
    /// The user interrupted the run.
    Interrupted,
}

impl From<Record> for End {
    fn from(record: Record) -> Self {
        match record.cause {
            Cause::Program => Self::Program(record.status),
            Cause::Panic => Self::Panic,
            Cause::Exception => Self::Exception,
            Cause::Boot => Self::Boot,
        }
    }
}

impl End {
    /// The exit status that stands for this end.
    pub fn status(self) -> u8 {
        match self {
            Self::Program(status) => status,
            Self::Panic => 101,
            Self::Exception => 102,
            Self::Boot => 103,
            Self::Reset => 104,
            Self::Timeout => 124,
            Self::Interrupted => 130,
        }
    }

    /// The name of the cause in JSON.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Program(_) => "program",
            Self::Panic => "panic",
            Self::Exception => "exception",
            Self::Boot => "boot",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Interrupted => "interrupted",
        }
    }

    /// What to tell the user; `None` if the application ended by itself and has said what there is to say.
    pub fn message(self) -> Option<&'static str> {
        match self {
            Self::Program(_) => None,
            Self::Panic => Some("the guest panicked; its report is on the console"),
            Self::Exception => Some("a CPU exception stopped the guest; its report is on the console"),
            Self::Boot => Some("the kernel did not boot; its last lines on the console say why"),
            Self::Reset => {
                Some("the machine was reset and left no record: a triple fault, or a reset by the guest")
            }
            Self::Timeout => Some("the guest ran past the timeout and was stopped"),
            Self::Interrupted => Some("interrupted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_are_read() {
        let record = |status, cause| Some(Record { status, cause });
        let parse = |text| Record::parse(text).unwrap();
        assert_eq!(parse("exit status=3 cause=program\n"), record(3, Cause::Program));
        assert_eq!(
            parse("early words\nexit status=0 cause=program"),
            record(0, Cause::Program)
        );
        assert_eq!(
            parse("exit status=101 cause=panic\r\n\n"),
            record(101, Cause::Panic)
        );
        assert_eq!(
            parse("exit status=102 cause=exception"),
            record(102, Cause::Exception)
        );
        assert_eq!(
            parse("exit status=103 cause=boot more=words"),
            record(103, Cause::Boot)
        );
        assert_eq!(parse(""), None);
        assert_eq!(parse("exit status=0 cause=program\nsomething after it\n"), None);
    }

    #[test]
    fn malformed_records_are_quoted() {
        for wrong in [
            "exit status=256 cause=program",
            "exit cause=program status=1",
            "exit status=1 cause=love",
            "exit x",
        ] {
            let message = Record::parse(wrong).unwrap_err().to_string();
            assert!(message.contains(wrong), "{message}");
        }
    }

    #[test]
    fn only_the_programs_own_status_is_passed_on() {
        let end = |cause| End::from(Record { status: 7, cause }).status();
        assert_eq!(end(Cause::Program), 7);
        assert_eq!(
            [Cause::Panic, Cause::Exception, Cause::Boot].map(end),
            [101, 102, 103]
        );
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(exit |status=|cause=|[0-9]|program|\\PC|\n){0,20}") {
            let _ = Record::parse(&text);
        }
    }
}
