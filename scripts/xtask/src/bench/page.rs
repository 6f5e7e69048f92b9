//! The page of results: tables and plots, made from the result files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::plot::{self, Line, Panel};
use super::results::{Column, FLUSHES, HOMENODE, Kind, ResultFile, columns, folder, number};
use crate::measurement::Phase;
use crate::output;

/// The name of the page's text.
const PAGE: &str = "README.md";

const INTRODUCTION: &str = "\
# What operations cost

Made by `cargo xtask results` from the JSON files of this folder, which `cargo xtask bench NAME --save` writes. Do not edit it.

All numbers are for one operation, summed over all CPUs of an emulated machine; they are no times. `cargo xtask run bench -- --help`
says what an operation is. Instructions are counted from outside of the machine ([measuring.md](../measuring.md)): `kernel` is the
kernel's code without its zeroing and copying of pages, which is `bulk`, and `program` all else. Of the crate `homenode`, what is
compiled into the kernel's range counts there, the fast paths of locks and barriers too, which on Linux are the program's. An
iteration of a string instruction, as in zeroing a page, counts under `iterations` only. Interrupts, locks of page tables and what
begins with `tlb` are what the system's own kernel says. Counts that are 0.0 everywhere are left out. `flushes per computing CPU` and
`milliseconds of the phase` are no costs of an operation: [measuring.md](../measuring.md#benchmarks-of-invalidation) says how to read
them. Flush interrupts are the interprocessor interrupts (IPIs) of an invalidation. What is less than the least value of a plot's axis,
or nothing, lies on that axis.

Homenode's instructions repeat within 2 %. Linux's repeat within about 7 % on an idle host, and within about 40 % where threads start
or end; they contain about 3,300 for each timer interrupt, of which there are more the slower the host is ([why](../measuring.md#linux-side-by-side)).
Accesses to memory are counted with a thread for each CPU, where instructions contain spinning, so that these are left out there.
";

/// A file of the page: its name in the folder, and its text.
type Files = BTreeMap<String, String>;

/// Writes the page of the folder of results anew.
///
/// # Errors
/// If a result file can not be read, or the page not be written.
pub fn write() -> Result<()> {
    let files = render(&read(&folder())?);
    for (name, text) in files {
        let path = folder().join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        output::line(&path.display().to_string())?;
    }
    Ok(())
}

/// The names of the page's files whose text is not what the result files say.
///
/// # Errors
/// If a result file can not be read.
pub fn stale() -> Result<Vec<String>> {
    let folder = folder();
    let files = render(&read(&folder)?);
    let is_stale =
        |(name, text): &(String, String)| fs::read_to_string(folder.join(name)).ok().as_ref() != Some(text);
    Ok(files.into_iter().filter(is_stale).map(|(name, _)| name).collect())
}

/// The result files of `folder`, by name.
fn read(folder: &Path) -> Result<Vec<ResultFile>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let file = |path: PathBuf| {
        let json = fs::read_to_string(&path)?;
        ResultFile::parse(&json).with_context(|| format!("cannot read {}", path.display()))
    };
    paths.into_iter().map(file).collect()
}

/// The page and its plots.
fn render(results: &[ResultFile]) -> Files {
    let mut by_benchmark = BTreeMap::<&str, Vec<&ResultFile>>::new();
    for result in results {
        by_benchmark.entry(&result.benchmark).or_default().push(result);
    }
    let mut files = Files::new();
    let mut page = INTRODUCTION.to_owned();
    for (benchmark, mut results) in by_benchmark {
        // Homenode comes first by its name, too.
        results.sort_by_key(|result| &result.system);
        page += &section(benchmark, &results);
        files.insert(format!("{benchmark}.svg"), plot(benchmark, &results));
    }
    files.insert(PAGE.to_owned(), page);
    files
}

fn section(benchmark: &str, results: &[&ResultFile]) -> String {
    let costs = plotted(results);
    let names: Vec<&str> = costs.iter().map(|cost| cost.name).collect();
    let mut text = format!(
        "\n## {benchmark}\n\n![{} per operation against CPUs]({benchmark}.svg)\n\n",
        names.join(" and ")
    );
    let mut cpus: Vec<u32> = results.iter().flat_map(|result| result.cpus()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let heads: String = cpus
        .iter()
        .map(|cpus| format!(" {cpus} CPU{} |", if *cpus == 1 { "" } else { "s" }))
        .collect();
    text += &format!(
        "| phase | | system |{heads}\n|---|---|---|{}\n",
        "---:|".repeat(cpus.len())
    );
    for name in phase_names(results) {
        for column in shown(results) {
            let mut rows = String::new();
            let mut is_something = false;
            for result in results {
                let count = |cpus: &u32| {
                    let phase = phase(result, *cpus, name)?;
                    Some(number((column.value)(phase)?))
                };
                let counts: Vec<Option<String>> = cpus.iter().map(count).collect();
                if counts.iter().all(Option::is_none) {
                    continue;
                }
                is_something |= counts.iter().flatten().any(|count| count != NOTHING);
                rows += &format!("| `{name}` | {} | {} |", column.name, result.system);
                for count in counts {
                    rows += &format!(" {} |", count.unwrap_or_default());
                }
                rows.push('\n');
            }
            if is_something {
                text += &rows;
            }
        }
    }
    for result in results {
        let skipped: Vec<String> = result
            .runs
            .first()
            .iter()
            .flat_map(|run| &run.skipped)
            .map(|skipped| format!("`{}` {}", skipped.name, skipped.reason))
            .collect();
        if !skipped.is_empty() {
            text += &format!("\nNot measured on {}: {}.\n", result.system, skipped.join("; "));
        }
        let versions: Vec<String> = result
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        text += &format!(
            "\nFrom [{stem}.json]({stem}.json): `{}` ({}).\n",
            result.command,
            versions.join(", "),
            stem = result.stem()
        );
    }
    text
}

/// A count for an operation that is none.
const NOTHING: &str = "0.0";

/// The counts that are shown of `results`: where memory is counted, instructions contain spinning.
fn shown(results: &[&ResultFile]) -> Vec<Column> {
    let phases = results
        .iter()
        .flat_map(|result| &result.runs)
        .flat_map(|run| &run.phases);
    let mut columns = columns(phases);
    if columns.iter().any(|column| column.kind == Kind::Memory) {
        columns.retain(|column| column.kind != Kind::Instructions);
    }
    columns
}

/// A count that is drawn, and the name of its axis.
struct Plotted {
    name: &'static str,
    /// The least count that is told apart from nothing.
    least: f64,
    count: fn(&Phase) -> Option<u64>,
}

impl Plotted {
    fn per_operation(&self, phase: &Phase) -> Option<f64> {
        Some(phase.per_operation((self.count)(phase)?))
    }
}

/// What is drawn of `results`: one count, or two where operations interrupt other CPUs for flushes, since then neither tells all.
fn plotted(results: &[&ResultFile]) -> Vec<Plotted> {
    let instructions = Plotted {
        name: "kernel instructions",
        least: 1.0,
        count: |phase| Some(phase.instructions.kernel),
    };
    let flushes = Plotted {
        name: FLUSHES,
        least: 0.001,
        count: |phase| Some(phase.interrupts?.flush),
    };
    let lines = Plotted {
        name: "the kernel's writes to shared lines",
        least: 1.0,
        count: |phase| Some(phase.memory.as_ref()?.kernel_shared_line_writes()),
    };
    let interrupts = |phase: &Phase| flushes.per_operation(phase).is_some_and(|flushes| flushes >= 1.0);
    let runs = || results.iter().flat_map(|result| &result.runs);
    if shown(results).iter().any(|column| column.kind == Kind::Memory) {
        vec![lines]
    } else if runs().flat_map(|run| &run.phases).any(interrupts) {
        vec![instructions, flushes]
    } else {
        vec![instructions]
    }
}

/// The names of all phases, in the order of the runs.
fn phase_names<'a>(results: &[&'a ResultFile]) -> Vec<&'a str> {
    let mut names = Vec::new();
    let runs = results.iter().flat_map(|result| &result.runs);
    for phase in runs.flat_map(|run| &run.phases) {
        if !names.contains(&phase.name.as_str()) {
            names.push(phase.name.as_str());
        }
    }
    names
}

