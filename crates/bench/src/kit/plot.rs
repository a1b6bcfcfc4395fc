//! Line plots as SVG images: points are medians, bars their spread, a line for each series.

use plotters::coord::Shift;
use plotters::element::{ErrorBar, Text};
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, DrawingBackend, IntoDrawingArea, IntoFont, LineSeries,
    PathElement, RGBColor, SVGBackend, WHITE,
};
use serde::{Deserialize, Serialize};

use crate::kit::comparison::Comparison;
use crate::kit::failure::{Failure, Result};
use crate::kit::network;
use crate::kit::sample::Metric;
use crate::kit::side::Side;
use crate::kit::statistics::Interval;
use crate::kit::table::size;

/// Size of the image, pixels.
const IMAGE: (u32, u32) = (960, 540);
/// Room for the legend beside the chart, pixels.
const LEGEND: u32 = 190;
/// From one line of the legend to the next, pixels.
const LEGEND_LINE: i32 = 24;
/// Between the bars of two series at one place, in parts of the chart's width: they would hide one another.
const APART: f64 = 0.006;
/// Okabe and Ito's colours, which people of every colour vision can tell apart, black last.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];

/// How places on the horizontal axis are labelled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scale {
    /// The number itself.
    Linear,
    /// A size in bytes; each doubling takes the same room.
    Doubling,
    /// These words, at 0, 1, 2, ….
    Words(Vec<String>),
}

/// One line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points from left to right: place and figure.
    pub points: Vec<(f64, Interval)>,
}

/// A plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// What stands above it.
    pub title: String,
    /// What the horizontal axis shows, and how.
    pub x: (String, Scale),
    /// What the vertical axis shows. It begins at 0.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
}

impl Plot {
    /// A plot with a series for each side: places are the value of `parameter`, figures what `figure` gives.
    #[must_use]
    pub fn by_side(
        title: &str,
        x: (&str, Scale),
        y: &str,
        comparisons: &[Comparison],
        parameter: &str,
        figure: impl Fn(&Comparison, Side) -> Option<Interval>,
    ) -> Self {
        let mut sides: Vec<Side> = Vec::new();
        for side in comparisons.iter().flat_map(Comparison::sides) {
            if !sides.contains(side) {
                sides.push(*side);
            }
        }
        let points = |side: Side| {
            let shown = comparisons.iter().filter(|comparison| comparison.sides().contains(&side));
            shown.filter_map(|shown| Some((shown.parameter(parameter)?, figure(shown, side)?))).collect()
        };
        let series = sides.iter().map(|side| Series { name: side.name().to_owned(), points: points(*side) });
        let series = series.collect();
        Self { title: title.to_owned(), x: (x.0.to_owned(), x.1), y: y.to_owned(), series }
    }

    /// A plot with a series for each side but plain: figures are `metric` over plain's, a place for each comparison.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "few comparisons")]
    pub fn over_plain(title: &str, y: &str, comparisons: &[Comparison], metric: Metric) -> Self {
        let mut series: Vec<Series> = Vec::new();
        for (at, comparison) in comparisons.iter().enumerate() {
            for side in comparison.sides().iter().filter(|side| **side != Side::Plain) {
                let Some(ratio) = comparison.ratio(*side, metric) else { continue };
                match series.iter_mut().find(|series| series.name == side.name()) {
                    Some(series) => series.points.push((at as f64, ratio)),
                    None => {
                        series.push(Series { name: side.name().to_owned(), points: vec![(at as f64, ratio)] })
                    }
                }
            }
        }
        let titles = comparisons.iter().map(|comparison| comparison.title().to_owned()).collect();
        let x = ("experiment".to_owned(), Scale::Words(titles));
        Self { title: title.to_owned(), x, y: y.to_owned(), series }
    }

    /// What stands above it: the title, and over which network it was measured.
    fn caption(&self) -> String {
        format!("{} ({})", self.title, network::current().name())
    }

