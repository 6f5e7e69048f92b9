//! Plots in SVG: lines over numbers of CPUs, both axes logarithmic.

use std::fmt::Write as _;

/// The width of a plot, and its height if it is one panel.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
/// The width of a grid of panels, and the height of each row.
const GRID_WIDTH: f64 = 940.0;
const ROW_HEIGHT: f64 = 220.0;
/// Where the axes of the one panel are.
const SINGLE: Frame = Frame {
    left: 70.0,
    right: WIDTH - 190.0,
    top: 40.0,
    bottom: HEIGHT - 45.0,
};
/// Where the axes of the panels are in a row that begins at the top of the paper.
const COLUMNS: [Frame; 2] = [
    Frame {
        left: 70.0,
        right: 360.0,
        top: 50.0,
        bottom: ROW_HEIGHT - 20.0,
    },
    Frame {
        left: 430.0,
        right: GRID_WIDTH - 220.0,
        top: 50.0,
        bottom: ROW_HEIGHT - 20.0,
    },
];

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

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// What the legend calls it.
    pub(super) name: String,
    /// Its points: CPUs, and cost.
    pub(super) points: Vec<(u32, f64)>,
    /// Its colour, by number: in one panel, lines of one phase have the same.
    pub(super) colour: usize,
    /// How it is broken, by number: lines of one system are alike.
    pub(super) style: usize,
}

/// Lines between axes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    /// What the vertical axis is of.
    pub(super) cost: String,
    /// The least value that is drawn, a power of ten; what is less lies there too, since the logarithm of nothing is nowhere.
    pub(super) least: f64,
    /// The lines.
    pub(super) lines: Vec<Line>,
}

/// Where the axes of a panel are on the paper.
#[derive(Clone, Copy)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn lower(self, by: f64) -> Self {
        Self {
            top: self.top + by,
            bottom: self.bottom + by,
            ..self
        }
    }
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

/// Draws one panel under `title`, with a name for each line.
pub(super) fn draw(title: &str, panel: &Panel) -> String {
    let mut svg = paper(WIDTH, HEIGHT);
    text(&mut svg, SINGLE.left, 20.0, "start", title);
    draw_panel(&mut svg, SINGLE, panel, |svg, index, line| {
        legend(svg, SINGLE, index, line);
    });
    svg + "</svg>\n"
}

/// Draws rows of two panels under `title`, with a name for each kind of line: lines of one name are to look alike in all panels.
pub(super) fn draw_grid(title: &str, rows: &[[Panel; 2]]) -> String {
    let mut svg = paper(GRID_WIDTH, ROW_HEIGHT * rows.len() as f64 + 25.0);
    text(&mut svg, COLUMNS[0].left, 20.0, "start", title);
    let mut named: Vec<&str> = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        for (frame, panel) in COLUMNS.into_iter().zip(row) {
            let frame = frame.lower(ROW_HEIGHT * number as f64);
            draw_panel(&mut svg, frame, panel, |_, _, _| ());
            for line in &panel.lines {
                if !named.contains(&line.name.as_str()) {
                    legend(&mut svg, COLUMNS[1], named.len(), line);
                    named.push(&line.name);
                }
            }
        }
    }
    svg + "</svg>\n"
}

/// The beginning of a picture.
fn paper(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    )
}

