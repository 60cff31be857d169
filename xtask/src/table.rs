//! Tables on a terminal.

/// Prints `rows` under `header`, each column as wide as its widest cell; all rows have as many cells as the header.
pub(crate) fn print(header: &[&str], rows: &[Vec<String>]) {
    let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(rows).collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    println!();
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
