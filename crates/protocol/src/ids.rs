//! Identifiers: a version 7 UUID inside, `run_<26 characters of base32>` as text.
//!
//! The prefix makes a pasted id say what it is, and a wrong kind of id is refused where it is
//! parsed. Ids are minted from a time and random bytes that the caller hands in, so that a
//! simulation replays.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use crate::Timestamp;

/// Crockford's base32 in lower case: no `i`, `l`, `o`, `u`.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 128 bits in groups of five.
const TEXT_LEN: usize = 26;

/// Why a text is not an id of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a {kind} id: expected {kind}_ and 26 characters of base32")]
pub struct ParseIdError {
    kind: &'static str,
    text: String,
}

fn encode(value: Uuid) -> String {
    let bits = value.as_u128();
    (0..TEXT_LEN)
        .rev()
        .map(|i| char::from(ALPHABET[usize::try_from(bits >> (5 * i) & 31).unwrap_or(0)]))
        .collect()
}

fn decode(text: &str) -> Option<Uuid> {
    // 26 digits hold 130 bits, so the first one may only carry three.
    if text.len() != TEXT_LEN || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes()
        .try_fold(0u128, |bits, byte| {
            let digit = ALPHABET.iter().position(|&c| c == byte)?;
            Some(bits << 5 | digit as u128)
        })
        .map(Uuid::from_u128)
}

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The text before the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// A new id that sorts after every id minted at an earlier millisecond.
            pub fn mint(now: Timestamp, random: [u8; 10]) -> Self {
                let millis = u64::try_from(now.0).unwrap_or(0);
                Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
            }

            /// The stored form.
            pub fn uuid(self) -> Uuid {
                self.0
            }

            /// From the stored form.
            pub fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}_{}", $prefix, encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(decode)
                    .map(Self)
                    .ok_or_else(|| ParseIdError { kind: $prefix, text: text.chars().take(80).collect() })
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some(concat!("^", $prefix, "_[0-9a-hjkmnp-tv-z]{26}$")))
                    .into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )+};
}

id! {
    /// A configured origin of events and code.
    SourceId = "src",
    /// One accepted inbound webhook.
    DeliveryId = "dlv",
    /// A normalised happening.
    EventId = "evt",
    /// One matched workflow of one event.
    RunId = "run",
    /// One node of a run's graph, after fan-out.
    JobId = "job",
    /// An enrolled agent.
    AgentId = "agt",
    /// An API or enrolment token (the row, never the secret).
    TokenId = "tok",
    /// One life of a coordinator process.
    InstanceId = "ins",
    /// One append-only file or object that holds log bytes of many streams.
    SegmentId = "seg",
}

impl RunId {
    /// A number that the run and all of its jobs have in common, so that work which is spread by it
    /// keeps a run together.
    pub fn spread(self) -> u8 {
        self.0.as_bytes()[15]
    }
}

impl JobId {
    /// A new id for a job of `run`, which ends as the run's does.
    pub fn mint_in(run: RunId, now: Timestamp, mut random: [u8; 10]) -> Self {
        random[9] = run.spread();
        Self::mint(now, random)
    }

    /// Its run's [`RunId::spread`].
    pub fn spread(self) -> u8 {
        self.0.as_bytes()[15]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_keeps_the_order() {
        let early = RunId::mint(Timestamp(1), [0xff; 10]);
        let late = RunId::mint(Timestamp(2), [0; 10]);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
        assert_eq!(early.to_string().parse(), Ok(early));
    }

    #[test]
    fn a_job_is_spread_with_its_run() {
        let run = RunId::mint(Timestamp(1), [3; 10]);
        let job = JobId::mint_in(run, Timestamp(2), [7; 10]);
        assert_eq!(job.spread(), run.spread());
        assert_ne!(JobId::mint_in(run, Timestamp(2), [8; 10]), job);
    }

    #[test]
    fn another_kind_of_id_and_garbage_are_refused() {
        let run = RunId::mint(Timestamp(1), [3; 10]).to_string();
        assert!(run.parse::<JobId>().is_err());
        for text in ["", "run_", "run_zzzzzzzzzzzzzzzzzzzzzzzzzz", "run_ü", "run_01"] {
            assert!(text.parse::<RunId>().is_err(), "{text}");
        }
    }
}
