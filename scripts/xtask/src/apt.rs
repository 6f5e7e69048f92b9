//! Debian's package sources: finds the archive that a machine uses, and derives a source of its backports.

use std::fs;
use std::path::{Path, PathBuf};

/// A file that lists package sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

impl SourceFile {
    /// The source files of this machine.
    pub fn all() -> Vec<Self> {
        let folder = fs::read_dir("/etc/apt/sources.list.d")
            .into_iter()
            .flatten()
            .flatten();
        let mut paths: Vec<PathBuf> = folder.map(|entry| entry.path()).collect();
        paths.sort();
        paths.insert(0, "/etc/apt/sources.list".into());
        // A file that can not be read is none that apt reads.
        paths
            .into_iter()
            .filter_map(|path| {
                Some(Self {
                    text: fs::read_to_string(&path).ok()?,
                    path,
                })
            })
            .collect()
    }

    /// The sources in this file that apt uses for binary packages.
    fn entries(&self) -> Vec<Entry> {
        match self.path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => paragraphs(&self.text)
                .into_iter()
                .filter_map(Entry::from_paragraph)
                .collect(),
            Some("list") => self.text.lines().filter_map(Entry::from_line).collect(),
            _ => Vec::new(),
        }
    }
}

/// A source of binary packages, in the notation in which it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    options: Options,
}

/// A source's further options (keys, architectures, …), in one of apt's two notations (`sources.list(5)`).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Options {
    /// The other fields of a paragraph, continuation lines included.
    Paragraph(Vec<(String, String)>),
    /// What stands in brackets on the one line, brackets included, or nothing.
    Line(String),
}

impl Entry {
    fn from_line(line: &str) -> Option<Self> {
        let line = line.split('#').next()?.trim();
        let rest = line.strip_prefix("deb")?;
        if !rest.starts_with([' ', '\t', '[']) {
            return None;
        }
        let rest = rest.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(inside) => {
                let end = inside.find(']')?;
                (format!("[{}]", inside[..end].trim()), &inside[end + 1..])
            }
            None => (String::new(), rest),
        };
        let mut words = rest.split_ascii_whitespace().map(str::to_owned);
        Some(Self {
            uris: vec![words.next()?],
            suites: vec![words.next()?],
            components: words.collect(),
            options: Options::Line(options),
        })
    }

    fn from_paragraph(fields: Vec<(String, String)>) -> Option<Self> {
        let words = |name: &str| -> Vec<String> {
            let field = fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
            field
                .map(|(_, value)| value.split_ascii_whitespace().map(str::to_owned).collect())
                .unwrap_or_default()
        };
        let is_enabled = !words("Enabled")
            .first()
            .is_some_and(|word| word.eq_ignore_ascii_case("no"));
        if !is_enabled || !words("Types").iter().any(|kind| kind == "deb") {
            return None;
        }
        let (uris, suites, components) = (words("URIs"), words("Suites"), words("Components"));
        let known = ["Types", "URIs", "Suites", "Components", "Enabled"];
        let others = fields
            .into_iter()
            .filter(|(field, _)| !known.iter().any(|name| field.eq_ignore_ascii_case(name)));
        Some(Self {
            uris,
            suites,
            components,
            options: Options::Paragraph(others.collect()),
        })
    }
}