fn phase<'a>(result: &'a ResultFile, cpus: u32, name: &str) -> Option<&'a Phase> {
    let run = result.runs.iter().find(|run| run.cpus == cpus)?;
    run.phases.iter().find(|phase| phase.name == name)
}

fn plot(benchmark: &str, results: &[&ResultFile]) -> String {
    match plotted(results).as_slice() {
        [left, right] => plot_by_phase(benchmark, results, [left, right]),
        costs => plot_together(benchmark, results, &costs[0]),
    }
}

/// All phases of all systems in one panel: a colour for each phase, a style for each system.
fn plot_together(benchmark: &str, results: &[&ResultFile], cost: &Plotted) -> String {
    let mut lines = Vec::new();
    for (style, result) in results.iter().enumerate() {
        for (colour, phase) in phase_names(results).into_iter().enumerate() {
            // Homenode's own lines need no more than the phase's name.
            let system = result.system.trim_start_matches(HOMENODE).trim_start();
            let name = if system.is_empty() {
                phase.to_owned()
            } else {
                format!("{phase}, {system}")
            };
            lines.extend(line(result, phase, cost, name, colour, style));
        }
    }
    let panel = Panel {
        cost: format!("{} per operation", cost.name),
        least: cost.least,
        lines,
    };
    plot::draw(benchmark, &panel)
}

/// A row for each phase, with a panel for each of two counts, and a line for each system.
fn plot_by_phase(benchmark: &str, results: &[&ResultFile], costs: [&Plotted; 2]) -> String {
    let row = |phase| {
        costs.map(|cost| {
            let line = |(number, result): (usize, &&ResultFile)| {
                line(result, phase, cost, result.system.clone(), number, number)
            };
            Panel {
                cost: format!("{phase}: {} per operation", cost.name),
                least: cost.least,
                lines: results.iter().enumerate().filter_map(line).collect(),
            }
        })
    };
    let rows: Vec<[Panel; 2]> = phase_names(results).into_iter().map(row).collect();
    plot::draw_grid(benchmark, &rows)
}

