//! From words to what they ask for, as far as it can be judged without knowing the machine.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::value::{bandwidth, latency, number, size};
use super::{Problem, TopologyError};
use crate::{AccessAttributes, LOCAL_DISTANCE, MAX_NODES, NodeId, PAGE_BYTES, PhysAddr, PhysRange};

/// All that the words ask for.
pub(crate) struct Request<'a> {
    pub(crate) layout: Layout<'a>,
    pub(crate) distances: Vec<DistanceWord<'a>>,
    pub(crate) accesses: Vec<AccessWord<'a>>,
}

/// Which nodes there are to be.
pub(crate) enum Layout<'a> {
    /// The words leave it to the firmware.
    Unsaid,
    Off,
    Fake {
        word: &'a str,
        count: u32,
    },
    /// In order of their number, which is their index.
    Nodes(Vec<NodeWord<'a>>),
}

/// `numa=node,…`
pub(crate) struct NodeWord<'a> {
    pub(crate) word: &'a str,
    pub(crate) id: NodeId,
    id_token: &'a str,
    pub(crate) cpus: Vec<CpuOption<'a>>,
    pub(crate) memory: MemoryOption<'a>,
}

/// `cpus=first-last`
pub(crate) struct CpuOption<'a> {
    pub(crate) token: &'a str,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// All of a node's `mem=`.
pub(crate) enum MemoryOption<'a> {
    Size {
        token: &'a str,
        bytes: u64,
    },
    /// None for a node without memory.
    Ranges(Vec<RangeOption<'a>>),
}

/// `mem=start-end`
pub(crate) struct RangeOption<'a> {
    pub(crate) token: &'a str,
    pub(crate) range: PhysRange,
}

/// A node that another one's distance or attributes are about.
#[derive(Clone, Copy)]
pub(crate) struct NodeOption<'a> {
    pub(crate) token: &'a str,
    pub(crate) node: NodeId,
}

/// `numa=dist,…`
pub(crate) struct DistanceWord<'a> {
    pub(crate) word: &'a str,
    pub(crate) src: NodeOption<'a>,
    pub(crate) dst: NodeOption<'a>,
    pub(crate) distance: u8,
}

/// `numa=hmat,…`
pub(crate) struct AccessWord<'a> {
    pub(crate) word: &'a str,
    pub(crate) src: NodeOption<'a>,
    pub(crate) dst: NodeOption<'a>,
    pub(crate) attributes: AccessAttributes,
}

impl<'a> Request<'a> {
    /// Reads words that begin with `numa=`.
    pub(crate) fn parse(words: impl IntoIterator<Item = &'a str>) -> Result<Self, TopologyError> {
        let mut request = Self {
            layout: Layout::Unsaid,
            distances: Vec::new(),
            accesses: Vec::new(),
        };
        let mut count = 0_usize;
        let mut off = None;
        for word in words {
            count += 1;
            let form = word.strip_prefix("numa=").unwrap_or_default();
            let (form, options) = form
                .split_once(',')
                .map_or((form, None), |(form, rest)| (form, Some(rest)));
            match (form, options) {
                ("off", None) => off = Some(word),
                ("node", _) => request.add_node(NodeWord::parse(word, options)?)?,
                ("dist", _) => request.distances.push(DistanceWord::parse(word, options)?),
                ("hmat", _) => request.accesses.push(AccessWord::parse(word, options)?),
                _ => match (form.strip_prefix("fake="), options) {
                    (Some(count), None) => request.add_fake(word, count)?,
                    _ => return Err(TopologyError::in_word(word, Problem::UnknownForm)),
                },
            }
        }
        if let Some(word) = off {
            if count > 1 {
                return Err(TopologyError::in_word(word, Problem::OffWithOthers));
            }
            request.layout = Layout::Off;
        }
        request.order_nodes()?;
        request.check_pairs()?;
        Ok(request)
    }

    fn add_fake(&mut self, word: &'a str, count: &str) -> Result<(), TopologyError> {
        let problem = match self.layout {
            Layout::Fake { .. } => Problem::FakeTwice,
            Layout::Nodes(_) => Problem::FakeWithNodes,
            Layout::Unsaid | Layout::Off => {
                let count = number(count).map_err(|problem| TopologyError::in_word(word, problem))?;
                self.layout = Layout::Fake { word, count };
                return Ok(());
            }
        };
        Err(TopologyError::in_word(word, problem))
    }

