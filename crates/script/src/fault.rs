//! What is wrong with a workflow file, and where.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most faults that one evaluation reports; the rest would only repeat the cause.
pub const FAULTS_MAX: usize = 50;
/// Longest source line that an excerpt shows, in characters.
const EXCERPT_CHARS_MAX: usize = 160;

/// One mistake of an author, with its place in the file as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What is wrong and what to do about it.
    pub message: String,
    /// Path in the repository, when it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
}

/// A position in a text, and the line it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// The source line.
    pub excerpt: String,
}

impl Fault {
    /// A fault that belongs to no file.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), file: None, place: None }
    }

    /// A fault somewhere in `file`.
    pub fn in_file(file: &str, message: impl Into<String>) -> Self {
        Self { message: message.into(), file: Some(file.to_owned()), place: None }
    }

    /// A fault at a position (both from 1) of `file`, whose text is `source`.
    pub fn at(
        file: &str,
        source: &str,
        (line, column): (u32, u32),
        message: impl Into<String>,
    ) -> Self {
        let place = source.lines().nth(line.saturating_sub(1) as usize).map(|text| Place {
            line,
            column,
            excerpt: text.chars().take(EXCERPT_CHARS_MAX).collect(),
        });
        Self { message: message.into(), file: Some(file.to_owned()), place }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, &self.place) {
            (None, _) => f.write_str(&self.message),
            (Some(file), None) => write!(f, "{file}: {}", self.message),
            (Some(file), Some(Place { line, column, excerpt })) => {
                writeln!(f, "{file}:{line}:{column}: {}", self.message)?;
                let number = line.to_string();
                writeln!(f, "  {number} | {excerpt}")?;
                let before = excerpt.chars().take(column.saturating_sub(1) as usize);
                let pad: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
                write!(f, "  {:width$} | {pad}^", "", width = number.len())
            }
        }
    }
}

/// The nearest of `known` to a word that is not among them, if one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let far = word.chars().count().div_ceil(3).max(1) + 1;
    known
        .into_iter()
        .map(|candidate| (distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance < far)
        .min()
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?` or nothing.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"))
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_shows_its_line_with_a_caret() {
        let fault = Fault::at("a.ts", "one\n\ttwo three\n", (2, 6), "not a number");
        insta::assert_snapshot!(fault, @r"
        a.ts:2:6: not a number
          2 | 	two three
            | 	    ^
        ");
    }

    #[test]
    fn an_excerpt_shows_excerpt_chars_max_characters_of_a_line() {
        for (chars, shown) in
            [(EXCERPT_CHARS_MAX, EXCERPT_CHARS_MAX), (EXCERPT_CHARS_MAX + 1, EXCERPT_CHARS_MAX)]
        {
            let fault = Fault::at("a.ts", &"ü".repeat(chars), (1, 1), "x");
            assert_eq!(fault.place.unwrap().excerpt.chars().count(), shown);
        }
    }

    #[test]
    fn the_nearest_word_is_near() {
        assert_eq!(nearest("neds", ["name", "needs", "matrix"]), Some("needs"));
        assert_eq!(nearest("timeOut", ["timeout"]), Some("timeout"));
        assert_eq!(nearest("flavour", ["name", "needs", "matrix"]), None);
        assert_eq!(nearest("on", ["no"]), Some("no"));
    }
}
