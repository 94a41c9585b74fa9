//! A plot of lines as SVG: a logarithmic axis of numbers below, milliseconds from zero at the left. Its colours
//! follow the reader's scheme, light or dark, on a background of its own.

use std::fmt::Write as _;

const WIDTH_PX: f64 = 760.0;
const HEIGHT_PX: f64 = 440.0;
const LEFT_PX: f64 = 64.0;
const RIGHT_PX: f64 = 28.0;
const BOTTOM_PX: f64 = 56.0;
const LEGEND_TOP_PX: f64 = 56.0;
const LEGEND_LINE_PX: f64 = 20.0;
/// Lines of the axis at the left, at most.
const MAX_Y_TICKS: f64 = 7.0;

const STYLE: &str = "\
text { font: 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.background { fill: #ffffff }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.axis { stroke: #59636e; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
.dashed { stroke-dasharray: 5 4; stroke-width: 1.5 }
.c0 { stroke: #0a5cb8 } .c1 { stroke: #b84a00 } .c2 { stroke: #0f7b52 }
.m0 { fill: #0a5cb8 } .m1 { fill: #b84a00 } .m2 { fill: #0f7b52 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.background { fill: #0d1117 }
.grid { stroke: #30363d }
.axis { stroke: #9198a1 }
.c0 { stroke: #6cb6ff } .c1 { stroke: #ffa657 } .c2 { stroke: #57d9a3 }
.m0 { fill: #6cb6ff } .m1 { fill: #ffa657 } .m2 { fill: #57d9a3 }
}
";

/// One line and its name. Points whose numbers are not known are left out.
#[derive(Debug, Clone)]
pub struct PlotCurve {
    pub name: String,
    /// One of three; curves that belong together share one.
    pub colour: usize,
    pub dashed: bool,
    pub points: Vec<(f64, f64)>,
}

impl PlotCurve {
    fn drawn_points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let known = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && *x > 0.0 && *y >= 0.0;
        self.points.iter().copied().filter(known)
    }
}

/// What is drawn.
#[derive(Debug, Clone)]
pub struct LinePlot {
    pub title: String,
    /// The same for who does not see it.
    pub alt: String,
    pub x_label: String,
    pub y_label: String,
    pub curves: Vec<PlotCurve>,
}

/// Where numbers lie in the picture.
struct PlotScale {
    /// Powers of ten, the first and the last.
    decades: (i32, i32),
    y_step: f64,
    y_ticks: usize,
    top_px: f64,
}

impl PlotScale {
    fn of(plot: &LinePlot) -> Self {
        let points = || plot.curves.iter().flat_map(PlotCurve::drawn_points);
        let least = points().map(|(x, _)| x).fold(f64::INFINITY, f64::min);
        let most = points().map(|(x, _)| x).fold(1.0, f64::max);
        let first = if least.is_finite() { least.log10().floor() as i32 } else { 0 };
        let last = (most.log10().ceil() as i32).max(first + 1);
        let highest = points().map(|(_, y)| y).fold(0.0, f64::max);
        let y_step = tick_step(highest);
        let y_ticks = (highest / y_step).ceil().max(1.0) as usize;
        let top_px = LEGEND_TOP_PX + LEGEND_LINE_PX * plot.curves.len() as f64;
        Self { decades: (first, last), y_step, y_ticks, top_px }
    }

    fn x(&self, number: f64) -> f64 {
        let (first, last) = self.decades;
        let share = (number.log10() - f64::from(first)) / f64::from(last - first);
        LEFT_PX + share * (WIDTH_PX - LEFT_PX - RIGHT_PX)
    }

    fn y(&self, millis: f64) -> f64 {
        let share = millis / (self.y_step * self.y_ticks as f64);
        self.bottom() - share * (self.bottom() - self.top_px)
    }

    fn bottom(&self) -> f64 {
        HEIGHT_PX - BOTTOM_PX
    }
}

/// One, two or five times a power of ten, such that there are few lines.
fn tick_step(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let decade = 10_f64.powf((highest / MAX_Y_TICKS).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * decade);
    steps.into_iter().find(|step| highest / step <= MAX_Y_TICKS).unwrap_or(10.0 * decade)
}

/// The whole picture.
pub fn write_svg(plot: &LinePlot) -> String {
    let scale = PlotScale::of(plot);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH_PX}\" height=\"{HEIGHT_PX}\" \
         viewBox=\"0 0 {WIDTH_PX} {HEIGHT_PX}\" role=\"img\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n\
         <rect class=\"background\" width=\"{WIDTH_PX}\" height=\"{HEIGHT_PX}\" rx=\"8\"/>\n",
        escape_xml(&plot.alt)
    );
    let _ =
        writeln!(svg, "<text class=\"title\" x=\"20\" y=\"30\">{}</text>", escape_xml(&plot.title));
    draw_y_axis(&mut svg, plot, &scale);
    draw_x_axis(&mut svg, plot, &scale);
    for (index, curve) in plot.curves.iter().enumerate() {
        draw_curve(&mut svg, curve, &scale);
        draw_legend_line(&mut svg, curve, LEGEND_TOP_PX + LEGEND_LINE_PX * index as f64);
    }
    svg + "</svg>\n"
}

fn draw_y_axis(svg: &mut String, plot: &LinePlot, scale: &PlotScale) {
    let right = WIDTH_PX - RIGHT_PX;
    let decimals = (-scale.y_step.log10().floor()).max(0.0) as usize;
    for tick in 0..=scale.y_ticks {
        let value = scale.y_step * tick as f64;
        let y = scale.y(value);
        let class = if tick == 0 { "axis" } else { "grid" };
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{LEFT_PX}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value:.decimals$}</text>",
            LEFT_PX - 8.0,
            y + 4.5
        );
    }
    let middle = (scale.top_px + scale.bottom()) / 2.0;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(18 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escape_xml(&plot.y_label)
    );
}

