//! The choice of a text format by the request's `Accept` header (RFC 9110, 12.5.1).

use crate::exposition::Format;

/// How well a format is accepted: the weight in thousandths, then how specific the media range was that gave it.
type Acceptance = (u16, u8);

/// The format that a client wants which sent these values of `Accept`. Prometheus 0.0.4 unless OpenMetrics 1.0 is preferred
/// or, at the same weight, asked for more specifically. Media ranges that make no sense are ignored.
pub fn negotiate<'a>(accept: impl Iterator<Item = &'a str> + Clone) -> Format {
    let acceptance = |subtype, version, specific_type| {
        accept
            .clone()
            .flat_map(|value| value.split(','))
            .filter_map(|range| match_range(range, specific_type, subtype, version))
            .max_by_key(|&(_, specificity)| specificity)
            .unwrap_or((0, 0))
    };
    let openmetrics: Acceptance = acceptance("openmetrics-text", "1.0.0", "application");
    let prometheus: Acceptance = acceptance("plain", "0.0.4", "text");
    if openmetrics.0 > 0 && openmetrics > prometheus {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    }
}

/// The weight and specificity of one media range for `main/sub;version=version`, or `None` if it does not cover that.
fn match_range(range: &str, main: &str, sub: &str, version: &str) -> Option<Acceptance> {
    let mut parts = range.split(';').map(str::trim);
    let (range_main, range_sub) = parts.next()?.split_once('/')?;
    let mut specificity = if range_main.eq_ignore_ascii_case(main) && range_sub.eq_ignore_ascii_case(sub) {
        2
    } else if range_main.eq_ignore_ascii_case(main) && range_sub == "*" {
        1
    } else if range_main == "*" && range_sub == "*" {
        0
    } else {
        return None;
    };
    let mut weight = 1000;
    for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
        if name.eq_ignore_ascii_case("q") {
            weight = thousandths(value)?;
        } else if name.eq_ignore_ascii_case("version") {
            if value.trim_matches('"') != version {
                return None;
            }
            specificity = 3;
        }
    }
    Some((weight, specificity))
}

/// A weight, from `0` to `1` with at most three decimals, in thousandths.
fn thousandths(weight: &str) -> Option<u16> {
    let (whole, decimals) = weight.split_once('.').unwrap_or((weight, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let fraction = (0..3).fold(0, |sum, i| {
        sum * 10
            + decimals
                .as_bytes()
                .get(i)
                .map_or(0, |digit| u16::from(digit - b'0'))
    });
    match whole {
        "0" => Some(fraction),
        "1" if fraction == 0 => Some(1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::Format::{OpenMetrics, Prometheus};
    use super::*;

    #[test]
    fn formats_for_headers() {
        let cases = [
            ("", Prometheus),
            ("*/*", Prometheus),
            ("text/plain", Prometheus),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Prometheus),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=1.0.0", OpenMetrics),
            ("application/openmetrics-text;version=\"1.0.0\"", OpenMetrics),
            ("application/openmetrics-text, */*", OpenMetrics),
            ("application/openmetrics-text, text/plain", Prometheus),
            (
                "application/openmetrics-text;q=0.9, text/plain;q=0.8",
                OpenMetrics,
            ),
            ("application/openmetrics-text;q=0.9, */*", Prometheus),
            ("application/openmetrics-text;q=0", Prometheus),
            (
                "application/openmetrics-text;q=2, application/*;q=0.001",
                OpenMetrics,
            ),
            ("application/openmetrics-text;version=2.0.0", Prometheus),
            ("application/*", OpenMetrics),
            (
                "text/plain;q=0.2;version=0.0.4, text/*, application/openmetrics-text;q=0.3",
                OpenMetrics,
            ),
            (";,/,;q=,a/b;q=x, ,", Prometheus),
            // Prometheus 2.42, 2.53 and 3.0.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                OpenMetrics,
            ),
        ];
        for (header, format) in cases {
            assert_eq!(negotiate([header].into_iter()), format, "{header}");
        }
    }

    #[test]
    fn several_headers_are_one_list() {
        assert_eq!(
            negotiate(["text/plain;q=0.1", "application/openmetrics-text;q=0.2"].into_iter()),
            OpenMetrics
        );
        assert_eq!(negotiate([].into_iter()), Prometheus);
    }

    #[test]
    fn weights() {
        let cases = [
            ("0", 0),
            ("0.", 0),
            ("0.5", 500),
            ("0.05", 50),
            ("0.123", 123),
            ("1", 1000),
            ("1.000", 1000),
        ];
        for (text, weight) in cases {
            assert_eq!(thousandths(text), Some(weight), "{text}");
        }
        for text in ["", ".5", "1.001", "2", "-1", "0.1234", "0.x", "0,5", "1e0"] {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }
}
