//! Which processes came out of which, read from `/proc`.

use std::{collections::BTreeMap, fs};

/// One process, as `/proc/PID/stat` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub parent: i32,
    pub zombie: bool,
    /// Clock ticks since boot: with the pid and the boot id, a name that is never used again.
    pub started: u64,
}

pub(crate) type Table = BTreeMap<i32, Process>;

/// Every process that this one can see.
pub(crate) fn table() -> Table {
    let Ok(entries) = fs::read_dir("/proc") else { return Table::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, process(pid)?))
        })
        .collect()
}

/// One process, if it exists.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(stat: &str) -> Option<Process> {
    // The program's name stands in parentheses and may itself contain some.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Process { parent, zombie, started })
}

/// Whether `pid` is `ancestor` or came out of it.
pub(crate) fn is_within(table: &Table, mut pid: i32, ancestor: i32) -> bool {
    // A table read while processes come and go may hold a loop: no chain is longer than it.
    for _ in 0..=table.len() {
        if pid == ancestor {
            return true;
        }
        match table.get(&pid) {
            Some(process) => pid = process.parent,
            None => return false,
        }
    }
    false
}

/// Whether a process was started with this variable.
pub(crate) fn has_variable(pid: i32, variable: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|bytes| bytes.split(|&b| b == 0).any(|entry| entry == variable.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_no_field() {
        let stat = "42 (a) S 1) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 9876 1 1";
        assert_eq!(parse_stat(stat), Some(Process { parent: 7, zombie: false, started: 9876 }));
        assert_eq!(parse_stat("42 (cut"), None);
    }

    #[test]
    fn ancestry_ends_even_in_a_loop() {
        let process = |parent| Process { parent, zombie: false, started: 0 };
        let table =
            Table::from([(2, process(1)), (3, process(2)), (8, process(9)), (9, process(8))]);
        assert!(is_within(&table, 3, 1) && is_within(&table, 3, 3));
        assert!(!is_within(&table, 2, 3) && !is_within(&table, 8, 1));
    }
}