    /// The image as text.
    ///
    /// # Errors
    /// [`Failure`] when there is nothing to draw.
    pub fn to_svg(&self) -> Result<String> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        if points().next().is_none() {
            return Err(Failure::new(format!("there is nothing to draw in the plot of {}", self.title)));
        }
        let places = || points().map(|(x, _)| self.place(*x));
        let (left, right) =
            places().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        // Around a single size, half of it and its double.
        let least = if self.x.1 == Scale::Doubling { 1.0 } else { 0.1 };
        let margin = if right > left { (right - left) * 0.05 } else { least };
        let highest =
            |figure: fn(&Interval) -> f64| points().map(|(_, spread)| figure(spread)).fold(0.0, f64::max);
        // A single disturbed round must not make the medians a flat line: bars may be cut off.
        let top = (highest(|spread| spread.high) * 1.08).min(highest(|spread| spread.median) * 2.0);
        let mut svg = String::new();
        self.draw(&mut svg, (left - margin, right + margin), if top > 0.0 { top } else { 1.0 })
            .map_err(|error| Failure::new(format!("drawing the plot of {}: {error}", self.title)))?;
        Ok(svg)
    }

    /// Where on the axis `x` is.
    fn place(&self, x: f64) -> f64 {
        if self.x.1 == Scale::Doubling { x.max(1.0).log2() } else { x }
    }

    /// The label of a place on the axis.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes and small indices")]
    fn label(&self, place: f64) -> String {
        match &self.x.1 {
            Scale::Linear => format!("{}", (place * 100.0).round() / 100.0),
            Scale::Doubling if (place - place.round()).abs() < 0.01 => size(place.exp2().round() as u64),
            // Labels between two doublings or two words, or outside, say nothing.
            Scale::Doubling => String::new(),
            Scale::Words(words) if place > -0.01 && (place - place.round()).abs() < 0.01 => {
                words.get(place.round() as usize).cloned().unwrap_or_default()
            }
            Scale::Words(_) => String::new(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few series")]
    fn draw(
        &self,
        svg: &mut String,
        (left, right): (f64, f64),
        top: f64,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::with_string(svg, IMAGE).into_drawing_area();
        area.fill(&WHITE)?;
        let (chart, legend) = area.split_horizontally(IMAGE.0 - LEGEND);
        let mut chart = ChartBuilder::on(&chart)
            .caption(self.caption(), ("sans-serif", 26).into_font())
            .margin(12)
            .x_label_area_size(52)
            .y_label_area_size(88)
            .build_cartesian_2d(left..right, 0.0..top)?;
        let (labels, label_size) = match &self.x.1 {
            Scale::Words(words) => (2 * words.len() + 1, 12),
            _ => (12, 17),
        };
        let decimals = usize::from(top < 10.0) + usize::from(top < 1.0);
        chart
            .configure_mesh()
            .x_desc(&self.x.0)
            .y_desc(&self.y)
            .x_labels(labels)
            .x_label_formatter(&|place| self.label(*place))
            .y_label_formatter(&|figure| format!("{figure:.decimals$}"))
            .max_light_lines(0)
            .label_style(("sans-serif", label_size))
            .axis_desc_style(("sans-serif", 19))
            .draw()?;
        let apart = (right - left) * APART;
        let middle = (self.series.len() as f64 - 1.0) / 2.0;
        for (index, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let aside = (index as f64 - middle) * apart;
            let points = series.points.iter().map(|(x, spread)| (self.place(*x) + aside, *spread));
            let medians = points.clone().map(|(x, spread)| (x, spread.median));
            chart.draw_series(LineSeries::new(medians.clone(), colour.stroke_width(2)))?;
            chart.draw_series(medians.map(|place| Circle::new(place, 3, colour.filled())))?;
            chart.draw_series(points.map(|(x, spread)| {
                let high = spread.high.min(top);
                ErrorBar::new_vertical(x, spread.low, spread.median, high, colour.stroke_width(1), 6)
            }))?;
        }
        self.draw_legend(&legend)?;
        area.present()?;
        Ok(())
    }

    /// The names of the series, one below the other.
    fn draw_legend<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> std::result::Result<(), Box<dyn std::error::Error>>
    where
        B::ErrorType: 'static,
    {
        let mut y = 60;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            area.draw(&PathElement::new([(4, y), (26, y)], colour.stroke_width(2)))?;
            area.draw(&Circle::new((15, y), 3, colour.filled()))?;
            area.draw(&Text::new(series.name.clone(), (34, y - 8), ("sans-serif", 16).into_font()))?;
            y += LEGEND_LINE;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(scale: Scale, places: &[f64]) -> Plot {
        let points = |factor: f64| {
            let spread = |y: f64| Interval { median: y, low: y * 0.9, high: y * 1.1 };
            places.iter().enumerate().map(|(at, x)| (*x, spread(factor * (1.0 + at as f64)))).collect()
        };
        let series = ["plain", "<uncopy> & co"].iter().zip([1.0, 2.0]);
        Plot {
            title: "echo".into(),
            x: ("size".into(), scale),
            y: "MiB/s".into(),
            series: series
                .map(|(name, factor)| Series { name: (*name).to_owned(), points: points(factor) })
                .collect(),
        }
    }

    #[test]
    fn every_series_is_drawn_and_named() {
        for scale in [Scale::Linear, Scale::Doubling, Scale::Words(vec!["a".into(), "b".into(), "c".into()])]
        {
            let svg = plot(scale.clone(), &[0.0, 1.0, 2.0]).to_svg().expect("something to draw");
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{scale:?}");
            assert!(svg.contains("plain") && svg.contains("&lt;uncopy&gt; &amp; co"), "{scale:?}: {svg}");
            assert!(svg.matches("<polyline").count() >= 4, "{scale:?}");
        }
    }

    #[test]
    fn bars_are_cut_off_where_they_would_flatten_the_medians() {
        let mut plot = plot(Scale::Linear, &[0.0, 1.0]);
        plot.series[0].points[0].1.high = 1e6;
        let svg = plot.to_svg().expect("something to draw");
        assert!(!svg.contains("100000"), "{svg}");
        let outside = [" y=\"-", "y1=\"-", "y2=\"-", "cy=\"-"].iter().find(|part| svg.contains(**part));
        assert_eq!(outside, None, "{svg}");
    }

    #[test]
    fn one_point_is_a_plot_and_none_is_not() {
        assert!(plot(Scale::Linear, &[3.0]).to_svg().is_ok());
        let failure = plot(Scale::Linear, &[]).to_svg().expect_err("no points").to_string();
        assert!(failure.contains("nothing to draw"), "{failure}");
    }

    #[test]
    fn labels_are_sizes_or_words_where_the_axis_shows_these() {
        let doubling = plot(Scale::Doubling, &[]);
        assert_eq!(doubling.label(doubling.place(65_536.0)), "64 KiB");
        let words = plot(Scale::Words(vec!["a".into(), "b".into()]), &[]);
        assert_eq!([1.0, 0.5, 2.0, -1.0].map(|place| words.label(place)), ["b", "", "", ""]);
    }
}
