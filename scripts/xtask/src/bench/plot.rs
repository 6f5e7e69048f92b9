//! Plots in SVG: lines over numbers of CPUs, both axes logarithmic.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
/// Where the axes are: left, right, top, bottom.
const LEFT: f64 = 70.0;
const RIGHT: f64 = WIDTH - 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = HEIGHT - 45.0;

/// Colours that people with colour-blindness can tell apart (Okabe and Ito, "Color Universal Design", 2008).
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// Lines of different systems: whole, broken, dotted and so on.
const STYLES: [&str; 4] = [
    "",
    " stroke-dasharray=\"6 4\"",
    " stroke-dasharray=\"2 3\"",
    " stroke-dasharray=\"9 3 2 3\"",
];

/// The least value that is drawn: the logarithm of nothing is nowhere.
const LEAST: f64 = 1.0;

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// What the legend calls it.
    pub(super) name: String,
    /// Its points: CPUs, and cost.
    pub(super) points: Vec<(u32, f64)>,
    /// Its colour, by number: lines of one phase have the same.
    pub(super) colour: usize,
    /// How it is broken, by number: lines of one system are alike.
    pub(super) style: usize,
}

/// Where a range of logarithms lies on the paper.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn place(&self, logarithm: f64) -> f64 {
        let span = (self.high - self.low).max(f64::MIN_POSITIVE);
        self.from + (logarithm - self.low) / span * (self.to - self.from)
    }
}

/// Draws `lines` under `title`, with `cost` as the name of the vertical axis.
pub(super) fn draw(title: &str, cost: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut cpus: Vec<u32> = points().map(|&(cpus, _)| cpus).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let costs = || points().map(|&(_, cost)| cost.max(LEAST).log10());
    let x = Axis {
        low: cpus.first().map_or(0.0, |&cpus| f64::from(cpus).log2()),
        high: cpus.last().map_or(1.0, |&cpus| f64::from(cpus).log2()),
        from: LEFT + 15.0,
        to: RIGHT - 15.0,
    };
    let low = costs().fold(f64::INFINITY, f64::min).floor().min(9.0);
    let y = Axis {
        low,
        high: costs().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0),
        from: BOTTOM,
        to: TOP,
    };

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    text(&mut svg, LEFT, 20.0, "start", title);
    text(&mut svg, (LEFT + RIGHT) / 2.0, HEIGHT - 8.0, "middle", "CPUs");
    text(&mut svg, LEFT, TOP - 8.0, "start", cost);
    for decade in y.low as i32..=y.high as i32 {
        let at = y.place(decade.into());
        rule(&mut svg, (LEFT, at), (RIGHT, at));
        text(&mut svg, LEFT - 6.0, at + 4.0, "end", &decade_name(decade));
    }
    for &cpus in &cpus {
        let at = x.place(f64::from(cpus).log2());
        rule(&mut svg, (at, BOTTOM), (at, TOP));
        text(&mut svg, at, BOTTOM + 16.0, "middle", &cpus.to_string());
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[line.colour % COLOURS.len()];
        let dashes = STYLES[line.style % STYLES.len()];
        let places: Vec<(f64, f64)> = line
            .points
            .iter()
            .map(|&(cpus, cost)| (x.place(f64::from(cpus).log2()), y.place(cost.max(LEAST).log10())))
            .collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            path.join(" ")
        );
        for (x, y) in places {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let at = TOP + 10.0 + 18.0 * index as f64;
        let _ = writeln!(
            svg,
            "<line x1=\"{}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            RIGHT + 10.0,
            RIGHT + 32.0
        );
        text(&mut svg, RIGHT + 38.0, at + 4.0, "start", &line.name);
    }
    svg + "</svg>\n"
}

/// A power of ten as people write it.
fn decade_name(decade: i32) -> String {
    match decade {
        ..3 => format!("{}", 10_u64.pow(decade.max(0).unsigned_abs())),
        3..6 => format!("{} k", 10_u64.pow(decade.unsigned_abs() - 3)),
        6..9 => format!("{} M", 10_u64.pow(decade.unsigned_abs() - 6)),
        _ => format!("{} G", 10_u64.pow(decade.unsigned_abs() - 9)),
    }
}

fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(u32, f64)]) -> Line {
        Line {
            name: "a<b".to_owned(),
            points: points.to_vec(),
            colour: 0,
            style: 0,
        }
    }

    /// The places of the circles.
    fn places(svg: &str) -> Vec<(f64, f64)> {
        let value = |line: &str, key: &str| {
            let rest = line.split_once(key).unwrap().1;
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        svg.lines()
            .filter(|line| line.starts_with("<circle"))
            .map(|line| (value(line, "cx=\""), value(line, "cy=\"")))
            .collect()
    }

    #[test]
    fn equal_ratios_are_equal_distances() {
        let svg = draw(
            "t",
            "c",
            &[line(&[(1, 10.0), (2, 100.0), (4, 1000.0), (8, 1000.0)])],
        );
        let places = places(&svg);
        let near = |a: f64, b: f64| (a - b).abs() < 0.2;
        assert!(near(places[1].0 - places[0].0, places[3].0 - places[2].0));
        assert!(near(places[0].1 - places[1].1, places[1].1 - places[2].1));
        assert!(places[0].1 > places[1].1 && near(places[2].1, places[3].1));
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }

    #[test]
    fn every_point_is_on_the_paper() {
        for points in [
            vec![(1, 0.0)],
            vec![(64, 1e9), (1, 3.0)],
            vec![(8, 5.0), (8, 5.0)],
            vec![],
        ] {
            let svg = draw("t", "c", &[line(&points)]);
            assert_eq!(places(&svg).len(), points.len());
            for (x, y) in places(&svg) {
                assert!(
                    (LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y),
                    "{points:?}: {x}, {y}"
                );
            }
        }
    }
}
