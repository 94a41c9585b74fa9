//! The arguments of `bench/run`.

use std::path::{Path, PathBuf};

/// What is measured, and which files are written at the end.
#[derive(Debug, Default)]
pub struct BenchArguments {
    pub json: Option<PathBuf>,
    pub markdown: Option<PathBuf>,
    pub plot: Option<PathBuf>,
    pub many: bool,
    names: Vec<String>,
}

impl BenchArguments {
    /// Refuses what is unknown and files that could not be written: before minutes of measuring, not after.
    pub fn parse(
        mut words: impl Iterator<Item = String>,
        known: &[&'static str],
    ) -> Result<Self, String> {
        let mut parsed = Self::default();
        while let Some(word) = words.next() {
            let file = match word.as_str() {
                "--json" => &mut parsed.json,
                "--markdown" => &mut parsed.markdown,
                "--plot" => &mut parsed.plot,
                "--many" => {
                    parsed.many = true;
                    continue;
                }
                name if known.contains(&name) => {
                    parsed.names.push(word);
                    continue;
                }
                name if name.starts_with('-') => return Err(format!("unknown option `{name}`")),
                name => {
                    return Err(format!(
                        "no measurement `{name}`; there are: {}",
                        known.join(", ")
                    ));
                }
            };
            *file = Some(parse_file(&word, words.next())?);
        }
        match parsed.plot.is_some() && !parsed.wants("density") {
            true => Err("--plot draws what `density` measures (remedy: name it too)".into()),
            false => Ok(parsed),
        }
    }

    /// Whether a measurement is taken; without a name, all are.
    pub fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|given| given == name)
    }

    /// The picture as a page beside it would link to it.
    pub fn plot_link(&self) -> Option<String> {
        let plot = self.plot.as_deref()?;
        let beside = self.markdown.as_deref().and_then(Path::parent) == plot.parent();
        let name = if beside { Path::new(plot.file_name()?) } else { plot };
        Some(name.display().to_string())
    }
}

fn parse_file(option: &str, word: Option<String>) -> Result<PathBuf, String> {
    let path = PathBuf::from(word.ok_or_else(|| format!("{option} needs a file"))?);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match dir.is_dir() {
        true => Ok(path),
        false => Err(format!("{option} {}: no such directory", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<BenchArguments, String> {
        let words = words.iter().map(|word| (*word).to_owned());
        BenchArguments::parse(words, &["density", "native"])
    }

    #[test]
    fn without_names_everything_is_measured() {
        let parsed = parse(&["--many", "--json", "out.json"]).unwrap();
        assert!(parsed.many && parsed.wants("native") && parsed.wants("density"));
        assert_eq!(parsed.json.as_deref(), Some(Path::new("out.json")));
        assert!(!parse(&["native"]).unwrap().wants("density"));
    }

    #[test]
    fn what_could_not_be_written_is_refused_before_measuring() {
        assert!(
            parse(&["--json", "no-such-directory/out.json"]).unwrap_err().contains("directory")
        );
        assert!(parse(&["--json"]).unwrap_err().contains("needs a file"));
        assert!(parse(&["--plot", "out.svg", "native"]).unwrap_err().contains("density"));
        assert!(parse(&["--colour"]).unwrap_err().contains("unknown option"));
        assert!(parse(&["nativ"]).unwrap_err().contains("density, native"));
    }

    #[test]
    fn a_page_links_to_the_picture_beside_it() {
        let link = |page, plot| parse(&["--markdown", page, "--plot", plot]).unwrap().plot_link();
        assert_eq!(link("page.md", "plot.svg").as_deref(), Some("plot.svg"));
        assert_eq!(link("src/page.md", "src/plot.svg").as_deref(), Some("plot.svg"));
    }
}
