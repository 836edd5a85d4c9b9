//! Pictures of `docs/pictures` that are drawn from measured figures and from simulated clusters,
//! without fonts or programs of a machine. They are legible on light and dark pages.

mod reservations;
mod restart;
mod victims;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::colours::COLOURS;

/// Path from the root and content of the pictures.
///
/// # Errors
/// The table of benchmarks or a simulated cluster is not as expected.
pub fn files(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let benchmarks = std::fs::read_to_string(root.join("docs/benchmarks.md"))?;
    let pictures = [
        ("restart-lanes", restart::lanes(&benchmarks)?),
        ("restart-phases", restart::phases(&benchmarks)?),
        ("victims", victims::draw()?),
        ("reservations", reservations::draw()?),
    ];
    let file = |(name, text)| (Path::new("docs/pictures").join(format!("{name}.svg")), text);
    Ok(pictures.map(file).into())
}

/// Where a shape is, in pixels.
#[derive(Clone, Copy)]
struct At {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
}

/// A picture, 960 pixels wide.
struct Svg {
    body: String,
    height: u32,
    title: String,
}

const WIDTH: u32 = 960;

impl Svg {
    fn new(title: &str, height: u32) -> Self {
        let mut svg = Self {
            body: String::new(),
            height,
            title: title.to_owned(),
        };
        svg.text((16.0, 28.0), "title", title);
        svg
    }

    /// A box of a class, which is a colour of the dashboards.
    fn rect(&mut self, at: At, class: &str) {
        let At { x, y, w, h } = at;
        self.add(&format!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" class="{class}"/>"#
        ));
    }

    /// Text that begins there. Classes `middle` and `end` move it.
    fn text(&mut self, (x, y): (f64, f64), class: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#
        ));
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x, y), (to_x, to_y)) = (from, to);
        self.add(&format!(
            r#"<line x1="{x:.1}" y1="{y:.1}" x2="{to_x:.1}" y2="{to_y:.1}" class="{class}"/>"#
        ));
    }

    /// Boxes with their meaning, in one line.
    fn legend(&mut self, y: f64, entries: &[(&str, &str)]) {
        let mut x = 16.0;
        for (class, text) in entries {
            let (y, w, h) = (y - 10.0, 14.0, 12.0);
            self.rect(At { x, y, w, h }, class);
            self.text((x + 19.0, y + 10.5), "small", text);
            x += 34.0 + 6.6 * text.len() as f64;
        }
    }

    fn add(&mut self, shape: &str) {
        self.body.push_str(shape);
        self.body.push('\n');
    }

    fn finish(self) -> String {
        let Self {
            body,
            height,
            title,
        } = self;
        let mut colours = String::new();
        for (name, hex) in COLOURS {
            // Writing to a string cannot fail.
            let _ = write!(colours, ".{name}{{fill:{hex}}}");
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n<title>{title}</title>\n\
             <style>{STYLE}{colours}{DARK}</style>\n{PATTERN}\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" class=\"ground\"/>\n{body}</svg>\n"
        )
    }
}

const STYLE: &str = "text{font:13px sans-serif;fill:#17202a}.title{font-size:17px;font-weight:600}\
    .small{font-size:12px;fill:#5a6672}.figure{font-size:15px;font-weight:600}.middle{text-anchor:middle}\
    .end{text-anchor:end}.on{fill:#fff}.dark{fill:#1d1200}.ground{fill:#fff}.axis{stroke:#a5afb9;stroke-width:1}\
    .mark{stroke:#c0302b;stroke-width:1.5;stroke-dasharray:5 3}.kept{fill:url(#kept)}\
    .chosen{fill:none;stroke:#a8529a;stroke-width:3}";

const DARK: &str = "@media(prefers-color-scheme:dark){text{fill:#e4e9ee}.small{fill:#98a4b0}\
    .ground{fill:#0d1117}.free{fill:#2a323a}.axis{stroke:#515c67}.on{fill:#fff}.dark{fill:#1d1200}}";

/// What a reservation is filled with.
const PATTERN: &str = "<defs><pattern id=\"kept\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect width=\"7\" height=\"7\" fill=\"#e3bd33\" opacity=\"0.25\"/>\
    <rect width=\"3\" height=\"7\" fill=\"#e3bd33\"/></pattern></defs>";
