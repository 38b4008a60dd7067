//! Case files: blocks of steps, each with the number of the acceptance row it stands for.

use std::fmt;

/// One case: steps to play on a new index.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// File and line of its header.
    pub(crate) place: String,
    /// Id and title, as written.
    pub(crate) title: String,
    /// How often to play it.
    pub(crate) repeat: usize,
    /// The words of its `options` lines.
    pub(crate) options: Vec<String>,
    /// The other lines.
    pub(crate) steps: Vec<String>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.title)
    }
}

/// Reads one file. A `++` case starts with the steps of the case above it.
pub(crate) fn cases(file: &str, text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_end();
        let place = format!("{file}:{}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("== ") {
            let title = title.to_owned();
            cases.push(Case { place, title, repeat: 1, options: Vec::new(), steps: Vec::new() });
        } else if let Some(title) = line.strip_prefix("++ ") {
            let above = cases.last().unwrap_or_else(|| panic!("{place}: nothing to go on from"));
            cases.push(Case { place, title: title.to_owned(), ..above.clone() });
        } else {
            let case = cases.last_mut().unwrap_or_else(|| panic!("{place}: a step before the first case"));
            match line.split_once(' ') {
                Some(("options", words)) => case.options.extend(words.split_whitespace().map(str::to_owned)),
                Some(("repeat", times)) => case.repeat = times.parse().expect("a number of times"),
                _ => case.steps.push(line.to_owned()),
            }
        }
    }
    cases
}
