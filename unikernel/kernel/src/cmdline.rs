//! The kernel's command line: kernel words, then ` -- `, then the program's arguments.
//!
//! Words are separated by ASCII white space. Double quotes keep white space together, in a whole word or in a part of one, and a
//! backslash, inside or outside of quotes, takes the character after it as it is: `"a \"b\"\\"` is `a "b"\`. The first word that is
//! a plain `--`, without quotes or backslashes, ends the kernel's words. If a word is repeated, the last one holds, so that a boot
//! loader's menu can append to its defaults; `numa=` collects. An unknown word is an error.
//!
//! | word | meaning | default |
//! |---|---|---|
//! | `log=LEVEL` | the least important messages that are shown: off, error, warn, info, debug or trace | `info` |
//! | `numa=…` | the topology, in the grammar of `homenode_topology::text` | the firmware's |
//! | `ip=dhcp`, `ip=off`, `ip=ADDR/LEN[,GATEWAY]` | the network | `dhcp` |
//! | `metrics.port=PORT` | the TCP port of the metrics | 9100 |
//! | `metrics.linger=TIME` | how long the metrics stay after the program's end | 0 s |
//! | `housekeeping=CPU` | the CPU that does the network and nothing of the program | none |
//! | `ptlock=split`, `ptlock=coarse` | a lock for each page-table page, or one for all, for comparison | `split` |
//! | `tlb.lazy=on`, `tlb.lazy=off` | whether memory that is given back waits for CPUs to drop their translations by themselves | `on` |
//! | `tlb.deadline=TIME` | how long it waits before they are interrupted | 10 ms |
//! | `tlb.pending_max=SIZE` | how much of it may wait on each node | 1/32 of the node's memory |
//! | `tlb.range_max=PAGES` | the most pages that CPUs drop one by one | 33 |

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::ops::RangeInclusive;
use core::str::FromStr;
use core::time::Duration;

use homenode_mm::{LockScheme, TlbEngine};
use homenode_topology::{Bytes, CpuId};
use log::LevelFilter;

/// All kernel words, for the search for the nearest one.
const WORDS: [&str; 11] = [
    "log",
    "numa",
    "ip",
    "metrics.port",
    "metrics.linger",
    "housekeeping",
    "ptlock",
    "tlb.lazy",
    "tlb.deadline",
    "tlb.pending_max",
    "tlb.range_max",
];

/// What `tlb.deadline=` takes.
const DEADLINES: RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_secs(60);

/// The most that `tlb.range_max=` takes.
const MOST_RANGE_PAGES: u32 = 512;

/// The word between the kernel's and the program's.
const SEPARATOR: &str = "--";

/// What the command line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    /// The least important messages that are shown.
    pub(crate) log: LevelFilter,
    /// The words `numa=…`, whole.
    pub(crate) numa: Vec<String>,
    /// How the network is set up.
    pub(crate) network: Network,
    /// The TCP port of the metrics.
    pub(crate) metrics_port: u16,
    /// How long the metrics stay after the program's end.
    pub(crate) metrics_linger: Duration,
    /// The CPU that does the network and nothing of the program.
    pub(crate) housekeeping: Option<CpuId>,
    /// How page-table pages are locked.
    pub(crate) page_table_locks: LockScheme,
    /// What becomes of memory that is given back.
    pub(crate) tlb: Tlb,
    /// The program's arguments.
    pub(crate) arguments: Vec<String>,
}

impl Default for CommandLine {
    fn default() -> Self {
        Self {
            log: LevelFilter::Info,
            numa: Vec::new(),
            network: Network::Dhcp,
            metrics_port: 9100,
            metrics_linger: Duration::ZERO,
            housekeeping: None,
            page_table_locks: LockScheme::Split,
            tlb: Tlb::default(),
            arguments: Vec::new(),
        }
    }
}

/// What becomes of memory that is given back, until no CPU has translations of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tlb {
    /// Whether it waits until CPUs drop them by themselves.
    pub(crate) lazy: bool,
    /// How long it waits before they are interrupted: not 0.
    pub(crate) deadline: Duration,
    /// How many bytes may wait on each node, if the line says so.
    pub(crate) pending_max_bytes: Option<u64>,
    /// The most pages that CPUs drop one by one.
    pub(crate) range_max_pages: u32,
}

