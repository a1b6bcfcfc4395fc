//! The page's chart, a forest plot: a line for each headline case with its two ratios.
//!
//! The chart has its own background, and its colours follow the reader's preference for light or dark.

use uncopy_html::markup::Markup;

use crate::kit::Interval;
use crate::kit::verdict::{MIN_DIFFERENCE, Verdict};

/// Width of the image, pixels.
const WIDTH: f64 = 960.0;
/// Ends of the axis, pixels from the left.
const AXIS_ENDS: (f64, f64) = (330.0, 790.0);
/// Space above the first line, and line height, pixels.
const HEADER_HEIGHT: f64 = 84.0;
const ROW_HEIGHT: f64 = 24.0;
/// Space below the last line, pixels.
const FOOTER_HEIGHT: f64 = 16.0;
/// Labelled ratios, of which the outermost bound the range of the axis.
const TICKS: [f64; 11] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0, 3.0];
/// Factor between the outermost interval and the end of the axis.
const MARGIN: f64 = 1.06;

const STYLE: &str = "<style>\
    svg{font:13px system-ui,sans-serif;--ground:#fff;--text:#1f2328;--quiet:#636c76;--rule:#d8dee4;--band:#eef1f4;\
    --helps:#0072b2;--costs:#c44e00;--harmless:#00805d;--between:#636c76}\
    @media(prefers-color-scheme:dark){svg{--ground:#0d1117;--text:#e6edf3;--quiet:#9198a1;--rule:#30363d;--band:#1c2430;\
    --helps:#58a6ff;--costs:#ff9b50;--harmless:#3fc79a;--between:#9198a1}}\
    .ground{fill:var(--ground)}.band{fill:var(--band)}.rule{stroke:var(--rule)}.one{stroke:var(--quiet)}\
    text{fill:var(--text)}.quiet{fill:var(--quiet);font-size:12px}.heading{font-size:16px;font-weight:600}\
    .helps{color:var(--helps)}.costs{color:var(--costs)}.harmless{color:var(--harmless)}.between{color:var(--between)}\
    .best{fill:currentColor;stroke:currentColor;stroke-width:2.5}\
    .plain{fill:var(--ground);stroke:var(--quiet);stroke-width:1.2}\
    .figure{fill:currentColor}\
    </style>";

/// A line of the chart.
#[derive(Debug)]
pub(super) struct ChartRow {
    /// Name of the case.
    pub(super) name: String,
    /// Ratio that is judged, with its verdict: processor time per operation over that of the best alternative.
    pub(super) judged_ratio: Option<(Interval, Verdict)>,
    /// Ratio of processor time per operation over plain's.
    pub(super) over_plain: Option<Interval>,
}

/// Logarithmic axis of ratios.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(lines: &[ChartRow]) -> Self {
        let judged_ratio = lines.iter().filter_map(|line| line.judged_ratio).map(|(interval, _)| interval);
        let all = judged_ratio.chain(lines.iter().filter_map(|line| line.over_plain));
        let (low, high) = all.fold((1.0 - MIN_DIFFERENCE, 1.0 + MIN_DIFFERENCE), |(low, high), interval| {
            (f64::min(low, interval.low), f64::max(high, interval.high))
        });
        Self { low: (low / MARGIN).max(TICKS[0]), high: (high * MARGIN).min(TICKS[TICKS.len() - 1]) }
    }

    fn contains(&self, ratio: f64) -> bool {
        (self.low..=self.high).contains(&ratio)
    }

    /// Returns the position in pixels from the left; ratios outside the range are put at its end.
    fn x_position(&self, ratio: f64) -> f64 {
        let part = (ratio.clamp(self.low, self.high) / self.low).ln() / (self.high / self.low).ln();
        AXIS_ENDS.0 + part * (AXIS_ENDS.1 - AXIS_ENDS.0)
    }
}

/// Returns the class of the style sheet for a verdict.
const fn css_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Helps => "helps",
        Verdict::Costs => "costs",
        Verdict::Harmless => "harmless",
        Verdict::Undecided(..) | Verdict::TooFewRounds => "between",
    }
}

