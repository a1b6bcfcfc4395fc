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
use crate::kit::table::format_size;

/// Size of the image, pixels.
const IMAGE_SIZE: (u32, u32) = (960, 540);
/// Width of the legend beside the chart, pixels.
const LEGEND_WIDTH: u32 = 190;
/// Height of a line of the legend, pixels.
const LEGEND_LINE_HEIGHT: i32 = 24;
/// Horizontal offset that keeps bars of two series from overlapping, as a part of the chart's width.
const SERIES_OFFSET: f64 = 0.006;
/// Okabe and Ito's palette, which is distinguishable with every kind of colour vision, black last.
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

/// Scale and labels of the horizontal axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scale {
    /// Linear scale, labelled with numbers.
    Linear,
    /// Logarithmic scale of sizes in bytes: each doubling takes the same width.
    Doubling,
    /// One label each at 0, 1, 2, ….
    Words(Vec<String>),
}

/// One line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points from left to right: position and figure.
    pub points: Vec<(f64, Interval)>,
}

/// A line plot with its title and axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Title above the plot.
    pub title: String,
    /// Label and scale of the horizontal axis.
    pub x: (String, Scale),
    /// Label of the vertical axis, which begins at 0.
    pub y: String,
    /// Series, one line each.
    pub series: Vec<Series>,
}

