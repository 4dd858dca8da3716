//! Tables of a page.

use super::page::escape;

/// A table whose first column names its rows.
pub struct Table {
    text: String,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[impl AsRef<str>]) -> Self {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| format!("<th>{}</th>", escape(column.as_ref())))
            .collect();
        Self {
            text: format!("<table><thead><tr>{}</tr></thead><tbody>", cells.concat()),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[impl AsRef<str>]) {
        self.text += "<tr>";
        for cell in cells {
            self.text += &format!("<td>{}</td>", escape(cell.as_ref()));
        }
        self.text += "</tr>";
    }

    /// The table in HTML.
    pub fn html(self) -> String {
        format!("<div class=\"wide\">{}</tbody></table></div>", self.text)
    }
}

/// A number, or a dash where there is none.
pub fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A ratio in percent.
pub fn percent(ratio: Option<f64>) -> String {
    number(ratio.map(|ratio| ratio * 100.0), 3)
}