/// Returns the SVG image of `lines`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "few lines")]
pub(super) fn draw(lines: &[ChartRow]) -> String {
    let axis = Axis::of(lines);
    let bottom = HEADER_HEIGHT + ROW_HEIGHT * lines.len() as f64;
    let (width, height) = (format_pixels(WIDTH), format_pixels(bottom + FOOTER_HEIGHT));
    let mut svg = Markup::new();
    svg.open(
        "svg",
        &[
            ("xmlns", "http://www.w3.org/2000/svg"),
            ("viewBox", &format!("0 0 {width} {height}")),
            ("width", &width),
            ("height", &height),
            ("role", "img"),
        ],
    );
    svg.element("title", &[], "Processor time per operation of each case, with 95 % intervals");
    svg.literal(STYLE);
    draw_rectangle(&mut svg, "ground", (0.0, WIDTH), (0.0, bottom + FOOTER_HEIGHT));
    let band = (axis.x_position(1.0 - MIN_DIFFERENCE), axis.x_position(1.0 + MIN_DIFFERENCE));
    draw_rectangle(&mut svg, "band", band, (HEADER_HEIGHT - 8.0, bottom));
    draw_legend(&mut svg);
    for tick in TICKS.into_iter().filter(|tick| axis.contains(*tick)) {
        let x = axis.x_position(tick);
        let is_one = (tick - 1.0).abs() < f64::EPSILON;
        draw_line(&mut svg, if is_one { "one" } else { "rule" }, (x, x), (HEADER_HEIGHT - 8.0, bottom));
        draw_text(&mut svg, "quiet", (x, HEADER_HEIGHT - 14.0), "middle", &tick.to_string());
    }
    for (at, line) in lines.iter().enumerate() {
        let y = HEADER_HEIGHT + ROW_HEIGHT * (at as f64 + 0.5);
        draw_text(&mut svg, "", (AXIS_ENDS.0 - 14.0, y + 4.0), "end", &line.name);
        if let Some(interval) = line.over_plain {
            draw_interval(&mut svg, &axis, "plain", interval, y + 5.0);
            let corner = (format_pixels(axis.x_position(interval.median) - 3.5), format_pixels(y + 1.5));
            let position =
                [("x", corner.0.as_str()), ("y", corner.1.as_str()), ("width", "7"), ("height", "7")];
            svg.element("rect", &[&position[..], &[("class", "plain")]].concat(), "");
        }
        let Some((interval, verdict)) = line.judged_ratio else {
            draw_text(&mut svg, "quiet", (AXIS_ENDS.1 + 12.0, y + 4.0), "start", "not measured");
            continue;
        };
        svg.open("g", &[("class", css_class(verdict))]);
        draw_interval(&mut svg, &axis, "best", interval, y - 3.0);
        let centre = (format_pixels(axis.x_position(interval.median)), format_pixels(y - 3.0));
        svg.element("circle", &[("cx", &centre.0), ("cy", &centre.1), ("r", "4"), ("class", "best")], "");
        draw_text(&mut svg, "figure", (AXIS_ENDS.1 + 12.0, y + 4.0), "start", &interval.to_string());
        svg.close();
    }
    svg.into_string()
}

fn draw_legend(svg: &mut Markup) {
    let heading = "Processor time per operation under uncopy; below 1 is less time";
    draw_text(svg, "heading", (14.0, 24.0), "start", heading);
    let y = 44.0;
    svg.open("g", &[("class", "helps")]);
    svg.element(
        "circle",
        &[("cx", "20"), ("cy", &format_pixels(y - 4.0)), ("r", "4"), ("class", "best")],
        "",
    );
    svg.close();
    draw_text(svg, "quiet", (30.0, y), "start", "over the best allocator, 95 % interval:");
    let mut x = 300.0;
    for (class, word, width) in [
        ("helps", "helps", 50.0),
        ("harmless", "harmless", 76.0),
        ("costs", "costs", 50.0),
        ("between", "undecided", 0.0),
    ] {
        svg.open("g", &[("class", class)]);
        draw_text(svg, "figure", (x, y), "start", word);
        svg.close();
        x += width;
    }
    let square = [("x", "590"), ("y", "36.5"), ("width", "7"), ("height", "7"), ("class", "plain")];
    svg.element("rect", &square, "");
    draw_text(svg, "quiet", (603.0, y), "start", "over plain");
    draw_rectangle(svg, "band", (700.0, 716.0), (34.0, 46.0));
    draw_text(svg, "quiet", (723.0, y), "start", "±3 %: no difference");
}

