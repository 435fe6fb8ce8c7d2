//! Maps from stream to offset, as JSON objects.
//!
//! JSON has no keys but texts. Inside a tagged enum serde reads a frame through a buffer that
//! keeps them as texts, and then no number is found where one was written: so the keys are parsed
//! here.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Stream(u32);

struct StreamVisitor;

impl Visitor<'_> for StreamVisitor {
    type Value = Stream;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a stream")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Stream, E> {
        text.parse().map(Stream).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Stream, E> {
        let stream = u32::try_from(number);
        stream.map(Stream).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }
}

impl<'de> Deserialize<'de> for Stream {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StreamVisitor)
    }
}

/// For `#[serde(deserialize_with)]` on a map from stream to offset.
pub fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<u32, u64>, D::Error> {
    let offsets = BTreeMap::<Stream, u64>::deserialize(deserializer)?;
    Ok(offsets.into_iter().map(|(stream, offset)| (stream.0, offset)).collect())
}

#[cfg(test)]
mod tests {
    use crate::{
        JobId, Outcome, Timestamp,
        agent::{AttemptFact, AttemptId, End, ToAgent, Verdict},
    };

    use super::*;

    #[test]
    fn offsets_inside_tagged_frames_are_read_back() {
        let id = AttemptId { job: JobId::mint(Timestamp(1), [1; 10]), attempt: 1 };
        let offsets = BTreeMap::from([(0, 5), (12, u64::MAX)]);
        let ack = ToAgent::LogAck { id, to: offsets.clone() };
        let text = serde_json::to_string(&ack).unwrap();
        assert!(text.contains(r#"{"0":5,"12":18446744073709551615}"#), "{text}");
        assert_eq!(serde_json::from_str::<ToAgent>(&text).unwrap(), ack);
        let keep = Verdict::Keep { id, log: offsets.clone(), facts: 1 };
        let text = serde_json::to_string(&keep).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), keep);
        let ended = AttemptFact::Ended(End {
            at: Timestamp(1),
            outcome: Outcome::Success,
            reason: None,
            outputs: None,
            ends: offsets,
            torn: Vec::new(),
        });
        let text = serde_json::to_string(&ended).unwrap();
        assert_eq!(serde_json::from_str::<AttemptFact>(&text).unwrap(), ended);
    }

    #[test]
    fn a_key_that_is_no_stream_is_an_error() {
        for text in [r#"{"x":1}"#, r#"{"-1":1}"#, r#"{"4294967296":1}"#] {
            let mut json = serde_json::Deserializer::from_str(text);
            assert!(deserialize(&mut json).is_err(), "{text}");
        }
    }
}
