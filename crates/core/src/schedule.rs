//! Cron expressions: five fields with names and ranges.

use chrono_tz::Tz;
use croner::{
    Cron,
    parser::{CronParser, Seconds},
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("cron '{cron}' is not valid: {reason}")]
    Cron { cron: String, reason: String },
    #[error("timezone '{timezone}' is not in the IANA database")]
    Timezone { timezone: String },
}

/// Checks a schedule as an author wrote it.
pub fn check(cron: &str, timezone: Option<&str>) -> Result<(), ScheduleError> {
    parse(cron)?;
    timezone.map_or(Ok(()), |name| {
        name.parse::<Tz>()
            .map(drop)
            .map_err(|_| ScheduleError::Timezone { timezone: name.to_owned() })
    })
}

fn parse(cron: &str) -> Result<Cron, ScheduleError> {
    let broken = |reason: String| ScheduleError::Cron { cron: cron.to_owned(), reason };
    if cron
        .split('/')
        .skip(1)
        .any(|step| step.trim_start_matches('0').split([' ', ',']).next() == Some(""))
    {
        return Err(broken("a step of 0 never comes".to_owned()));
    }
    CronParser::builder()
        .seconds(Seconds::Disallowed)
        .build()
        .parse(cron)
        .map_err(|error| broken(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_fields_with_names_and_ranges() {
        for cron in ["*/15 * * * *", "0 9-17 * * mon-fri", "0 0 1 jan *", "5-55/10 * * * *"] {
            assert_eq!(check(cron, Some("America/New_York")), Ok(()), "{cron}");
        }
    }

    #[test]
    fn what_is_not_a_schedule_is_refused() {
        for cron in ["", "* * * *", "61 * * * *", "15/0 * * * *", "0 0 0 * * *", "hello"] {
            assert!(check(cron, None).is_err(), "{cron}");
        }
        let error = check("0 0 * * *", Some("Mars/Olympus")).unwrap_err();
        assert_eq!(error.to_string(), "timezone 'Mars/Olympus' is not in the IANA database");
    }
}
