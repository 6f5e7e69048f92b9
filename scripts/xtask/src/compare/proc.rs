//! What Linux counts itself: `/proc/vmstat` and `/proc/interrupts`, before and after a program.

use serde::Serialize;

/// The rows of `/proc/vmstat` that tell about faults, pages, their sizes, their nodes and flushes; names that end in `_` stand for
/// all that start so. Gauges, which say how much there is, and not what was done, are left out.
const VMSTAT: [&str; 10] = [
    "pgfault",
    "pgmajfault",
    "pgfree",
    "pgalloc_",
    "pgmigrate_",
    "pgpromote_",
    "pgdemote_",
    "thp_",
    "numa_",
    "nr_tlb_",
];

/// The rows of `/proc/interrupts` that one CPU's work causes on others, and the timer's.
const INTERRUPTS: [&str; 4] = ["TLB", "CAL", "RES", "LOC"];

/// A row of `/proc/vmstat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) before: u64,
    pub(super) after: u64,
}

/// The selected rows of `/proc/vmstat` that changed, in its order.
pub(super) fn vmstat(before: &str, after: &str) -> Vec<Row> {
    let is_selected = |name: &str| {
        VMSTAT
            .iter()
            .any(|row| *row == name || (row.ends_with('_') && name.starts_with(row)))
    };
    vmstat_rows(after)
        .filter(|(name, _)| is_selected(name))
        .map(|(name, after)| Row {
            name: name.to_owned(),
            before: vmstat_rows(before)
                .find(|(other, _)| *other == name)
                .map_or(0, |(_, count)| count),
            after,
        })
        .filter(|row| row.before != row.after)
        .collect()
}

fn vmstat_rows(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, count) = line.trim_end().split_once(' ')?;
        Some((name, count.parse().ok()?))
    })
}

/// A row of `/proc/interrupts`, with a number for each CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Interrupt {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) before: Vec<u64>,
    pub(super) after: Vec<u64>,
}

/// The selected rows of `/proc/interrupts` that are there.
pub(super) fn interrupts(before: &str, after: &str) -> Vec<Interrupt> {
    let interrupt = |name: &&str| {
        let (before, _) = interrupt_row(before, name)?;
        let (after, description) = interrupt_row(after, name)?;
        Some(Interrupt {
            name: (*name).to_owned(),
            description,
            before,
            after,
        })
    };
    INTERRUPTS.iter().filter_map(interrupt).collect()
}

/// The counts of the CPUs, and the words behind them.
fn interrupt_row(text: &str, name: &str) -> Option<(Vec<u64>, String)> {
    let row = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let mut words = row.split_ascii_whitespace().peekable();
    let counts = std::iter::from_fn(|| words.next_if(|word| word.bytes().all(|byte| byte.is_ascii_digit())))
        .map_while(|word| word.parse().ok())
        .collect();
    Some((counts, words.collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_vmstat_the_selected_rows_that_changed_remain() {
        let before =
            "nr_free_pages 500\nnuma_hit 10\nnuma_miss 0\npgalloc_normal 3\npgfault 7\nthp_fault_alloc 0\n";
        let after = "nr_free_pages 400\nnuma_hit 12\nnuma_miss 0\npgalloc_normal 3\npgfault 9\nthp_fault_alloc 5\n\
                     pgfault_other 1\nnuma_new 2\nnot a row\n";
        let row = |name: &str, before, after| Row {
            name: name.to_owned(),
            before,
            after,
        };
        assert_eq!(
            vmstat(before, after),
            [
                row("numa_hit", 10, 12),
                row("pgfault", 7, 9),
                row("thp_fault_alloc", 0, 5),
                row("numa_new", 0, 2),
            ]
        );
    }

    #[test]
    fn interrupts_are_read_by_row_and_cpu() {
        let text = |tlb: &str| {
            format!(
                "           CPU0       CPU1       \n  4:          0          2   IO-APIC   4-edge      ttyS0\n\
                 LOC:       1370       1258   Local timer interrupts\nTLB: {tlb}   TLB shootdowns\nERR:          0\n"
            )
        };
        let interrupts = interrupts(&text(" 0  1 "), &text("7       0"));
        let names: Vec<&str> = interrupts.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["TLB", "LOC"]);
        assert_eq!(
            (&interrupts[0].before, &interrupts[0].after),
            (&vec![0, 1], &vec![7, 0])
        );
        assert_eq!(interrupts[0].description, "TLB shootdowns");
        assert_eq!(interrupts[1].after, [1370, 1258]);
    }
}