/// Draws the interval as a line, without an end mark where it extends beyond the axis.
fn draw_interval(svg: &mut Markup, axis: &Axis, class: &'static str, interval: Interval, y: f64) {
    draw_line(svg, class, (axis.x_position(interval.low), axis.x_position(interval.high)), (y, y));
    for end in [interval.low, interval.high].into_iter().filter(|end| axis.contains(*end)) {
        let x = axis.x_position(end);
        draw_line(svg, class, (x, x), (y - 2.5, y + 2.5));
    }
}

fn draw_line(svg: &mut Markup, class: &'static str, x: (f64, f64), y: (f64, f64)) {
    let ends = [x.0, y.0, x.1, y.1].map(format_pixels);
    let [x1, y1, x2, y2] = &ends;
    svg.element("line", &[("class", class), ("x1", x1), ("y1", y1), ("x2", x2), ("y2", y2)], "");
}

fn draw_rectangle(svg: &mut Markup, class: &'static str, x: (f64, f64), y: (f64, f64)) {
    let sides = [x.0, y.0, x.1 - x.0, y.1 - y.0].map(format_pixels);
    let [left, top, width, height] = &sides;
    let attributes = [("class", class), ("x", left), ("y", top), ("width", width), ("height", height)];
    svg.element("rect", &attributes, "");
}

fn draw_text(svg: &mut Markup, class: &'static str, (x, y): (f64, f64), anchor: &str, words: &str) {
    let position = (format_pixels(x), format_pixels(y));
    let attributes = [("class", class), ("x", &position.0), ("y", &position.1), ("text-anchor", anchor)];
    svg.element("text", &attributes, words);
}

/// Formats pixels with one decimal.
fn format_pixels(pixels: f64) -> String {
    format!("{}", (pixels * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(median: f64, low: f64, high: f64) -> Interval {
        Interval { median, low, high }
    }

    fn line(name: &str, judged_ratio: Option<Interval>) -> ChartRow {
        let judged_ratio = judged_ratio.map(|interval| (interval, Verdict::of(interval, 100)));
        ChartRow {
            name: name.to_owned(),
            judged_ratio,
            over_plain: judged_ratio.map(|(interval, _)| interval),
        }
    }

    #[test]
    fn every_case_is_named_and_drawn_in_the_colour_of_its_verdict() {
        let lines = [
            line("echo <12>", Some(interval(0.5, 0.48, 0.52))),
            line("get", Some(interval(1.5, 1.4, 1.6))),
            line("none", None),
        ];
        let svg = draw(&lines);
        assert!(svg.contains("echo &lt;12&gt;") && svg.contains("0.50 [0.48–0.52]"), "{svg}");
        assert!(svg.contains("not measured"), "{svg}");
        for class in ["helps", "costs"] {
            assert!(svg.contains(&format!("<g class=\"{class}\"><line")), "{class}: {svg}");
        }
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn names_of_all_headlines_fit_beside_the_axis() {
        // Of the fonts that a viewer may choose, DejaVu Sans is the widest: 7.9 pixels on average at 13.
        for headline in crate::results::register::HEADLINES {
            let width = headline.name.chars().count() as f64 * 7.9;
            assert!(width <= AXIS_ENDS.0 - 14.0, "{} takes {width} pixels", headline.name);
        }
    }

    #[test]
    fn bars_outside_of_the_axis_end_with_it() {
        let axis = Axis::of(&[line("wild", Some(interval(2.0, 0.01, 50.0)))]);
        assert_eq!((axis.x_position(0.01), axis.x_position(50.0)), (AXIS_ENDS.0, AXIS_ENDS.1));
        assert!(
            axis.x_position(1.0) > AXIS_ENDS.0 && axis.x_position(1.0) < AXIS_ENDS.1 && !axis.contains(50.0)
        );
        let none = Axis::of(&[]);
        assert!(none.x_position(0.97) < none.x_position(1.03));
    }
}