impl Default for Tlb {
    fn default() -> Self {
        Self {
            lazy: true,
            deadline: Duration::from_millis(10),
            pending_max_bytes: None,
            range_max_pages: TlbEngine::RANGE_MAX_PAGES,
        }
    }
}

/// How the network is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Not at all.
    Off,
    /// By DHCP.
    Dhcp,
    /// By hand.
    Static {
        /// The machine's address, one that a machine can have.
        address: Ipv4Addr,
        /// How many leading bits of the address are the network's, 32 at most.
        prefix_len: u8,
        /// Who is asked to reach other networks, a machine of this network.
        gateway: Option<Ipv4Addr>,
    },
}

/// What is wrong with a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// It is no text.
    NotUtf8 {
        /// The first wrong byte's offset.
        offset: usize,
    },
    /// A quote is not closed.
    OpenQuote { token: String },
    /// Nothing comes after a backslash.
    TrailingBackslash { token: String },
    /// There is no such word.
    UnknownWord {
        token: String,
        /// The word that it resembles most, if it resembles any.
        nearest: Option<&'static str>,
    },
    /// A word's value is missing or wrong.
    BadValue {
        token: String,
        /// What to write instead.
        remedy: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 { offset } => {
                write!(
                    f,
                    "byte {offset} of the command line is not UTF-8: write it in UTF-8"
                )
            }
            Self::OpenQuote { token } => write!(f, "{}: the quote is not closed: add a \"", Quoted(token)),
            Self::TrailingBackslash { token } => {
                write!(
                    f,
                    "{}: nothing comes after the backslash: write \\\\ for a backslash",
                    Quoted(token)
                )
            }
            Self::UnknownWord { token, nearest } => {
                write!(f, "{}: unknown kernel word: ", Quoted(token))?;
                match nearest {
                    Some(nearest) => write!(f, "did you mean {nearest}= ?")?,
                    None => {
                        f.write_str("there are ")?;
                        for (index, word) in WORDS.iter().enumerate() {
                            write!(f, "{}{word}=", if index == 0 { "" } else { ", " })?;
                        }
                    }
                }
                f.write_str(" (the program's arguments come after --)")
            }
            Self::BadValue { token, remedy } => write!(f, "{}: write {remedy}", Quoted(token)),
        }
    }
}

impl core::error::Error for Error {}

/// A token as the user wrote it, but for control characters, which could upset a terminal.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`")?;
        for char in self.0.chars() {
            if char.is_control() {
                write!(f, "{}", char.escape_default())?;
            } else {
                write!(f, "{char}")?;
            }
        }
        f.write_str("`")
    }
}

/// Reads a command line.
///
/// # Errors
/// If it is not of the grammar above.
pub(crate) fn parse(bytes: &[u8]) -> Result<CommandLine, Error> {
    let text = str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
        offset: error.valid_up_to(),
    })?;
    let mut line = CommandLine::default();
    let mut words = Words { rest: text };
    while let Some(word) = words.next().transpose()? {
        if word.raw == SEPARATOR {
            line.arguments = words
                .map(|word| word.map(|word| word.text))
                .collect::<Result<_, _>>()?;
            break;
        }
        line.apply(word)?;
    }
    Ok(line)
}