impl Plot {
    /// Creates a plot of points, each given by its series' name, position and figure.
    #[must_use]
    pub fn of(
        title: &str,
        (x, scale): (&str, Scale),
        y: &str,
        points: impl Iterator<Item = (String, f64, Interval)>,
    ) -> Self {
        let mut series: Vec<Series> = Vec::new();
        for (name, position, figure) in points {
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((position, figure)),
                None => series.push(Series { name, points: vec![(position, figure)] }),
            }
        }
        Self { title: title.to_owned(), x: (x.to_owned(), scale), y: y.to_owned(), series }
    }

    /// Creates a plot with a series for each side, of `figure` at the value of `parameter`.
    #[must_use]
    pub fn by_side(
        title: &str,
        x: (&str, Scale),
        y: &str,
        comparisons: &[Comparison],
        parameter: &str,
        figure: impl Fn(&Comparison, Side) -> Option<Interval>,
    ) -> Self {
        let sides = comparisons.iter().flat_map(|one| one.sides().iter().map(move |side| (one, *side)));
        let point = |(one, side): (&Comparison, Side)| {
            Some((side.name().to_owned(), one.parameter(parameter)?, figure(one, side)?))
        };
        Self::of(title, x, y, sides.filter_map(point))
    }

    /// Creates a plot with a series for each side except plain, of `metric` over plain's in each comparison.
    #[must_use]
    pub fn over_plain(title: &str, y: &str, comparisons: &[Comparison], metric: Metric) -> Self {
        Self::by_title(title, y, comparisons, |one| {
            let sides = one.sides().iter().filter(|side| **side != Side::Plain);
            sides.filter_map(|side| Some((side.name(), one.ratio(*side, metric)?))).collect()
        })
    }

    /// Creates a plot with a position for each comparison: `figures` returns each series' name and figure there.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "few comparisons")]
    pub fn by_title(
        title: &str,
        y: &str,
        comparisons: &[Comparison],
        figures: impl Fn(&Comparison) -> Vec<(&'static str, Interval)>,
    ) -> Self {
        let titles = comparisons.iter().map(|comparison| comparison.title().to_owned()).collect();
        let points = comparisons.iter().enumerate().flat_map(|(at, comparison)| {
            figures(comparison).into_iter().map(move |(name, figure)| (name.to_owned(), at as f64, figure))
        });
        Self::of(title, ("experiment", Scale::Words(titles)), y, points)
    }

    /// Returns the caption: the title, and the network of the measurement.
    fn caption(&self) -> String {
        format!("{} ({})", self.title, network::current().name())
    }

    /// Returns the image as SVG text.
    ///
    /// # Errors
    /// [`Failure`] without points, or when drawing fails.
    pub fn to_svg(&self) -> Result<String> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        if points().next().is_none() {
            return Err(Failure::new(format!("there are no results to plot for {}", self.title)));
        }
        let positions = || points().map(|(x, _)| self.position(*x));
        let (left, right) =
            positions().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        // A single size is shown between its half and its double.
        let least = if self.x.1 == Scale::Doubling { 1.0 } else { 0.1 };
        let margin = if right > left { (right - left) * 0.05 } else { least };
        let highest =
            |figure: fn(&Interval) -> f64| points().map(|(_, spread)| figure(spread)).fold(0.0, f64::max);
        // A single disturbed round must not flatten the medians: tall bars are cut off.
        let top = (highest(|spread| spread.high) * 1.08).min(highest(|spread| spread.median) * 2.0);
        let mut svg = String::new();
        self.draw(&mut svg, (left - margin, right + margin), if top > 0.0 { top } else { 1.0 })
            .map_err(|error| Failure::new(format!("drawing the plot of {}: {error}", self.title)))?;
        Ok(svg)
    }

    /// Returns the position of `x` on the horizontal axis.
    fn position(&self, x: f64) -> f64 {
        if self.x.1 == Scale::Doubling { x.max(1.0).log2() } else { x }
    }

    /// Returns the label of a position on the axis.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes and small indices")]
    fn label(&self, position: f64) -> String {
        match &self.x.1 {
            Scale::Linear => format!("{}", (position * 100.0).round() / 100.0),
            Scale::Doubling if (position - position.round()).abs() < 0.01 => {
                format_size(position.exp2().round() as u64)
            }
            // Positions between two doublings or two words, or outside the range, have no label.
            Scale::Doubling => String::new(),
            Scale::Words(words) if position > -0.01 && (position - position.round()).abs() < 0.01 => {
                words.get(position.round() as usize).cloned().unwrap_or_default()
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
        let area = SVGBackend::with_string(svg, IMAGE_SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (chart, legend) = area.split_horizontally(IMAGE_SIZE.0 - LEGEND_WIDTH);
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
            .x_label_formatter(&|position| self.label(*position))
            .y_label_formatter(&|figure| format!("{figure:.decimals$}"))
            .max_light_lines(0)
            .label_style(("sans-serif", label_size))
            .axis_desc_style(("sans-serif", 19))
            .draw()?;
        let step = (right - left) * SERIES_OFFSET;
        let middle = (self.series.len() as f64 - 1.0) / 2.0;
        for (index, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let offset = (index as f64 - middle) * step;
            let points = series.points.iter().map(|(x, spread)| (self.position(*x) + offset, *spread));
            let medians = points.clone().map(|(x, spread)| (x, spread.median));
            chart.draw_series(LineSeries::new(medians.clone(), colour.stroke_width(2)))?;
            chart.draw_series(medians.map(|position| Circle::new(position, 3, colour.filled())))?;
            chart.draw_series(points.map(|(x, spread)| {
                let high = spread.high.min(top);
                ErrorBar::new_vertical(x, spread.low, spread.median, high, colour.stroke_width(1), 6)
            }))?;
        }
        self.draw_legend(&legend)?;
        area.present()?;
        Ok(())
    }

    /// Draws the names of the series, one below the other.
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
            y += LEGEND_LINE_HEIGHT;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(scale: Scale, positions: &[f64]) -> Plot {
        let points = |factor: f64| {
            let spread = |y: f64| Interval { median: y, low: y * 0.9, high: y * 1.1 };
            positions.iter().enumerate().map(|(at, x)| (*x, spread(factor * (1.0 + at as f64)))).collect()
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
        assert!(failure.contains("no results to plot"), "{failure}");
    }

    #[test]
    fn labels_are_sizes_or_words_where_the_axis_shows_these() {
        let doubling = plot(Scale::Doubling, &[]);
        assert_eq!(doubling.label(doubling.position(65_536.0)), "64 KiB");
        let words = plot(Scale::Words(vec!["a".into(), "b".into()]), &[]);
        assert_eq!([1.0, 0.5, 2.0, -1.0].map(|position| words.label(position)), ["b", "", "", ""]);
    }
}