/// Draws the axes and the lines of a panel. Behind each line it calls `behind` with the line's number, from 0.
fn draw_panel(svg: &mut String, frame: Frame, panel: &Panel, behind: impl Fn(&mut String, usize, &Line)) {
    let Frame {
        left,
        right,
        top,
        bottom,
    } = frame;
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let mut cpus: Vec<u32> = points().map(|&(cpus, _)| cpus).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let logarithm = |cost: f64| cost.max(panel.least).log10();
    let costs = || points().map(|&(_, cost)| logarithm(cost));
    let x = Axis {
        low: cpus.first().map_or(0.0, |&cpus| f64::from(cpus).log2()),
        high: cpus.last().map_or(1.0, |&cpus| f64::from(cpus).log2()),
        from: left + 15.0,
        to: right - 15.0,
    };
    let low = costs().fold(f64::INFINITY, f64::min).floor().min(9.0);
    let y = Axis {
        low,
        high: costs().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0),
        from: bottom,
        to: top,
    };

    text(svg, (left + right) / 2.0, bottom + 37.0, "middle", "CPUs");
    text(svg, left, top - 8.0, "start", &panel.cost);
    for decade in y.low as i32..=y.high as i32 {
        let at = y.place(decade.into());
        rule(svg, (left, at), (right, at));
        text(svg, left - 6.0, at + 4.0, "end", &decade_name(decade));
    }
    for &cpus in &cpus {
        let at = x.place(f64::from(cpus).log2());
        rule(svg, (at, bottom), (at, top));
        text(svg, at, bottom + 16.0, "middle", &cpus.to_string());
    }
    for (index, line) in panel.lines.iter().enumerate() {
        let (colour, dashes) = line.stroke();
        let place = |&(cpus, cost): &(u32, f64)| (x.place(f64::from(cpus).log2()), y.place(logarithm(cost)));
        let places: Vec<(f64, f64)> = line.points.iter().map(place).collect();
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
        behind(svg, index, line);
    }
}

/// Names a line to the right of `frame`, in the place with this number.
fn legend(svg: &mut String, frame: Frame, place: usize, line: &Line) {
    let (colour, dashes) = line.stroke();
    let (left, at) = (frame.right + 10.0, frame.top + 10.0 + 18.0 * place as f64);
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<line x1=\"{left}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
        left + 22.0
    );
    text(svg, left + 28.0, at + 4.0, "start", &line.name);
}

impl Line {
    /// The colour, and how the line is broken, as an attribute.
    fn stroke(&self) -> (&'static str, &'static str) {
        (
            COLOURS[self.colour % COLOURS.len()],
            STYLES[self.style % STYLES.len()],
        )
    }
}

/// A power of ten as people write it.
fn decade_name(decade: i32) -> String {
    match decade {
        ..0 => format!("{:.1$}", 10_f64.powi(decade), decade.unsigned_abs() as usize),
        0..3 => format!("{}", 10_u64.pow(decade.unsigned_abs())),
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

    fn panel(points: &[(u32, f64)]) -> Panel {
        Panel {
            cost: "c".to_owned(),
            least: 1.0,
            lines: vec![line(points)],
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
        let svg = draw("t", &panel(&[(1, 10.0), (2, 100.0), (4, 1000.0), (8, 1000.0)]));
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
            let svg = draw("t", &panel(&points));
            assert_eq!(places(&svg).len(), points.len());
            for (x, y) in places(&svg) {
                assert!(
                    (SINGLE.left..=SINGLE.right).contains(&x) && (SINGLE.top..=SINGLE.bottom).contains(&y),
                    "{points:?}: {x}, {y}"
                );
            }
        }
    }

    #[test]
    fn each_panel_has_axes_of_its_own_and_names_stand_once() {
        let panel = |least, points: &[(u32, f64)]| Panel {
            least,
            ..panel(points)
        };
        let left = panel(1.0, &[(1, 0.0), (64, 5e6)]);
        let right = panel(0.001, &[(1, 0.0), (64, 63.0)]);
        let svg = draw_grid("t", &[[left.clone(), right.clone()], [right, left]]);
        let places = places(&svg);
        assert_eq!(places.len(), 8);
        for (place, &(x, y)) in places.iter().enumerate() {
            let frame = COLUMNS[place / 2 % 2].lower(if place < 4 { 0.0 } else { ROW_HEIGHT });
            assert!((frame.left..=frame.right).contains(&x), "{place}: {x}");
            assert!((frame.top..=frame.bottom).contains(&y), "{place}: {y}");
        }
        // Nothing lies at the bottom of each panel, whatever the least decade is.
        assert_eq!((places[0].1, places[4].1), (places[2].1, places[6].1));
        assert!(svg.contains(">0.001<") && svg.contains(">10 M<"), "{svg}");
        assert_eq!(svg.matches("a&lt;b").count(), 1);
    }
}