impl CommandLine {
    /// Does as a kernel word says.
    fn apply(&mut self, word: Word<'_>) -> Result<(), Error> {
        let (key, value) = word.text.split_once('=').unwrap_or((&word.text, ""));
        let bad_value = |remedy| Error::BadValue {
            token: word.raw.into(),
            remedy,
        };
        match key {
            "log" => {
                self.log = value
                    .parse()
                    .map_err(|_| bad_value("log= with one of off, error, warn, info, debug and trace"))?;
            }
            "numa" => self.numa.push(word.text),
            "ip" => self.network = value.parse().map_err(bad_value)?,
            "metrics.port" => {
                self.metrics_port = number(value)
                    .filter(|&port| port > 0)
                    .ok_or_else(|| bad_value("metrics.port= with a TCP port from 1 to 65535"))?;
            }
            "metrics.linger" => {
                self.metrics_linger = duration(value).ok_or_else(|| {
                    bad_value("metrics.linger= with a whole number and ns, us, ms, s or m, such as 30s")
                })?;
            }
            "housekeeping" => {
                let cpu = number(value).ok_or_else(|| bad_value("housekeeping= with the number of a CPU"))?;
                self.housekeeping = Some(CpuId(cpu));
            }
            "ptlock" => {
                self.page_table_locks = match value {
                    "split" => LockScheme::Split,
                    "coarse" => LockScheme::Coarse,
                    _ => return Err(bad_value("ptlock=split or ptlock=coarse")),
                };
            }
            "tlb.lazy" => {
                self.tlb.lazy = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(bad_value("tlb.lazy=on or tlb.lazy=off")),
                };
            }
            "tlb.deadline" => {
                self.tlb.deadline = duration(value)
                    .filter(|deadline| DEADLINES.contains(deadline))
                    .ok_or_else(|| bad_value("tlb.deadline= with a time from 1us to 60s, such as 10ms"))?;
            }
            "tlb.pending_max" => {
                let Bytes(bytes) = value.parse().map_err(|_| {
                    bad_value("tlb.pending_max= with a size, such as 64M; 0 lets nothing wait")
                })?;
                self.tlb.pending_max_bytes = Some(bytes);
            }
            "tlb.range_max" => {
                self.tlb.range_max_pages = number(value)
                    .filter(|&pages| pages <= MOST_RANGE_PAGES)
                    .ok_or_else(|| {
                        bad_value("tlb.range_max= with a number of pages from 0 to 512; 0 drops all translations each time")
                    })?;
            }
            _ => {
                return Err(Error::UnknownWord {
                    nearest: nearest_word(key),
                    token: word.raw.into(),
                });
            }
        }
        Ok(())
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "off" => return Ok(Self::Off),
            "dhcp" => return Ok(Self::Dhcp),
            _ => {}
        }
        let (network, gateway) = match text.split_once(',') {
            Some((network, gateway)) => (network, Some(gateway)),
            None => (text, None),
        };
        let (address, prefix_len) = network
            .split_once('/')
            .and_then(|(address, len)| Some((address.parse().ok()?, number(len).filter(|&len| len <= 32)?)))
            .ok_or("ip=dhcp, ip=off or ip=ADDRESS/LENGTH,GATEWAY, such as ip=10.0.2.15/24,10.0.2.2")?;
        if !is_machine(address) {
            return Err("ip= with the address of one machine, such as ip=10.0.2.15/24,10.0.2.2");
        }
        let gateway = gateway.map(|gateway| {
            gateway
                .parse()
                .ok()
                .filter(|&gateway| is_machine(gateway) && in_one_network(address, gateway, prefix_len))
                .ok_or("ip= with a gateway in the address's own network, such as ip=10.0.2.15/24,10.0.2.2")
        });
        Ok(Self::Static {
            address,
            prefix_len,
            gateway: gateway.transpose()?,
        })
    }
}

/// Whether a machine can have this address.
fn is_machine(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast()
}

/// Whether the first `prefix_len` bits of two addresses are the same.
fn in_one_network(one: Ipv4Addr, other: Ipv4Addr, prefix_len: u8) -> bool {
    let different = one.to_bits() ^ other.to_bits();
    different.leading_zeros() >= prefix_len.into()
}

/// A decimal number without a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// A whole number with a unit.
fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|char: char| !char.is_ascii_digit())?;
    let (count, unit) = text.split_at(unit_at);
    let count: u64 = number(count)?;
    Some(match unit {
        "ns" => Duration::from_nanos(count),
        "us" => Duration::from_micros(count),
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        "m" => Duration::from_secs(count.checked_mul(60)?),
        _ => return None,
    })
}

/// One word.
#[derive(Debug, PartialEq, Eq)]
struct Word<'a> {
    /// As it was written.
    raw: &'a str,
    /// Without quotes and backslashes.
    text: String,
}

