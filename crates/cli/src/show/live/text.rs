//! Log lines as a terminal may show them: a command's output must not move the cursor, set titles
//! or write to the clipboard of whoever watches.

use std::{iter::Peekable, str::Chars};

/// What is left of a line after its last carriage return: text and colours.
pub(super) fn visible(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = line.rsplit(|&b| b == b'\r').next().unwrap_or(line);
    let line = String::from_utf8_lossy(line);
    let mut shown = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => escape(&mut rest, &mut shown),
            c if c == '\t' || !c.is_control() => shown.push(c),
            _ => {}
        }
    }
    shown
}

/// Keeps a sequence that sets colours, and drops any other whole.
fn escape(rest: &mut Peekable<Chars<'_>>, shown: &mut String) {
    match rest.next() {
        Some('[') => {
            let mut parameters = String::new();
            while let Some(c) = rest.next_if(|c| (' '..='?').contains(c)) {
                parameters.push(c);
            }
            if rest.next_if_eq(&'m').is_some() {
                shown.push_str("\x1b[");
                shown.push_str(&parameters);
                shown.push('m');
            } else {
                rest.next_if(|c| ('@'..='~').contains(c));
            }
        }
        // A string for the terminal itself, up to BEL or ESC \.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = rest.next() {
                if c == '\x07' || c == '\x1b' && rest.next_if_eq(&'\\').is_some() {
                    break;
                }
            }
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_stay_and_everything_else_that_steers_a_terminal_goes() {
        for (line, shown) in [
            (&b"a\tb\x07\0"[..], "a\tb"),
            (b"10%\r20%\r", "20%"),
            (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
            (b"\x1b[2J\x1b[10;1Htop\x1b[?25l", "top"),
            (b"\x1b]0;title\x07a\x1b]52;c;aGk=\x1b\\b", "ab"),
            (b"a\x1bcb\x1b", "ab"),
            (b"\xff", "\u{fffd}"),
        ] {
            assert_eq!(visible(line), shown);
        }
    }
}
