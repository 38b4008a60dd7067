//! The plot: three stripes over one time axis.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use crate::measure::{Run, Second};

/// A stripe: its title, and the lines in it.
type Stripe<'a> = (&'a str, Vec<(&'a str, RGBColor, fn(&Second) -> f64)>);

const BLUE: RGBColor = RGBColor(31, 119, 180);
const ORANGE: RGBColor = RGBColor(214, 96, 20);

/// Draws a run.
pub(crate) fn write(path: &Path, run: &Run) -> Result<()> {
    draw(path, run).map_err(|error| anyhow!("{error}")).with_context(|| format!("drawing {}", path.display()))
}

fn draw(path: &Path, run: &Run) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let stripes: [Stripe<'_>; 3] = [
        ("a second", vec![("lookups", BLUE, |s| s.lookups as f64), ("blocks stored", ORANGE, |s| s.blocks as f64)]),
        ("latency of a lookup, µs", vec![("p50", BLUE, |s| s.p50), ("p99", ORANGE, |s| s.p99)]),
        ("resident memory of the server, MB", vec![("", BLUE, |s| s.rss as f64 / 1e6)]),
    ];
    let area = SVGBackend::new(path, (900, 720)).into_drawing_area();
    area.fill(&WHITE)?;
    let long = run.seconds.len() as f64;
    for ((title, lines), area) in stripes.into_iter().zip(area.split_evenly((3, 1))) {
        let top = lines.iter().flat_map(|(_, _, of)| run.seconds.iter().map(of)).fold(1.0, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .caption(title, ("sans-serif", 16))
            .x_label_area_size(24)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..long, 0.0..top)?;
        chart.configure_mesh().disable_x_mesh().x_desc("seconds").light_line_style(TRANSPARENT).draw()?;
        for (name, colour, of) in lines {
            let points = run.seconds.iter().enumerate().map(|(i, second)| (i as f64 + 0.5, of(second)));
            let drawn = chart.draw_series(LineSeries::new(points, &colour))?;
            if !name.is_empty() {
                drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
            }
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw()?;
    }
    area.present()?;
    Ok(())
}
