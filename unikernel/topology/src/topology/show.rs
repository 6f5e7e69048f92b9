//! The topology as text: for the boot log, and as words of the command line.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use super::{DEFAULT_REMOTE_DISTANCE, Source, Topology};
use crate::{Bytes, Node};

/// Ascending numbers shown as a list of ranges: `0-1,4`.
pub(crate) struct RangeList<I>(pub(crate) I);

impl<I: Iterator<Item = u32> + Clone> RangeList<I> {
    /// Each run of consecutive numbers as its first and its last.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let mut numbers = self.0.clone().peekable();
        core::iter::from_fn(move || {
            let first = numbers.next()?;
            let mut last = first;
            while let Some(next) = numbers.next_if(|&next| last.checked_add(1) == Some(next)) {
                last = next;
            }
            Some((first, last))
        })
    }
}

impl<I: Iterator<Item = u32> + Clone> fmt::Display for RangeList<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.runs().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            write_run(f, first, last)?;
        }
        Ok(())
    }
}

fn write_run(out: &mut impl Write, first: u32, last: u32) -> fmt::Result {
    if first == last {
        write!(out, "{first}")
    } else {
        write!(out, "{first}-{last}")
    }
}

impl Node {
    fn cpu_list(&self) -> RangeList<impl Iterator<Item = u32> + Clone> {
        RangeList(self.cpus.iter().map(|cpu| cpu.0))
    }
}

impl fmt::Display for Topology {
    /// One line for the whole, one per node, and with more than one node the distances; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.nodes.iter().map(Node::memory_bytes).sum();
        write!(
            f,
            "nodes: {}, CPUs: {}, memory: {}",
            self.nodes.len(),
            self.cpus.len(),
            Bytes(bytes)
        )?;
        match self.source {
            Source::None if !self.overlays.is_empty() => write!(f, ", source: {}", Source::CommandLine)?,
            source => write!(f, ", source: {source}")?,
        }
        if !self.overlays.is_empty() && self.source == Source::Acpi {
            write!(f, " and {}", Source::CommandLine)?;
        }
        for node in &self.nodes {
            write!(f, "\nnode {}: ", node.id)?;
            match node.cpu_list() {
                list if node.has_cpus() => write!(f, "CPUs {list}")?,
                _ => f.write_str("no CPUs")?,
            }
            if !node.has_memory() {
                f.write_str(", no memory")?;
                continue;
            }
            write!(f, ", {} at ", Bytes(node.memory_bytes()))?;
            for (index, range) in node.memory.iter().enumerate() {
                write!(f, "{}{range}", if index == 0 { "" } else { "," })?;
            }
        }
        if self.nodes.len() > 1 {
            f.write_str("\ndistances:")?;
            for node in &self.nodes {
                write!(f, " {:3}", node.id)?;
            }
            for (from, row) in self.distance_rows().enumerate() {
                write!(f, "\n{from:>9}:")?;
                for distance in row {
                    write!(f, " {distance:3}")?;
                }
            }
        }
        Ok(())
    }
}

impl Topology {
    /// The command line's words that give these nodes, distances and attributes again on the same machine.
    #[must_use]
    pub fn to_words(&self) -> Vec<String> {
        let mut words: Vec<String> = self.nodes.iter().map(node_word).collect();
        for from in &self.nodes {
            for to in &self.nodes[from.id.index() + 1..] {
                let (there, back) = (self.distance(from.id, to.id), self.distance(to.id, from.id));
                if there != DEFAULT_REMOTE_DISTANCE || back != there {
                    words.push(format!("numa=dist,src={},dst={},val={there}", from.id, to.id));
                }
                if back != there {
                    words.push(format!("numa=dist,src={},dst={},val={back}", to.id, from.id));
                }
            }
        }
        // Accesses by what has no CPU (a device) can be in a firmware's table, but not on the command line.
        let by_cpus = self
            .accesses
            .iter()
            .filter(|((src, _), _)| self.nodes[src.index()].has_cpus());
        for ((src, dst), access) in by_cpus {
            let latency = access
                .latency
                .map(|latency| format!(",latency={latency}"))
                .unwrap_or_default();
            let bandwidth = access
                .bandwidth
                .map(|bandwidth| format!(",bandwidth={}", bandwidth.bytes_per_second()));
            words.push(format!(
                "numa=hmat,src={src},dst={dst}{latency}{}",
                bandwidth.unwrap_or_default()
            ));
        }
        words
    }
}

fn node_word(node: &Node) -> String {
    let mut word = format!("numa=node,nodeid={}", node.id);
    for (first, last) in node.cpu_list().runs() {
        word.push_str(",cpus=");
        // Writing to a string does not fail.
        let _ = write_run(&mut word, first, last);
    }
    for range in &node.memory {
        word.push_str(",mem=");
        let _ = write!(word, "{range}");
    }
    word
}