/// Takes words from the front of a text.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Words<'a> {
    type Item = Result<Word<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.trim_ascii_start();
        self.rest = "";
        if start.is_empty() {
            return None;
        }
        let mut text = String::new();
        let mut quoted = false;
        let mut chars = start.char_indices();
        let mut end = start.len();
        while let Some((at, char)) = chars.next() {
            match char {
                '\\' => match chars.next() {
                    Some((_, char)) => text.push(char),
                    None => return Some(Err(Error::TrailingBackslash { token: start.into() })),
                },
                '"' => quoted = !quoted,
                _ if char.is_ascii_whitespace() && !quoted => {
                    end = at;
                    break;
                }
                _ => text.push(char),
            }
        }
        if quoted {
            return Some(Err(Error::OpenQuote { token: start.into() }));
        }
        let (raw, rest) = start.split_at(end);
        self.rest = rest;
        Some(Ok(Word { raw, text }))
    }
}

/// The kernel word that takes the fewest edits to become `word`, unless that would change more than half of it.
fn nearest_word(word: &str) -> Option<&'static str> {
    WORDS
        .into_iter()
        .map(|known| (edit_distance(word, known), known))
        .min()
        .filter(|(edits, known)| 2 * edits <= known.len())
        .map(|(_, known)| known)
}