    fn add_node(&mut self, node: NodeWord<'a>) -> Result<(), TopologyError> {
        match &mut self.layout {
            Layout::Fake { .. } => return Err(TopologyError::in_word(node.word, Problem::FakeWithNodes)),
            Layout::Nodes(nodes) => nodes.push(node),
            Layout::Unsaid | Layout::Off => self.layout = Layout::Nodes(alloc::vec![node]),
        }
        Ok(())
    }

    /// Sorts the nodes and makes sure that their numbers are 0, 1, 2 and so on.
    fn order_nodes(&mut self) -> Result<(), TopologyError> {
        let Layout::Nodes(nodes) = &mut self.layout else {
            return Ok(());
        };
        // The sort is stable: of two words for one node the later one is reported.
        nodes.sort_by_key(|node| node.id);
        for (index, node) in nodes.iter().enumerate() {
            let problem = match index.cmp(&node.id.index()) {
                _ if node.id.index() >= MAX_NODES => Problem::TooManyNodes,
                core::cmp::Ordering::Equal => continue,
                core::cmp::Ordering::Less => Problem::NodeMissing {
                    node: NodeId::from(index),
                },
                core::cmp::Ordering::Greater => Problem::NodeTwice { node: node.id },
            };
            return Err(TopologyError::in_token(node.word, node.id_token, problem));
        }
        Ok(())
    }

    fn check_pairs(&self) -> Result<(), TopologyError> {
        let distances = self
            .distances
            .iter()
            .map(|distance| (distance.word, distance.src, distance.dst));
        let accesses = self
            .accesses
            .iter()
            .map(|access| (access.word, access.src, access.dst));
        check_pairs(distances)?;
        check_pairs(accesses)
    }
}

fn check_pairs<'a>(
    pairs: impl Iterator<Item = (&'a str, NodeOption<'a>, NodeOption<'a>)>,
) -> Result<(), TopologyError> {
    let mut seen = BTreeSet::new();
    for (word, src, dst) in pairs {
        if !seen.insert((src.node, dst.node)) {
            return Err(TopologyError::in_word(word, Problem::PairTwice));
        }
    }
    Ok(())
}

impl<'a> NodeWord<'a> {
    fn parse(word: &'a str, options: Option<&'a str>) -> Result<Self, TopologyError> {
        let options = Options::parse(word, options, &["nodeid", "cpus", "mem"])?;
        let id = options.required("nodeid")?;
        let node = Self {
            word,
            id: options.value(id, number).map(NodeId)?,
            id_token: id.token,
            cpus: options
                .all("cpus")
                .map(|option| options.cpu_range(option))
                .collect::<Result<_, _>>()?,
            memory: options.memory()?,
        };
        let no_memory = match &node.memory {
            MemoryOption::Size { bytes, .. } => *bytes == 0,
            MemoryOption::Ranges(ranges) => ranges.is_empty(),
        };
        if node.cpus.is_empty() && no_memory {
            return Err(TopologyError::in_word(word, Problem::NodeEmpty));
        }
        Ok(node)
    }
}

impl<'a> DistanceWord<'a> {
    fn parse(word: &'a str, options: Option<&'a str>) -> Result<Self, TopologyError> {
        let options = Options::parse(word, options, &["src", "dst", "val"])?;
        let (src, dst) = (options.node("src")?, options.node("dst")?);
        let value = options.required("val")?;
        let distance = options.value(value, |text| {
            let distance = u8::try_from(number(text)?).map_err(|_| Problem::DistanceRange)?;
            match distance {
                0..LOCAL_DISTANCE => Err(Problem::DistanceRange),
                LOCAL_DISTANCE => Ok(distance),
                _ if src.node == dst.node => Err(Problem::LocalDistance),
                _ => Ok(distance),
            }
        })?;
        Ok(Self {
            word,
            src,
            dst,
            distance,
        })
    }
}

impl<'a> AccessWord<'a> {
    fn parse(word: &'a str, options: Option<&'a str>) -> Result<Self, TopologyError> {
        let options = Options::parse(word, options, &["src", "dst", "latency", "bandwidth"])?;
        let (src, dst) = (options.node("src")?, options.node("dst")?);
        let attributes = AccessAttributes {
            latency: options
                .single("latency")?
                .map(|option| options.value(option, latency))
                .transpose()?,
            bandwidth: options
                .single("bandwidth")?
                .map(|option| options.value(option, bandwidth))
                .transpose()?,
        };
        if attributes == AccessAttributes::default() {
            return Err(TopologyError::in_word(word, Problem::NoAttribute));
        }
        Ok(Self {
            word,
            src,
            dst,
            attributes,
        })
    }
}