/// The line of a phase; none where the system has not done it, or not told this count.
fn line(
    result: &ResultFile,
    phase_name: &str,
    cost: &Plotted,
    name: String,
    colour: usize,
    style: usize,
) -> Option<Line> {
    let points = result.runs.iter().filter_map(|run| {
        let phase = phase(result, run.cpus, phase_name)?;
        Some((run.cpus, cost.per_operation(phase)?))
    });
    let mut points: Vec<_> = points.collect();
    points.sort_by_key(|&(cpus, _)| cpus);
    (!points.is_empty()).then_some(Line {
        name,
        points,
        colour,
        style,
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::result;
    use super::*;
    use crate::measurement::{Accesses, CodeMemory, MemoryByCode, MemoryCounts};

    #[test]
    fn the_page_in_the_tree_is_what_the_result_files_say() {
        let stale = stale().unwrap();
        assert!(
            stale.is_empty(),
            "{stale:?} in docs/results: run `cargo xtask results`"
        );
    }

    /// The same costs, but few flushes.
    fn quiet(system: &str, kernel: [u64; 2]) -> ResultFile {
        let mut result = result(system, kernel);
        for run in &mut result.runs {
            let interrupts = run.phases[0].interrupts.as_mut().unwrap();
            interrupts.flush = 9;
        }
        result
    }

    #[test]
    fn both_systems_stand_in_one_table_and_one_plot() {
        let files = render(&[
            quiet("linux", [50_000, 90_000]),
            quiet("homenode", [10_000, 20_000]),
        ]);
        assert_eq!(files.keys().collect::<Vec<_>>(), ["README.md", "unmap.svg"]);
        let page = &files["README.md"];
        for row in [
            "![kernel instructions per operation against CPUs](unmap.svg)",
            "| phase | | system | 1 CPU | 2 CPUs |",
            "| `unmap_16` | kernel | homenode | 1,000 | 2,000 |\n| `unmap_16` | kernel | linux | 5,000 | 9,000 |",
            "| `unmap_16` | flushes per computing CPU | linux |  | 9.0 |",
            "| `unmap_16` | table locks | homenode | 4.0 | 4.0 |",
        ] {
            assert!(page.contains(row), "{page}");
        }
        assert!(!page.contains("| bulk |"), "what is nothing is left out: {page}");
        assert!(
            page.contains("Not measured on homenode: `protect_16` needs rights."),
            "{page}"
        );
        let plot = &files["unmap.svg"];
        assert!(
            plot.contains(">unmap_16<") && plot.contains(">unmap_16, linux<"),
            "{plot}"
        );
        assert_eq!(plot.matches("<circle").count(), 4);
    }

    #[test]
    fn where_operations_interrupt_each_phase_is_drawn_with_its_interrupts() {
        let systems = ["homenode", "homenode tlb.lazy=off", "linux"];
        let files = render(&systems.map(|system| result(system, [10_000, 20_000])));
        let alt = "![kernel instructions and flush interrupts per operation against CPUs](unmap.svg)";
        assert!(files["README.md"].contains(alt), "{}", files["README.md"]);
        let plot = &files["unmap.svg"];
        for system in systems {
            assert_eq!(plot.matches(&format!(">{system}<")).count(), 1, "{plot}");
        }
        for cost in ["kernel instructions", "flush interrupts"] {
            assert!(
                plot.contains(&format!(">unmap_16: {cost} per operation<")),
                "{plot}"
            );
        }
        assert_eq!(plot.matches("<circle").count(), 2 * 2 * systems.len());
        // One system without interrupts does not hide the others'.
        let files = render(&[quiet("homenode", [1, 1]), result("linux", [1, 1])]);
        assert!(files["unmap.svg"].contains("flush interrupts"));
    }

    #[test]
    fn where_memory_is_counted_instructions_are_not_shown() {
        let mut result = result("homenode ptlock=coarse", [10_000, 20_000]);
        let code = |shared_line_writes| CodeMemory { shared_line_writes };
        for run in &mut result.runs {
            run.phases[0].memory = Some(MemoryCounts {
                all: Accesses::default(),
                misses: Accesses::default(),
                shared_line_writes: 70,
                by_code: MemoryByCode {
                    kernel: code(30),
                    app: code(20),
                    bulk: code(20),
                },
            });
        }
        let files = render(&[result]);
        let page = &files["README.md"];
        let row = "| `unmap_16` | kernel's shared-line writes | homenode ptlock=coarse | 3.0 | 3.0 |";
        assert!(
            page.contains(row) && !page.contains("| `unmap_16` | kernel |"),
            "{page}"
        );
        assert!(files["unmap.svg"].contains(">unmap_16, ptlock=coarse<"));
    }
}
