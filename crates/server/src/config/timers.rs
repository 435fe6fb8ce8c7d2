//! The section `[timers]`: how long something may take before it counts as lost.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shuntyard_core::timers::Timers;
use utoipa::ToSchema;

/// The timers as the file has them. Times are `"500ms"`, `"10s"` or `"2m"`; a set that could end a
/// healthy attempt, or let one outlive its release, is refused.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Section {
    /// Between two renewals of a running attempt.
    #[schema(value_type = String)]
    renew: Text,
    /// Without a renewal for this long a job shows `recovering`; more than three renewals.
    #[schema(value_type = String)]
    overdue: Text,
    /// Only this long after its last renewal is an attempt lost, and its job given to another agent.
    #[schema(value_type = String)]
    release: Text,
    /// The agent asks an attempt's commands to stop this long before the release.
    #[schema(value_type = String)]
    fence_term: Text,
    /// The agent kills them this long before the release; shorter than `fence_term`.
    #[schema(value_type = String)]
    fence_kill: Text,
    /// An offer without an answer is withdrawn.
    #[schema(value_type = String)]
    offer: Text,
    /// An agent that took an offer begins within this; longer than `offer`.
    #[schema(value_type = String)]
    reservation: Text,
}

/// A duration that is written as text.
#[derive(Clone, Copy)]
struct Text(Duration);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = match self.0.as_millis() {
            millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
            millis => format!("{millis}ms"),
        };
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let unknown = || {
            serde::de::Error::custom(format!(
                "'{text}' is not a duration: write '500ms', '10s' or '2m'"
            ))
        };
        parse(&text).map(Self).ok_or_else(unknown)
    }
}

fn parse(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u32 = text[..digits].parse().ok()?;
    let unit = match &text[digits..] {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_mins(1),
        _ => return None,
    };
    Some(unit * number)
}

impl Default for Section {
    fn default() -> Self {
        Timers::default().into()
    }
}

impl From<Timers> for Section {
    fn from(timers: Timers) -> Self {
        let Timers { renew, overdue, release, fence_term, fence_kill, offer, reservation } = timers;
        Self {
            renew: Text(renew),
            overdue: Text(overdue),
            release: Text(release),
            fence_term: Text(fence_term),
            fence_kill: Text(fence_kill),
            offer: Text(offer),
            reservation: Text(reservation),
        }
    }
}

impl From<Section> for Timers {
    fn from(section: Section) -> Self {
        Self {
            renew: section.renew.0,
            overdue: section.overdue.0,
            release: section.release.0,
            fence_term: section.fence_term.0,
            fence_kill: section.fence_kill.0,
            offer: section.offer.0,
            reservation: section.reservation.0,
        }
    }
}

pub(super) fn serialize<S: Serializer>(timers: &Timers, serializer: S) -> Result<S::Ok, S::Error> {
    Section::from(*timers).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timers, D::Error> {
    Section::deserialize(deserializer).map(Timers::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse("10s"), Some(Duration::from_secs(10)));
        assert_eq!(parse("2m"), Some(Duration::from_mins(2)));
        for text in ["", "10", "s", "-1s", "1.5s", "1h", "9999999999s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_defaults_are_written_as_they_are_read() {
        let text = toml::to_string(&Section::default()).unwrap();
        assert!(text.contains("renew = \"10s\""), "{text}");
        let read: Section = toml::from_str(&text).unwrap();
        assert_eq!(Timers::from(read), Timers::default());
    }
}
