//! Tables and text that fit a terminal of 80 columns.

/// Width of text in columns.
pub const WIDTH: usize = 80;
const GAP: usize = 2;
/// A column that is cut keeps at least this much.
const LEAST: usize = 8;

/// Rows under headings. Columns are as wide as what they hold; if that is too wide, the widest are cut.
pub struct Table {
    headings: Vec<&'static str>,
    /// Columns of numbers, which are aligned to the right.
    numbers: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table; a heading that begins with `#` is one of numbers.
    pub fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.iter().map(|h| h.trim_start_matches('#')).collect(),
            numbers: headings.iter().map(|h| h.starts_with('#')).collect(),
            rows: Vec::new(),
        }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as lines, none longer than `width`.
    pub fn render(&self, width: usize) -> String {
        let mut widths: Vec<usize> = self.headings.iter().map(|h| h.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let room = width.saturating_sub(GAP * widths.len().saturating_sub(1));
        while widths.iter().sum::<usize>() > room {
            match widths.iter_mut().max() {
                Some(widest) if *widest > LEAST => *widest -= 1,
                _ => break,
            }
        }
        let headings: Vec<String> = self.headings.iter().map(|h| (*h).to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .zip(&self.numbers)
                .map(|((cell, width), number)| pad(cell, *width, *number))
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn pad(cell: &str, width: usize, right: bool) -> String {
    let cell = cut(cell, width);
    if right {
        format!("{cell:>width$}")
    } else {
        format!("{cell:<width$}")
    }
}

/// The text, or as much of it as fits, with a mark that something is missing.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Breaks text between words into lines that fit, each indented.
pub fn wrap(text: &str, indent: &str) -> String {
    let room = WIDTH - indent.len();
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > room {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
        .iter()
        .map(|line| format!("{indent}{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_what_it_holds_and_numbers_stand_to_the_right() {
        let mut table = Table::new(&["NODE", "#SHARDS"]);
        table.row(vec!["orders-1".into(), "7".into()]);
        table.row(vec!["b".into(), "12345678".into()]);
        assert_eq!(
            table.render(WIDTH),
            "NODE        SHARDS\norders-1         7\nb         12345678\n"
        );
    }

    #[test]
    fn a_table_that_is_too_wide_is_cut_where_it_is_widest() {
        let mut table = Table::new(&["NODE", "ADDRESS", "#SHARDS"]);
        table.row(vec![
            "n".repeat(200),
            "http://127.0.0.1:8080".into(),
            "7".into(),
        ]);
        let text = table.render(WIDTH);
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert!(
            text.contains("n…") && text.contains("http://127.0.0.1:8080"),
            "{text}"
        );
    }

    #[test]
    fn long_text_is_broken_between_words() {
        let text = wrap(&"word ".repeat(40), "  ");
        assert!(
            text.lines()
                .all(|l| l.len() <= WIDTH && l.starts_with("  word"))
        );
        assert_eq!(text.split_whitespace().count(), 40);
    }
}