/// How many characters must be inserted, removed or replaced to turn `from` into `to` (Levenshtein's distance, row by row).
fn edit_distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (removed, from) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = removed + 1;
        for (column, to) in to.chars().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> CommandLine {
        parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn message(text: &str) -> String {
        parse(text.as_bytes()).expect_err(text).to_string()
    }

    /// A word that is read back as `word`.
    fn quote(word: &str) -> String {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    }

    #[test]
    fn every_word_is_understood() {
        let line = parsed(
            "log=debug numa=fake=4 ip=192.168.7.2/24,192.168.7.1 metrics.port=80 metrics.linger=2m housekeeping=3\tnuma=off ptlock=coarse \
             tlb.lazy=off tlb.deadline=500us tlb.pending_max=64M tlb.range_max=0 -- --n 128",
        );
        let expected = CommandLine {
            log: LevelFilter::Debug,
            numa: ["numa=fake=4", "numa=off"].map(String::from).into(),
            network: Network::Static {
                address: Ipv4Addr::new(192, 168, 7, 2),
                prefix_len: 24,
                gateway: Some(Ipv4Addr::new(192, 168, 7, 1)),
            },
            metrics_port: 80,
            metrics_linger: Duration::from_secs(120),
            housekeeping: Some(CpuId(3)),
            page_table_locks: LockScheme::Coarse,
            tlb: Tlb {
                lazy: false,
                deadline: Duration::from_micros(500),
                pending_max_bytes: Some(64 << 20),
                range_max_pages: 0,
            },
            arguments: ["--n", "128"].map(String::from).into(),
        };
        assert_eq!(line, expected);
        assert_eq!(parsed(" \t "), CommandLine::default());
        assert_eq!(parsed("ip=off").network, Network::Off);
        assert_eq!(parsed("ip=off ip=dhcp").network, Network::Dhcp);
        let no_gateway = Network::Static {
            address: Ipv4Addr::new(10, 0, 0, 1),
            prefix_len: 8,
            gateway: None,
        };
        assert_eq!(parsed("ip=10.0.0.1/8").network, no_gateway);
    }

    #[test]
    fn quoting_is_as_documented() {
        let line = parsed(r#"-- "a \"b\"\\" c\ d e"f g"h "" -- \--"#);
        assert_eq!(line.arguments, [r#"a "b"\"#, "c d", "ef gh", "", "--", "--"]);
        // A word that is quoted separates nothing.
        assert!(matches!(parse(br#""--""#), Err(Error::UnknownWord { .. })));
        assert_eq!(parsed(r#""log=off""#).log, LevelFilter::Off);
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("250ns"), Some(Duration::from_nanos(250)));
        assert_eq!(duration("7us"), Some(Duration::from_micros(7)));
        assert_eq!(duration("10ms"), Some(Duration::from_millis(10)));
        assert_eq!(duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(duration("0m"), Some(Duration::ZERO));
        let wrong = [
            "",
            "30",
            "s",
            "1.5s",
            "-1s",
            "+1s",
            "1 s",
            "1h",
            "99999999999999999999s",
            "1000000000000000000m",
        ];
        for text in wrong {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_word_names_the_nearest() {
        assert_eq!(
            message("log=info nuam=off"),
            "`nuam=off`: unknown kernel word: did you mean numa= ? (the program's arguments come after --)"
        );
        for (wrong, near) in [
            ("Log=info", "log"),
            ("metrics.prt=1", "metrics.port"),
            ("housekeep=1", "housekeeping"),
        ] {
            assert!(
                message(wrong).contains(&format!("did you mean {near}=")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_word_that_resembles_none_gets_the_list() {
        for wrong in ["é=1", "heapsize=1", "x"] {
            assert!(
                message(wrong).contains(
                    "there are log=, numa=, ip=, metrics.port=, metrics.linger=, housekeeping=, ptlock=, \
                     tlb.lazy=, tlb.deadline=, tlb.pending_max=, tlb.range_max= ("
                ),
                "{}",
                message(wrong)
            );
        }
    }

    #[test]
    fn distances_of_words_are_levenshteins() {
        for (from, to, distance) in [
            ("kitten", "sitting", 3),
            ("", "abc", 3),
            ("flaw", "lawn", 2),
            ("same", "same", 0),
        ] {
            assert_eq!(edit_distance(from, to), distance);
            assert_eq!(edit_distance(to, from), distance);
        }
    }

    #[test]
    fn wrong_values_are_quoted_with_the_remedy() {
        let remedies = [
            ("log=loud", "off, error, warn"),
            ("log", "off, error, warn"),
            ("ip=10.0.2.15", "ip=ADDRESS/LENGTH"),
            ("ip=10.0.2.15/33", "ip=ADDRESS/LENGTH"),
            ("ip=10.0.2.256/24", "ip=ADDRESS/LENGTH"),
            ("ip=224.0.0.1/4", "one machine"),
            ("ip=10.0.2.15/24,10.0.3.2", "own network"),
            ("ip=10.0.2.15/24,", "own network"),
            ("metrics.port=0", "1 to 65535"),
            ("metrics.port=65536", "1 to 65535"),
            ("metrics.port=+80", "1 to 65535"),
            ("metrics.linger=30", "such as 30s"),
            ("housekeeping=last", "number of a CPU"),
            ("ptlock=fine", "ptlock=split or ptlock=coarse"),
            ("tlb.lazy=yes", "tlb.lazy=on or tlb.lazy=off"),
            ("tlb.deadline=0ms", "1us to 60s"),
            ("tlb.deadline=10", "1us to 60s"),
            ("tlb.deadline=2m", "1us to 60s"),
            ("tlb.pending_max=much", "a size, such as 64M"),
            ("tlb.pending_max=", "a size, such as 64M"),
            ("tlb.range_max=513", "0 to 512"),
            ("tlb.range_max=-1", "0 to 512"),
        ];
        for (word, remedy) in remedies {
            let message = message(&format!("log=info {word} -- log=loud"));
            assert!(
                message.starts_with(&format!("`{word}`: write ")) && message.contains(remedy),
                "{message}"
            );
        }
        assert_eq!(
            message("-- \"open"),
            "`\"open`: the quote is not closed: add a \""
        );
        assert!(message("log=info \\").starts_with("`\\`: nothing comes after the backslash"));
        assert!(message("\u{1b}[2J=1").starts_with("`\\u{1b}[2J=1`"));
        let error = parse(b"log=info \xff")
            .expect_err("this is not UTF-8")
            .to_string();
        assert!(error.starts_with("byte 9 of the command line"), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Err(error) = parse(&bytes) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn nothing_like_a_command_line_panics(
            text in r#"((log|numa|ip|metrics\.port|metrics\.linger|housekeeping|ptlock|tlb\.lazy|tlb\.deadline|tlb\.pending_max|tlb\.range_max|--)[= "\\]?[0-9a-z./,é"\\ ]{0,12} ?){0,5}"#,
        ) {
            if let Err(error) = parse(text.as_bytes()) {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn quoted_arguments_come_back(arguments in prop::collection::vec(any::<String>(), 0..6)) {
            let quoted: Vec<String> = arguments.iter().map(|argument| quote(argument)).collect();
            let line = format!("log=warn -- {}", quoted.join(" "));
            prop_assert_eq!(parsed(&line).arguments, arguments);
        }

        #[test]
        fn every_unknown_word_is_reported(word in "[a-z.]{1,20}") {
            prop_assume!(!WORDS.contains(&word.as_str()));
            match parse(word.as_bytes()) {
                Err(Error::UnknownWord { token, .. }) => prop_assert_eq!(token, word),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
