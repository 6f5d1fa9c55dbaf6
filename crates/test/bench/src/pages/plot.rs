//! The common parts of all plots, as SVG: area, axes, series and legend. The viewer chooses the
//! fonts.

use crate::nbd::disks::SIZES;
use crate::serving::job::RequestSize;
use lacuna_contracts::{Error, Kind, Result};
use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use std::path::Path;

/// The colour of the first series of a plot.
pub const BLUE: RGBColor = RGBColor(27, 98, 165);
/// The colour of another series.
pub const ORANGE: RGBColor = RGBColor(214, 120, 30);
/// The colour of another series.
pub const GREEN: RGBColor = RGBColor(50, 140, 70);
/// The colour of another series.
pub const PURPLE: RGBColor = RGBColor(128, 60, 140);
/// The colour of a baseline.
pub const GREY: RGBColor = RGBColor(120, 120, 120);

const FONT: (&str, u32) = ("sans-serif", 16);

/// The result of drawing; [`to_file`] converts the error.
pub type DrawResult<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
/// The drawing area.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Context<'a, X, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>;

/// Draws a plot of this size into a file.
pub fn to_file(path: &Path, size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> DrawResult) -> Result<()> {
    let all = || -> DrawResult {
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        Ok(area.present()?)
    };
    all().map_err(|e| Error::new(Kind::Other, "cannot draw a plot").found(e.to_string()))
}

/// Formats a value of an axis.
pub type Label<'l> = &'l dyn Fn(&f64) -> String;

/// The axes of a chart.
pub struct Axes<'l, X, Y> {
    /// The range of x.
    pub x: X,
    /// The range of y.
    pub y: Y,
    /// The maximum number of labels of x, and their format; `None` for no labels.
    pub x_label: Option<(usize, Label<'l>)>,
    /// The format of the labels of y.
    pub y_label: Label<'l>,
    /// Number of light lines between two values of y.
    pub light_lines: usize,
}

/// A chart in progress.
pub struct Chart<'a, X: Ranged, Y: Ranged>(Context<'a, X, Y>);

/// Begins a chart.
pub fn chart<'a, X, Y>(
    area: &Area<'a>,
    caption: impl AsRef<str>,
    axes: Axes<'_, X, Y>,
) -> DrawResult<Chart<'a, X::CoordDescType, Y::CoordDescType>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut builder = ChartBuilder::on(area);
    builder.caption(caption, ("sans-serif", 24)).margin(12).x_label_area_size(35).y_label_area_size(60);
    let mut chart = builder.build_cartesian_2d(axes.x, axes.y)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_label_style(FONT).y_label_style(FONT);
    mesh.y_max_light_lines(axes.light_lines).y_label_formatter(axes.y_label);
    match axes.x_label {
        Some((most, label)) => mesh.x_labels(most).x_label_formatter(label),
        None => mesh.x_labels(0),
    };
    mesh.draw()?;
    Ok(Chart(chart))
}

impl<'a, X, Y> Chart<'a, X, Y>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64> + 'static,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64> + 'static,
{
    /// Draws elements that the legend does not name.
    pub fn add<E>(&mut self, elements: impl IntoIterator<Item = E>) -> DrawResult
    where
        for<'b> &'b E: PointCollection<'b, (f64, f64)>,
        E: Drawable<SVGBackend<'a>>,
    {
        Ok(self.0.draw_series(elements).map(drop)?)
    }

    /// Draws areas with an entry in the legend.
    pub fn areas<E>(
        &mut self,
        elements: impl IntoIterator<Item = E>,
        style: ShapeStyle,
        name: impl Into<String>,
    ) -> DrawResult
    where
        for<'b> &'b E: PointCollection<'b, (f64, f64)>,
        E: Drawable<SVGBackend<'a>>,
    {
        let drawn = self.0.draw_series(elements)?.label(name);
        drawn.legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
        Ok(())
    }

    /// Draws a line with points of size `point_size` and an entry in the legend.
    pub fn line(
        &mut self,
        points: impl IntoIterator<Item = (f64, f64)>,
        style: ShapeStyle,
        point_size: u32,
        name: impl Into<String>,
    ) -> DrawResult {
        let line = LineSeries::new(points, style).point_size(point_size);
        let drawn = self.0.draw_series(line)?.label(name);
        drawn.legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
        Ok(())
    }

    /// Draws points of size `size` with an entry in the legend.
    pub fn points(
        &mut self,
        points: impl IntoIterator<Item = (f64, f64)>,
        style: ShapeStyle,
        size: u32,
        name: impl Into<String>,
    ) -> DrawResult {
        let drawn = self.0.draw_series(points.into_iter().map(|point| Circle::new(point, size, style)))?;
        drawn.label(name).legend(move |(x, y)| Circle::new((x + 7, y), size, style));
        Ok(())
    }

    /// Writes the request sizes, one per unit of x, below the value `bottom` of y.
    pub(crate) fn sizes_below(&mut self, bottom: f64) -> DrawResult {
        self.add(SIZES.iter().enumerate().map(|(i, size)| {
            EmptyElement::at((i as f64, bottom)) + Text::new(RequestSize(*size).to_string(), (-18, 8), FONT)
        }))
    }

    /// Draws the legend and ends the chart.
    pub fn legend(mut self, position: SeriesLabelPosition) -> DrawResult {
        let mut legend = self.0.configure_series_labels();
        legend.position(position).background_style(WHITE.mix(0.8)).border_style(BLACK).label_font(FONT);
        Ok(legend.draw()?)
    }
}

/// A point for each request size with a value.
pub(crate) fn by_size(value: impl Fn(u32) -> Option<f64>) -> Vec<(f64, f64)> {
    SIZES.iter().enumerate().filter_map(|(i, size)| Some((i as f64, value(*size)?))).collect()
}
