//! The plugin's options, as QEMU passes them on: `name=value` each.

use std::ops::Range;
use std::path::PathBuf;

use crate::cache::Geometry;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Instructions only: fast.
    Totals,
    /// Accesses to memory too: slow.
    Numa {
        /// The description of the machine.
        topology: PathBuf,
        /// The model cache of each vCPU.
        cache: Geometry,
    },
}

/// How kernel and application are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// By the symbols of this image.
    Image(PathBuf),
    /// Linux: by the half of the address space.
    Linux,
}

/// The plugin's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The file that receives the counts.
    pub out: PathBuf,
    /// What is counted.
    pub counts: Counts,
    /// How kernel and application are told apart.
    pub kernel: Kernel,
    /// Further code that zeroes or copies pages.
    pub bulk: Vec<Range<u64>>,
    /// Whether a table goes to standard error.
    pub table: bool,
}

const DEFAULT_CACHE_BYTES: u64 = 256 << 10;
const DEFAULT_CACHE_WAYS: usize = 8;

impl Options {
    /// Parses QEMU's arguments.
    ///
    /// # Errors
    /// If an option is unknown, malformed or missing; the message names it.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let (mut out, mut kernel, mut topology) = (None, None, None);
        let (mut cache, mut ways) = (DEFAULT_CACHE_BYTES, DEFAULT_CACHE_WAYS);
        let (mut numa, mut table, mut bulk) = (false, false, Vec::new());
        for argument in arguments {
            let wrong = |expected: &str| format!("`{argument}`: expected {expected}");
            let (name, value) = argument.split_once('=').ok_or_else(|| wrong("name=value"))?;
            match name {
                "out" => out = Some(PathBuf::from(value)),
                "elf" => kernel = Some(Kernel::Image(value.into())),
                "kernel" if value == "linux" => kernel = Some(Kernel::Linux),
                "kernel" => return Err(wrong("kernel=linux; for an image of ours take elf=FILE")),
                "topology" => topology = Some(PathBuf::from(value)),
                "counts" => {
                    numa = match value {
                        "totals" => false,
                        "numa" => true,
                        _ => return Err(wrong("counts=totals or counts=numa")),
                    }
                }
                "cache" => cache = parse_size(value).ok_or_else(|| wrong("a size like 256K"))?,
                "ways" => ways = value.parse().map_err(|_| wrong("a number"))?,
                "bulk" => bulk.push(parse_range(value).ok_or_else(|| wrong("bulk=0xSTART-0xEND"))?),
                "table" => {
                    table = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(wrong("table=on or table=off")),
                    }
                }
                _ => {
                    return Err(wrong(
                        "one of out, counts, elf, kernel, bulk, topology, cache, ways, table",
                    ));
                }
            }
        }
        let counts = if numa {
            Counts::Numa {
                topology: topology.ok_or("counts=numa needs topology=FILE")?,
                cache: Geometry::new(cache, ways)?,
            }
        } else {
            Counts::Totals
        };
        Ok(Self {
            out: out.ok_or("out=FILE is missing")?,
            counts,
            kernel: kernel.ok_or("elf=FILE or kernel=linux is missing")?,
            bulk,
            table,
        })
    }
}

fn parse_size(text: &str) -> Option<u64> {
    parse_size::Config::new().with_binary().parse_size(text).ok()
}

fn parse_range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once('-')?;
    let hexadecimal = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some(hexadecimal(start)?..hexadecimal(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_need_an_output_and_a_kernel() {
        let options = Options::parse(["out=/tmp/o.json", "elf=/i.elf"]).unwrap();
        assert_eq!(
            options,
            Options {
                out: "/tmp/o.json".into(),
                counts: Counts::Totals,
                kernel: Kernel::Image("/i.elf".into()),
                bulk: vec![],
                table: false,
            }
        );
    }

    #[test]
    fn every_option_is_understood() {
        let options = Options::parse([
            "out=o",
            "kernel=linux",
            "counts=numa",
            "topology=t",
            "cache=1M",
            "ways=16",
            "bulk=0xffffffff81000000-0xffffffff81000040",
            "bulk=0x10-0x20",
            "table=on",
        ])
        .unwrap();
        assert_eq!(options.kernel, Kernel::Linux);
        assert_eq!(
            options.bulk,
            [0xffff_ffff_8100_0000..0xffff_ffff_8100_0040, 0x10..0x20]
        );
        assert!(options.table);
        let Counts::Numa { topology, cache } = options.counts else {
            panic!("counts=numa was asked for");
        };
        assert_eq!(topology, PathBuf::from("t"));
        assert_eq!((cache.bytes(), cache.ways()), (1 << 20, 16));
    }

    #[test]
    fn wrong_options_are_quoted() {
        let error = |arguments: &[&str]| {
            let valid = ["out=o", "kernel=linux"];
            Options::parse(valid.iter().chain(arguments).copied()).unwrap_err()
        };
        for wrong in [
            "colour=red",
            "table",
            "kernel=windows",
            "counts=all",
            "ways=few",
            "cache=much",
            "bulk=1-2",
        ] {
            assert!(error(&[wrong]).starts_with(&format!("`{wrong}`: expected ")));
        }
        assert!(error(&["counts=numa"]).contains("topology=FILE"));
        assert!(error(&["counts=numa", "topology=t", "ways=3"]).contains("3 ways"));
        assert!(Options::parse(["kernel=linux"]).unwrap_err().contains("out=FILE"));
        assert!(Options::parse(["out=o"]).unwrap_err().contains("elf=FILE"));
    }
}
