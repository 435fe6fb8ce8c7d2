//! Durations: `"90s"`, `"10m"`, `"1h30m"`, or milliseconds.

use crate::raw::Raw;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Longest timeout, delay or grace.
pub(super) const DURATION_MS_MAX: u64 = 24 * DAY_MS;
/// A bare number below this was hardly meant as milliseconds.
const BARE_MS_MIN: f64 = 1000.0;

/// A timeout: more than nothing, and no bare number that was meant as seconds.
pub(super) fn timeout(raw: &Raw) -> Result<u64, String> {
    let millis = no_bare_seconds(raw)?;
    if millis == 0 {
        Err("a timeout is more than 0; leave it out for none".to_owned())
    } else {
        Ok(millis)
    }
}

/// Time to end in good order: may be nothing, and no bare number that was meant as seconds.
pub(super) fn grace(raw: &Raw) -> Result<u64, String> {
    no_bare_seconds(raw)
}

/// A delay: may be nothing.
pub(super) fn delay(raw: &Raw) -> Result<u64, String> {
    millis(raw)
}

fn no_bare_seconds(raw: &Raw) -> Result<u64, String> {
    match raw {
        Raw::Number(number) if (0.0..BARE_MS_MIN).contains(number) => {
            Err(format!("{number} is {number} ms; write \"{number}s\""))
        }
        _ => millis(raw),
    }
}

fn millis(raw: &Raw) -> Result<u64, String> {
    let millis = match raw {
        Raw::Text(text) => parse(text).ok_or_else(|| {
            format!("\"{text}\" is not a duration; write \"90s\", \"10m\" or \"1h30m\"")
        })?,
        Raw::Number(number) if *number < 0.0 => return Err(format!("{number} is negative")),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative; saturates"
        )]
        Raw::Number(number) if number.is_finite() => number.round() as u64,
        other => {
            return Err(format!("a duration is a string such as \"90s\", got {}", other.kind()));
        }
    };
    if millis > DURATION_MS_MAX { Err("longer than 24 days".to_owned()) } else { Ok(millis) }
}

/// Pairs of a whole number and a unit.
fn parse(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let after = rest[digits..].trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let unit = match &after[..end] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            "d" => DAY_MS,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(unit)?)?;
        rest = after[end..].trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Raw {
        Raw::Text(text.to_owned())
    }

    #[test]
    fn durations_are_strings_or_milliseconds() {
        assert_eq!(timeout(&text("90s")), Ok(90_000));
        assert_eq!(timeout(&text("1h30m")), Ok(5_400_000));
        assert_eq!(timeout(&text("250ms")), Ok(250));
        assert_eq!(timeout(&Raw::Number(1000.0)), Ok(1000));
        assert_eq!(timeout(&text("24d")), Ok(DURATION_MS_MAX));
        assert_eq!(delay(&Raw::Number(5.0)), Ok(5));
        assert_eq!(grace(&text("0s")), Ok(0));
    }

    #[test]
    fn what_was_hardly_meant_is_refused() {
        assert_eq!(timeout(&Raw::Number(30.0)).unwrap_err(), "30 is 30 ms; write \"30s\"");
        assert!(timeout(&Raw::Number(999.0)).is_err());
        assert!(timeout(&Raw::Number(0.0)).is_err());
        assert!(timeout(&Raw::Number(-5.0)).unwrap_err().contains("negative"));
        assert!(grace(&Raw::Number(30.0)).is_err());
        assert!(timeout(&text("0s")).is_err());
        assert!(timeout(&text("25d")).unwrap_err().contains("24 days"));
        assert!(timeout(&text("24d1ms")).is_err());
        for bad in ["5 parsecs", "", "s", "5", "1.5h", "-1s", "99999999999999999999s"] {
            assert!(timeout(&text(bad)).unwrap_err().contains("not a duration"), "{bad}");
        }
        assert!(timeout(&Raw::Number(f64::NAN)).is_err());
        assert!(timeout(&Raw::Bool(true)).is_err());
    }
}
