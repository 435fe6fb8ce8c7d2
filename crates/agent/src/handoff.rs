//! The hand-off files `$SHUNT_ENV` and `$SHUNT_OUTPUT`: `K=V` lines and `K<<EOF` blocks.

/// Longest `NAME=value` with its final NUL that Linux passes to a program.
pub const VARIABLE_BYTES_MAX: usize = 131_072;

/// What is wrong with a hand-off file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoffError {
    #[error("line {line} is neither NAME=value nor NAME<<DELIMITER: '{text}'")]
    Line { line: usize, text: String },
    #[error(
        "the block of '{name}' that starts in line {line} is not closed: no line is exactly '{delimiter}'"
    )]
    Unterminated { name: String, line: usize, delimiter: String },
    #[error(
        "the value of '{name}' has {bytes} bytes: name and value of a variable together must stay below {VARIABLE_BYTES_MAX} bytes"
    )]
    TooLong { name: String, bytes: usize },
    #[error("the value of '{name}' contains a NUL byte, which a variable cannot hold")]
    Nul { name: String },
    #[error("the file is not UTF-8 (at byte {at})")]
    NotUtf8 { at: usize },
}

/// Longest piece of a bad line that an error repeats.
const EXCERPT_CHARS_MAX: usize = 80;

/// The pairs of a hand-off file, in order; later ones win. A byte order mark, CRLF line ends and a
/// missing final newline are fine; empty lines are skipped.
///
/// In a line, whichever of `=` and `<<` comes first decides what it is.
pub fn parse(bytes: &[u8]) -> Result<Vec<(String, String)>, HandoffError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| HandoffError::NotUtf8 { at: error.valid_up_to() })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut pairs = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let bad = || HandoffError::Line {
            line: number,
            text: line.chars().take(EXCERPT_CHARS_MAX).collect(),
        };
        let equals = line.find('=').unwrap_or(line.len());
        let pair = if let Some(at) = line.find("<<").filter(|&at| at < equals) {
            let (name, delimiter) = (line[..at].trim(), line[at + 2..].trim());
            (name, block(&mut lines, name, delimiter, number)?)
        } else {
            let (name, value) = line.split_once('=').ok_or_else(bad)?;
            (name.trim(), value.to_owned())
        };
        if pair.0.is_empty() || pair.0.contains(char::is_whitespace) {
            return Err(bad());
        }
        pairs.push((pair.0.to_owned(), pair.1));
    }
    Ok(pairs)
}

/// The lines up to one that is exactly the delimiter.
fn block<'a>(
    lines: &mut impl Iterator<Item = (&'a str, usize)>,
    name: &str,
    delimiter: &str,
    line: usize,
) -> Result<String, HandoffError> {
    let mut value = Vec::new();
    for (text, _) in lines {
        if text == delimiter {
            return Ok(value.join("\n"));
        }
        value.push(text);
    }
    Err(HandoffError::Unterminated { name: name.into(), line, delimiter: delimiter.into() })
}

/// Whether a program can be given this variable.
pub fn check_variable(name: &str, value: &str) -> Result<(), HandoffError> {
    // One byte for `=` and one for the final NUL.
    if name.len() + value.len() + 2 > VARIABLE_BYTES_MAX {
        return Err(HandoffError::TooLong { name: name.into(), bytes: value.len() });
    }
    if value.contains('\0') || name.contains('\0') {
        return Err(HandoffError::Nul { name: name.replace('\0', "\\0") });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(input: &str, expected: &[(&str, &str)]) {
        let pairs = parse(input.as_bytes()).unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, expected, "{input:?}");
    }

    #[test]
    fn lines_split_at_the_first_equals_sign() {
        check("K==abc", &[("K", "=abc")]);
        check("K=jkl=\n", &[("K", "jkl=")]);
        check("K=a<<b\n", &[("K", "a<<b")]);
        check("K=\n\nL=2\r\n", &[("K", ""), ("L", "2")]);
        check("K=\" -e EVIL=1 #", &[("K", "\" -e EVIL=1 #")]);
    }

    #[test]
    fn blocks_end_at_a_line_that_is_exactly_the_delimiter() {
        check("A<<EOF\nx\nEOF", &[("A", "x")]);
        check("K<<=EOF\nhi\n=EOF", &[("K", "hi")]);
        check("A<<EOF\nx\n EOF\nEOF\nB=1", &[("A", "x\n EOF"), ("B", "1")]);
        check("A<<EOF\nEOF\n", &[("A", "")]);
        check("A<<E\na=b\nc<<d\n\n\nE\n", &[("A", "a=b\nc<<d\n\n")]);
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        check("\u{feff}A=1", &[("A", "1")]);
        check("\u{feff}", &[]);
    }

    #[test]
    fn an_unterminated_block_names_its_delimiter() {
        let error = parse(b"B=1\nA<<STOP\nx\n STOP\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the block of 'A' that starts in line 2 is not closed: no line is exactly 'STOP'"
        );
    }

    #[test]
    fn garbage_is_an_error_that_shows_the_line() {
        for input in ["hello", "=x", "a b=c", "<<E\nE"] {
            assert!(matches!(parse(input.as_bytes()), Err(HandoffError::Line { line: 1, .. })));
        }
        assert_eq!(parse(b"A=\xff"), Err(HandoffError::NotUtf8 { at: 2 }));
    }

    #[test]
    fn an_error_shows_no_more_than_the_start_of_a_bad_line() {
        let text = |chars: usize| match parse("é".repeat(chars).as_bytes()) {
            Err(HandoffError::Line { text, .. }) => text.chars().count(),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(EXCERPT_CHARS_MAX), EXCERPT_CHARS_MAX);
        assert_eq!(text(EXCERPT_CHARS_MAX + 1), EXCERPT_CHARS_MAX);
    }

    #[test]
    fn a_value_that_no_program_can_be_given_names_variable_and_limit() {
        let error = check_variable("BIG", &"x".repeat(131_072)).unwrap_err().to_string();
        assert!(error.contains("'BIG'") && error.contains("131072"), "{error}");
        let fits = VARIABLE_BYTES_MAX - "BIG".len() - 2;
        assert!(check_variable("BIG", &"x".repeat(fits)).is_ok());
        assert!(check_variable("BIG", &"x".repeat(fits + 1)).is_err());
        assert!(check_variable("A", "\0").is_err());
    }

    proptest! {
        #[test]
        fn what_a_shell_writes_as_a_block_is_read_back(
            name in "[A-Z_]{1,8}", value in "[ -~\n=<]{0,60}",
        ) {
            prop_assume!(!value.ends_with('\n') && !value.lines().any(|line| line == "__END__"));
            let file = format!("{name}<<__END__\n{value}\n__END__\n");
            let expected = if value.is_empty() { "" } else { value.as_str() };
            let pairs = parse(file.as_bytes()).unwrap();
            prop_assert_eq!(&pairs[0].1, expected);
        }

        #[test]
        fn no_input_panics(bytes: Vec<u8>) {
            parse(&bytes).ok();
        }
    }
}
