//! The two text formats: Prometheus 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>) and OpenMetrics
//! 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use alloc::string::String;
use core::fmt::{self, Display, Write};
use core::time::Duration;

/// What the names of the kernel's own families start with.
const KERNEL_PREFIX: &str = "homenode_";

/// What the names of an application's families start with.
const APP_PREFIX: &str = "homenode_app_";

/// A text format for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of the `Content-Type` header.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    /// Labels that describe the machine, with the value 1. Prometheus 0.0.4 calls it a gauge.
    Info,
}

/// A metric family: what its samples have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    prefix: &'static str,
    /// The name behind the prefix, as in the Prometheus format: counters end in `_total`, information in `_info`.
    name: &'static str,
    help: &'static str,
    kind: Kind,
}

impl Family {
    const fn new(prefix: &'static str, name: &'static str, help: &'static str, kind: Kind) -> Self {
        assert!(is_name(name), "a metric's name must match [a-zA-Z_][a-zA-Z0-9_]*");
        assert!(!help.is_empty(), "a metric must have a help text");
        let suffix = match kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge => "",
        };
        assert!(
            name.len() > suffix.len() && ends_with(name, suffix),
            "a counter's name must end in _total, an information's name in _info"
        );
        Self {
            prefix,
            name,
            help,
            kind,
        }
    }

    /// A counter of the kernel. Fails to compile in a constant if `name` does not end in `_total`.
    pub(crate) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(KERNEL_PREFIX, name, help, Kind::Counter)
    }

    /// A counter of the application. Fails to compile in a constant if `name` does not end in `_total`.
    pub(crate) const fn app_counter(name: &'static str, help: &'static str) -> Self {
        Self::new(APP_PREFIX, name, help, Kind::Counter)
    }

    /// A value that can go down.
    pub(crate) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(KERNEL_PREFIX, name, help, Kind::Gauge)
    }

    /// A set of labels that describe the machine. Fails to compile in a constant if `name` does not end in `_info`.
    pub(crate) const fn info(name: &'static str, help: &'static str) -> Self {
        Self::new(KERNEL_PREFIX, name, help, Kind::Info)
    }

    /// The name without the prefix.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// The name of the family in `format`, without the prefix: OpenMetrics leaves the suffix to the samples.
    fn family_name(&self, format: Format) -> &'static str {
        let suffix = match (format, self.kind) {
            (Format::OpenMetrics, Kind::Counter) => "_total",
            (Format::OpenMetrics, Kind::Info) => "_info",
            _ => "",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }
}

/// Whether `name` matches `[a-zA-Z_][a-zA-Z0-9_]*`. Prometheus also allows colons, but keeps them for recording rules.
const fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes[0].is_ascii_digit() {
        return false;
    }
    let mut i = 0;
    while i < bytes.len() {
        if !bytes[i].is_ascii_alphanumeric() && bytes[i] != b'_' {
            return false;
        }
        i += 1;
    }
    true
}

/// `str::ends_with`, which is not const.
const fn ends_with(name: &str, suffix: &str) -> bool {
    match name
        .as_bytes()
        .split_at_checked(name.len().wrapping_sub(suffix.len()))
    {
        Some((_, end)) => {
            let suffix = suffix.as_bytes();
            let mut i = 0;
            while i < suffix.len() {
                if end[i] != suffix[i] {
                    return false;
                }
                i += 1;
            }
            true
        }
        None => false,
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Integer(u64),
    Seconds(Duration),
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Seconds(value) => write!(f, "{}.{:09}", value.as_secs(), value.subsec_nanos()),
        }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<Duration> for Value {
    fn from(value: Duration) -> Self {
        Self::Seconds(value)
    }
}

/// Writes an exposition, family by family.
pub(crate) struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    pub(crate) const fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
        }
    }

    /// Begins `family`, which must not have been begun before.
    pub(crate) fn family<'a>(&'a mut self, family: &'a Family) -> Samples<'a> {
        let name = family.family_name(self.format);
        let prefix = family.prefix;
        let kind = match (self.format, family.kind) {
            (_, Kind::Counter) => "counter",
            (Format::OpenMetrics, Kind::Info) => "info",
            (_, Kind::Gauge | Kind::Info) => "gauge",
        };
        let has_unit = |unit: &&str| name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_'));
        let unit = ["bytes", "seconds"].into_iter().find(has_unit);
        let help = Escaped {
            text: family.help,
            quotes: self.format == Format::OpenMetrics,
        };
        self.line(format_args!("# HELP {prefix}{name} {help}"));
        self.line(format_args!("# TYPE {prefix}{name} {kind}"));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            self.line(format_args!("# UNIT {prefix}{name} {unit}"));
        }
        Samples {
            exposition: self,
            family,
        }
    }

    /// The whole text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("writing to a string cannot fail");
    }
}