fn draw_x_axis(svg: &mut String, plot: &LinePlot, scale: &PlotScale) {
    let (first, last) = scale.decades;
    let (top, bottom) = (scale.top_px, scale.bottom());
    for decade in first..=last {
        let x = scale.x(10_f64.powi(decade));
        let class = if decade == first { "axis" } else { "grid" };
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 19.0,
            power_of_ten(decade)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        (LEFT_PX + WIDTH_PX - RIGHT_PX) / 2.0,
        HEIGHT_PX - 14.0,
        escape_xml(&plot.x_label)
    );
}

/// With a comma between thousands.
fn power_of_ten(decade: i32) -> String {
    let Ok(zeros) = usize::try_from(decade) else { return format!("{}", 10_f64.powi(decade)) };
    let lead = ["1", "10", "100"][zeros % 3];
    format!("{lead}{}", ",000".repeat(zeros / 3))
}

fn draw_curve(svg: &mut String, curve: &PlotCurve, scale: &PlotScale) {
    let points: Vec<(f64, f64)> =
        curve.drawn_points().map(|(x, y)| (scale.x(x), scale.y(y))).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline class=\"{}\" points=\"{}\"/>", classes(curve), path.join(" "));
    for (x, y) in points {
        draw_marker(svg, curve, x, y);
    }
}

fn draw_legend_line(svg: &mut String, curve: &PlotCurve, y: f64) {
    let _ = writeln!(
        svg,
        "<polyline class=\"{}\" points=\"{LEFT_PX},{y} {},{y}\"/>\n<text x=\"{}\" y=\"{}\">{}</text>",
        classes(curve),
        LEFT_PX + 36.0,
        LEFT_PX + 46.0,
        y + 4.5,
        escape_xml(&curve.name)
    );
    draw_marker(svg, curve, LEFT_PX + 18.0, y);
}

/// A shape for each colour, so that they differ in print too.
fn draw_marker(svg: &mut String, curve: &PlotCurve, x: f64, y: f64) {
    let colour = curve.colour % 3;
    let _ = match colour {
        0 => writeln!(svg, "<circle class=\"m0\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
        1 => writeln!(
            svg,
            "<rect class=\"m1\" x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\"/>",
            x - 4.0,
            y - 4.0
        ),
        _ => writeln!(svg, "<path class=\"m2\" d=\"M{x:.1} {:.1} l5 9 h-10 z\"/>", y - 5.0),
    };
}

fn classes(curve: &PlotCurve) -> String {
    format!("line c{}{}", curve.colour % 3, if curve.dashed { " dashed" } else { "" })
}

fn escape_xml(text: &str) -> String {
    let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot_of(name: &str, points: &[(f64, f64)]) -> LinePlot {
        let curve =
            PlotCurve { name: name.into(), colour: 0, dashed: false, points: points.to_vec() };
        let [title, alt, x_label, y_label] = ["t", "a", "x", "y"].map(Into::into);
        LinePlot { title, alt, x_label, y_label, curves: vec![curve] }
    }

    #[test]
    fn names_are_text_and_not_markup() {
        let svg = write_svg(&plot_of("<script>&\"", &[(10.0, 1.0)]));
        assert!(svg.contains("&lt;script&gt;&amp;&quot;</text>"), "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
    }

    #[test]
    fn points_that_are_not_known_are_not_drawn() {
        let points =
            [(10.0, 1.0), (100.0, f64::NAN), (0.0, 1.0), (f64::INFINITY, 2.0), (1000.0, 3.0)];
        let svg = write_svg(&plot_of("one", &points));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        // Two points, and the one of the legend.
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
    }

    #[test]
    fn a_plot_of_nothing_is_still_a_picture() {
        let svg = write_svg(&plot_of("one", &[]));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!([0.0, 0.6, 4.7, 9.0, 71.0].map(tick_step), [1.0, 0.1, 1.0, 2.0, 20.0]);
        assert_eq!([0, 1, 3, 4].map(power_of_ten), ["1", "10", "1,000", "10,000"]);
    }
}