/// `key=value`, which `token` is the whole of.
#[derive(Clone, Copy)]
struct Item<'a> {
    token: &'a str,
    key: &'a str,
    value: &'a str,
}

/// The options of a word.
struct Options<'a> {
    word: &'a str,
    items: Vec<Item<'a>>,
}

impl<'a> Options<'a> {
    fn parse(
        word: &'a str,
        options: Option<&'a str>,
        known: &'static [&'static str],
    ) -> Result<Self, TopologyError> {
        let unknown = |token: &str| {
            let token = (!token.is_empty()).then(|| token.into());
            TopologyError {
                word: word.into(),
                token,
                problem: Problem::UnknownOption { known },
            }
        };
        let tokens = options.into_iter().flat_map(|options| options.split(','));
        let items = tokens.map(|token| match token.split_once('=') {
            Some((key, value)) if known.contains(&key) => Ok(Item { token, key, value }),
            _ => Err(unknown(token)),
        });
        Ok(Self {
            word,
            items: items.collect::<Result<_, _>>()?,
        })
    }

    fn all(&self, key: &str) -> impl Iterator<Item = Item<'a>> {
        self.items.iter().copied().filter(move |item| item.key == key)
    }

    fn single(&self, key: &str) -> Result<Option<Item<'a>>, TopologyError> {
        let mut items = self.all(key);
        let first = items.next();
        match items.next() {
            Some(second) => Err(TopologyError::in_token(
                self.word,
                second.token,
                Problem::OptionTwice,
            )),
            None => Ok(first),
        }
    }

    fn required(&self, key: &'static str) -> Result<Item<'a>, TopologyError> {
        let missing = || TopologyError::in_word(self.word, Problem::OptionMissing { option: key });
        self.single(key)?.ok_or_else(missing)
    }

    /// The item's value as read by `read`, whose problem becomes an error that quotes the item.
    fn value<T>(
        &self,
        item: Item<'a>,
        read: impl FnOnce(&str) -> Result<T, Problem>,
    ) -> Result<T, TopologyError> {
        read(item.value).map_err(|problem| TopologyError::in_token(self.word, item.token, problem))
    }

    fn node(&self, key: &'static str) -> Result<NodeOption<'a>, TopologyError> {
        let item = self.required(key)?;
        Ok(NodeOption {
            token: item.token,
            node: self.value(item, number).map(NodeId)?,
        })
    }

    fn cpu_range(&self, item: Item<'a>) -> Result<CpuOption<'a>, TopologyError> {
        self.value(item, |text| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                Err(Problem::Backwards)
            } else {
                Ok(CpuOption {
                    token: item.token,
                    first,
                    last,
                })
            }
        })
    }

    fn memory(&self) -> Result<MemoryOption<'a>, TopologyError> {
        let mut ranges = Vec::new();
        let mut items = self.all("mem");
        while let Some(item) = items.next() {
            let Some((start, end)) = item.value.split_once('-') else {
                let bytes = self.value(item, |text| whole_pages(size(text)?))?;
                if !ranges.is_empty() || items.next().is_some() {
                    return Err(TopologyError::in_token(
                        self.word,
                        item.token,
                        Problem::SizeAndMore,
                    ));
                }
                return Ok(MemoryOption::Size {
                    token: item.token,
                    bytes,
                });
            };
            let range = self.value(item, |_| {
                let start = PhysAddr(whole_pages(size(start)?)?);
                let range = PhysRange::new(start, PhysAddr(whole_pages(size(end)?)?));
                if range.is_empty() {
                    Err(Problem::Backwards)
                } else {
                    Ok(range)
                }
            })?;
            ranges.push(RangeOption {
                token: item.token,
                range,
            });
        }
        Ok(MemoryOption::Ranges(ranges))
    }
}

fn whole_pages(bytes: u64) -> Result<u64, Problem> {
    if bytes.is_multiple_of(PAGE_BYTES) {
        Ok(bytes)
    } else {
        Err(Problem::NotWholePages { bytes })
    }
}