/// Writes the samples of one family.
pub(crate) struct Samples<'a> {
    exposition: &'a mut Exposition,
    family: &'a Family,
}

impl Samples<'_> {
    /// One sample. No two samples of a family may have the same labels.
    pub(crate) fn sample(&mut self, labels: &[(&str, &dyn Display)], value: impl Into<Value>) -> &mut Self {
        let Family { prefix, name, .. } = self.family;
        let value = value.into();
        self.exposition
            .line(format_args!("{prefix}{name}{} {value}", Labels(labels)));
        self
    }
}

struct Labels<'a>(&'a [(&'a str, &'a dyn Display)]);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}=\"", if i == 0 { '{' } else { ',' })?;
            write!(
                Escaper {
                    sink: f,
                    quotes: true
                },
                "{value}"
            )?;
            f.write_char('"')?;
        }
        if self.0.is_empty() {
            Ok(())
        } else {
            f.write_char('}')
        }
    }
}

/// A text with backslashes, line feeds and, if `quotes`, double quotes escaped, as both formats want it.
struct Escaped<'a> {
    text: &'a str,
    quotes: bool,
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaper {
            sink: f,
            quotes: self.quotes,
        }
        .write_str(self.text)
    }
}

struct Escaper<'a, 'b> {
    sink: &'a mut fmt::Formatter<'b>,
    quotes: bool,
}

impl Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '\\' => self.sink.write_str("\\\\")?,
                '\n' => self.sink.write_str("\\n")?,
                '"' if self.quotes => self.sink.write_str("\\\"")?,
                _ => self.sink.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: Family = Family::counter("requests_total", "Requests, \"by\" path\\method\nand code.");
    const SIZE: Family = Family::gauge("size_bytes", "Size.");
    const BUILD: Family = Family::info("build_info", "Build.");

    fn example(format: Format) -> String {
        let mut exposition = Exposition::new(format);
        exposition
            .family(&REQUESTS)
            .sample(&[("path", &"/a\\b\"c\nd"), ("code", &200)], 3)
            .sample(&[("path", &""), ("code", &404)], u64::MAX);
        exposition.family(&SIZE).sample(&[], 7);
        exposition.family(&BUILD).sample(&[("version", &"1.0")], 1);
        exposition.finish()
    }

    #[test]
    fn prometheus_text() {
        let expected = r#"# HELP homenode_requests_total Requests, "by" path\\method\nand code.
# TYPE homenode_requests_total counter
homenode_requests_total{path="/a\\b\"c\nd",code="200"} 3
homenode_requests_total{path="",code="404"} 18446744073709551615
# HELP homenode_size_bytes Size.
# TYPE homenode_size_bytes gauge
homenode_size_bytes 7
# HELP homenode_build_info Build.
# TYPE homenode_build_info gauge
homenode_build_info{version="1.0"} 1
"#;
        assert_eq!(example(Format::Prometheus), expected);
    }

    #[test]
    fn openmetrics_text() {
        let expected = r#"# HELP homenode_requests Requests, \"by\" path\\method\nand code.
# TYPE homenode_requests counter
homenode_requests_total{path="/a\\b\"c\nd",code="200"} 3
homenode_requests_total{path="",code="404"} 18446744073709551615
# HELP homenode_size_bytes Size.
# TYPE homenode_size_bytes gauge
# UNIT homenode_size_bytes bytes
homenode_size_bytes 7
# HELP homenode_build Build.
# TYPE homenode_build info
homenode_build_info{version="1.0"} 1
# EOF
"#;
        assert_eq!(example(Format::OpenMetrics), expected);
    }

    #[test]
    fn seconds_are_exact() {
        assert_eq!(
            alloc::format!("{}", Value::from(Duration::new(12, 5))),
            "12.000000005"
        );
    }

    #[test]
    fn names() {
        for good in ["a", "_", "fft3d_transforms_total", "A9"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "9a", "a-b", "a:b", "ä", "a b"] {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(ends_with("a_total", "_total"));
        assert!(!ends_with("total", "_total") && !ends_with("a_totaL", "_total") && !ends_with("", "_total"));
    }

    #[test]
    #[should_panic(expected = "must end in _total")]
    fn a_counter_ends_in_total() {
        let _ = Family::app_counter("transforms", "Transforms.");
    }

    #[test]
    #[should_panic(expected = "must end in _total")]
    fn a_counter_is_more_than_its_suffix() {
        let _ = Family::app_counter("_total", "Transforms.");
    }
}