/// The paragraphs of a deb822 file as fields with their values. A value's continuation lines follow it as they are.
fn paragraphs(text: &str) -> Vec<Vec<(String, String)>> {
    let mut paragraphs = vec![Vec::<(String, String)>::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.trim().is_empty() {
            paragraphs.push(Vec::new());
        } else if let Some(paragraph) = paragraphs.last_mut() {
            if line.starts_with([' ', '\t']) {
                if let Some((_, value)) = paragraph.last_mut() {
                    value.push('\n');
                    value.push_str(line);
                }
            } else if let Some((field, value)) = line.split_once(':') {
                paragraph.push((field.trim().to_owned(), value.trim().to_owned()));
            }
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// Whether one of `files` has a source of `suite`.
pub fn has_suite(files: &[SourceFile], suite: &str) -> bool {
    files
        .iter()
        .flat_map(SourceFile::entries)
        .any(|entry| entry.suites.iter().any(|name| name == suite))
}

/// The source file to add, so that apt knows the backports of the release `codename`: like the machine's source of the release
/// itself, but for the suite. `None` if there is no such source.
pub fn backports(files: &[SourceFile], codename: &str) -> Option<SourceFile> {
    let is_main = |entry: &Entry| {
        entry.suites.iter().any(|suite| suite == codename)
            && entry.components.iter().any(|name| name == "main")
    };
    let entry = files.iter().flat_map(SourceFile::entries).find(is_main)?;
    let uri = entry.uris.first()?;
    let suite = format!("{codename}-backports");
    let (extension, text) = match entry.options {
        Options::Line(options) => {
            let options = if options.is_empty() {
                options
            } else {
                options + " "
            };
            ("list", format!("deb {options}{uri} {suite} main\n"))
        }
        Options::Paragraph(others) => {
            let mut text = format!("Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\n");
            for (field, value) in others {
                let space = if value.starts_with('\n') || value.is_empty() {
                    ""
                } else {
                    " "
                };
                text += &format!("{field}:{space}{value}\n");
            }
            ("sources", text)
        }
    };
    Some(SourceFile {
        path: Path::new("/etc/apt/sources.list.d/homenode-backports").with_extension(extension),
        text,
    })
}

/// The candidate's version in what `apt-cache policy PACKAGE` prints, or `None` if there is no candidate.
pub fn candidate(policy: &str) -> Option<&str> {
    let line = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate:"))?;
    Some(line.trim()).filter(|version| *version != "(none)")
}

/// The first dependency in what `apt-cache depends PACKAGE` prints, or `None` if there is none.
pub fn dependency(depends: &str) -> Option<&str> {
    depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends:"))
        .map(str::trim)
        .filter(|package| !package.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.into(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_deb822_source_is_derived_with_its_options() {
        let files = [
            file(
                "/etc/apt/sources.list.d/other.sources",
                "Types: deb\nURIs: http://other\nSuites: stable\nComponents: main\n",
            ),
            file(
                "/etc/apt/sources.list.d/debian.sources",
                "# The archive\nTypes: deb deb-src\n# moved\nURIs: http://mirror/debian http://second/debian\n\
                 Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By:\n -----BEGIN KEY-----\n .\n abc\n\
                 Check-Valid-Until: no\n\n\
                 Types: deb\nURIs: http://mirror/security\nSuites: bookworm-security\nComponents: main\n",
            ),
        ];
        let derived = backports(&files, "bookworm").unwrap();
        assert_eq!(
            derived.path,
            Path::new("/etc/apt/sources.list.d/homenode-backports.sources")
        );
        assert_eq!(
            derived.text,
            "Types: deb\nURIs: http://mirror/debian\nSuites: bookworm-backports\nComponents: main\n\
             Signed-By:\n -----BEGIN KEY-----\n .\n abc\nCheck-Valid-Until: no\n"
        );
        assert!(!has_suite(&files, "bookworm-backports"));
        assert!(has_suite(&[derived], "bookworm-backports"));
    }

    #[test]
    fn a_one_line_source_is_derived_with_its_options() {
        let text = "# deb http://old bookworm main\n\
                    deb-src http://mirror/debian bookworm main\n\
                    deb http://mirror/security bookworm-security main\n\
                    deb [ arch=amd64 signed-by=/keys/debian.gpg ] http://mirror/debian bookworm main contrib # here\n";
        let files = [file("/etc/apt/sources.list", text)];
        let derived = backports(&files, "bookworm").unwrap();
        assert_eq!(
            derived.path,
            Path::new("/etc/apt/sources.list.d/homenode-backports.list")
        );
        assert_eq!(
            derived.text,
            "deb [arch=amd64 signed-by=/keys/debian.gpg] http://mirror/debian bookworm-backports main\n"
        );
        let plain = [file(
            "/etc/apt/sources.list",
            "deb http://mirror/debian trixie main\n",
        )];
        assert_eq!(
            backports(&plain, "trixie").unwrap().text,
            "deb http://mirror/debian trixie-backports main\n"
        );
    }

    #[test]
    fn disabled_and_foreign_sources_do_not_count() {
        let disabled = "Enabled: no\nTypes: deb\nURIs: http://mirror\nSuites: bookworm\nComponents: main\n";
        let source_only = "Types: deb-src\nURIs: http://mirror\nSuites: bookworm\nComponents: main\n";
        let files = [
            file("/etc/apt/sources.list.d/a.sources", disabled),
            file("/etc/apt/sources.list.d/b.sources", source_only),
            file(
                "/etc/apt/sources.list.d/c.list.save",
                "deb http://mirror bookworm main\n",
            ),
            file(
                "/etc/apt/sources.list",
                "deb http://mirror trixie main\ndebris http://mirror bookworm main\n",
            ),
        ];
        assert_eq!(backports(&files, "bookworm"), None);
        assert!(!has_suite(&files, "bookworm"));
    }

    #[test]
    fn the_candidate_is_found() {
        let policy = "qemu-system-x86:\n  Installed: (none)\n  Candidate: 1:7.2+dfsg-7\n  Version table:\n";
        assert_eq!(candidate(policy), Some("1:7.2+dfsg-7"));
        assert_eq!(candidate("x:\n  Installed: (none)\n  Candidate: (none)\n"), None);
        assert_eq!(candidate(""), None);
    }

    #[test]
    fn the_first_dependency_is_found() {
        let depends =
            "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n  Depends: other\n";
        assert_eq!(dependency(depends), Some("linux-image-6.1.0-57-cloud-amd64"));
        assert_eq!(dependency("linux-image-cloud-amd64\n"), None);
    }
}
