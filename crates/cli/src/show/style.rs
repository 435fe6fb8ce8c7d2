//! Colours, and the signs of states. `anstream` strips colour where it is not wanted.

use anstyle::{AnsiColor, Style};

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BUSY: Style = AnsiColor::Cyan.on_default();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const BOLD: Style = Style::new().bold();

/// Sign and colour of the state of a run, job or step.
pub(crate) fn of_state(state: &str) -> (&'static str, Style) {
    match state {
        "success" => ("✓", GOOD),
        "failed" | "timed_out" | "lost" => ("✗", ERROR),
        "cancelled" | "cancelling" => ("◼", WARNING),
        "skipped" => ("−", DIM),
        "running" | "starting" | "offered" => ("▶", BUSY),
        "recovering" => ("?", WARNING),
        _ => ("·", DIM),
    }
}

/// A state with its sign, coloured.
pub(crate) fn paint(state: &str) -> String {
    let (sign, style) = of_state(state);
    let words = state.replace('_', " ");
    format!("{style}{sign} {words}{style:#}")
}
