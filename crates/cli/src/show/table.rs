//! Plain tables: columns as wide as their widest cell.

/// Prints rows under a header.
pub(crate) fn print(header: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| visible(cell));
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| {
            format!("{cell}{}", " ".repeat(width.saturating_sub(visible(cell))))
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let bold = super::style::BOLD;
    let header: Vec<_> = header.iter().map(|&name| name.to_owned()).collect();
    anstream::println!("{bold}{}{bold:#}", line(&header));
    for row in rows {
        anstream::println!("{}", line(row));
    }
}

/// Characters that take room: not those of colour codes.
fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text).map(|part| part.chars().count()).sum()
}
