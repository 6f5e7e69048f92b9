//! The page of results: tables and plots, made from the result files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::plot::{self, Line};
use super::results::{ResultFile, folder, number};
use crate::measurement::Phase;

/// The name of the page's text.
const PAGE: &str = "README.md";

const INTRODUCTION: &str = "\
# What operations cost

Made by `cargo xtask results` from the JSON files of this folder, which `cargo xtask bench NAME --save` writes. Do not edit it.

All numbers are for one operation, summed over all CPUs of an emulated machine; they are no times. `cargo xtask run bench -- --help`
says what an operation is. Instructions are counted from outside of the machine ([measuring.md](../measuring.md)): `kernel` is the
kernel's code without its zeroing and copying of pages, which is `bulk`, and `program` all else. Of the crate `homenode`, what is
compiled into the kernel's range counts there, the fast paths of locks and barriers too, which on Linux are the program's. An
iteration of a string instruction, as in zeroing a page, counts under `iterations` only. Interrupts are what the system's own kernel
says.
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
        println!("{}", path.display());
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
    for (benchmark, results) in by_benchmark {
        page += &section(benchmark, &results);
        files.insert(format!("{benchmark}.svg"), plot(benchmark, &results));
    }
    files.insert(PAGE.to_owned(), page);
    files
}

fn section(benchmark: &str, results: &[&ResultFile]) -> String {
    let mut text =
        format!("\n## {benchmark}\n\n![kernel instructions per operation against CPUs]({benchmark}.svg)\n\n");
    let mut cpus: Vec<u32> = results
        .iter()
        .flat_map(|result| &result.runs)
        .map(|run| run.cpus)
        .collect();
    cpus.sort_unstable();
    cpus.dedup();
    let heads: String = cpus
        .iter()
        .map(|cpus| format!(" {cpus} CPU{} |", if *cpus == 1 { "" } else { "s" }))
        .collect();
    text += &format!(
        "| phase | system | |{heads}\n|---|---|---|{}\n",
        "---:|".repeat(cpus.len())
    );
    for name in phase_names(results) {
        for result in results {
            for (what, count) in columns() {
                let mut cells = String::new();
                let mut is_known = false;
                for &cpus in &cpus {
                    let phase = phase(result, cpus, name);
                    let count = phase.and_then(|phase| Some(number(phase.per_operation(count(phase)?))));
                    is_known |= count.is_some();
                    let cell = count.unwrap_or_default();
                    cells += &format!(" {cell} |");
                }
                if is_known {
                    text += &format!("| `{name}` | {} | {what} |{cells}\n", result.system);
                }
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

/// A count of a phase, and what the table calls it.
type Column = (&'static str, fn(&Phase) -> Option<u64>);

/// What the table says of a phase.
fn columns() -> [Column; 6] {
    [
        ("kernel", |phase| Some(phase.instructions.kernel)),
        ("bulk", |phase| Some(phase.instructions.bulk)),
        ("program", |phase| Some(phase.instructions.app)),
        ("iterations", |phase| {
            let strings = phase.string_iterations;
            Some(strings.kernel + strings.bulk + strings.app)
        }),
        ("wake interrupts", |phase| Some(phase.interrupts?.wake)),
        ("flush interrupts", |phase| Some(phase.interrupts?.flush)),
    ]
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
    let mut lines = Vec::new();
    for result in results {
        for name in phase_names(&[result]) {
            let points = result.runs.iter().filter_map(|run| {
                let phase = run.phases.iter().find(|phase| phase.name == name)?;
                Some((run.cpus, phase.per_operation(phase.instructions.kernel)))
            });
            let mut points: Vec<_> = points.collect();
            points.sort_by_key(|&(cpus, _)| cpus);
            let is_dashed = result.system != "homenode";
            lines.push(Line {
                name: if is_dashed {
                    format!("{name}, {}", result.system)
                } else {
                    name.to_owned()
                },
                points,
                is_dashed,
            });
        }
    }
    plot::draw(benchmark, "kernel instructions per operation", &lines)
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::result;
    use super::*;

    #[test]
    fn the_page_in_the_tree_is_what_the_result_files_say() {
        let stale = stale().unwrap();
        assert!(
            stale.is_empty(),
            "{stale:?} in docs/results: run `cargo xtask results`"
        );
    }

    #[test]
    fn both_systems_stand_in_one_table_and_one_plot() {
        let files = render(&[
            result("homenode", [10_000, 20_000]),
            result("linux", [50_000, 90_000]),
        ]);
        assert_eq!(files.keys().collect::<Vec<_>>(), ["README.md", "unmap.svg"]);
        let page = &files["README.md"];
        for row in [
            "| phase | system | | 1 CPU | 2 CPUs |",
            "| `unmap_16` | homenode | kernel | 1,000 | 2,000 |",
            "| `unmap_16` | linux | kernel | 5,000 | 9,000 |",
        ] {
            assert!(page.contains(row), "{page}");
        }
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
}
