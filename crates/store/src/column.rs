//! Columns as the types they mean, and rows as structs, for both databases.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use shuntyard_core::{
    apply::KeyHash,
    state::{AttemptState, JobState, OutcomeSet, RunState, StepState},
};
use shuntyard_protocol::{
    AgentId, DeliveryId, EventId, InstanceId, JobId, Outcome, RunId, SegmentId, SourceId,
    Timestamp, TokenId,
    agent::{Containment, End, Mark},
    plan::RunsOn,
};
use sqlx::{Row, error::BoxDynError, postgres::PgRow, sqlite::SqliteRow};
use uuid::Uuid;

/// A type that one column of a row of kind `R` holds.
pub(crate) trait Column<R>: Sized {
    fn column(row: &R, name: &str) -> sqlx::Result<Self>;
}

fn bad(name: &str, why: impl Into<BoxDynError>) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: name.to_owned(), source: why.into() }
}

fn word<T>(name: &str, text: &str, parse: impl Fn(&str) -> Option<T>) -> sqlx::Result<T> {
    parse(text).ok_or_else(|| bad(name, format!("unknown word '{text}'")))
}

fn number<T: TryFrom<i64>>(name: &str, value: i64) -> sqlx::Result<T> {
    T::try_from(value).map_err(|_| bad(name, format!("{value} is out of range")))
}

fn json<T: DeserializeOwned>(name: &str, text: &str) -> sqlx::Result<T> {
    serde_json::from_str(text).map_err(|error| bad(name, error))
}

macro_rules! plain {
    ($row:ty: $($type:ty),+) => {$(
        impl Column<$row> for $type {
            fn column(row: &$row, name: &str) -> sqlx::Result<Self> {
                row.try_get(name)
            }
        }
        impl Column<$row> for Option<$type> {
            fn column(row: &$row, name: &str) -> sqlx::Result<Self> {
                row.try_get(name)
            }
        }
    )+};
}

macro_rules! via {
    ($row:ty: $($type:ty = $raw:ty, |$name:ident, $value:ident| $convert:expr;)+) => {$(
        impl Column<$row> for $type {
            fn column(row: &$row, $name: &str) -> sqlx::Result<Self> {
                let $value: $raw = row.try_get($name)?;
                $convert
            }
        }
        impl Column<$row> for Option<$type> {
            fn column(row: &$row, $name: &str) -> sqlx::Result<Self> {
                let $value: Option<$raw> = row.try_get($name)?;
                $value.map(|$value| $convert).transpose()
            }
        }
    )+};
}

macro_rules! columns {
    ($($row:ty),+) => {$(
        plain!($row: i64, bool, String, Vec<u8>, Uuid);
        via! { $row:
            u32 = i64, |name, value| number(name, value);
            u64 = i64, |name, value| number(name, value);
            i32 = i64, |name, value| number(name, value);
            Timestamp = i64, |_name, value| Ok(Timestamp(value));
            OutcomeSet = i64, |_name, value| Ok(OutcomeSet::from_bits(value));
            RunId = Uuid, |_name, value| Ok(RunId::from_uuid(value));
            JobId = Uuid, |_name, value| Ok(JobId::from_uuid(value));
            AgentId = Uuid, |_name, value| Ok(AgentId::from_uuid(value));
            SourceId = Uuid, |_name, value| Ok(SourceId::from_uuid(value));
            DeliveryId = Uuid, |_name, value| Ok(DeliveryId::from_uuid(value));
            EventId = Uuid, |_name, value| Ok(EventId::from_uuid(value));
            InstanceId = Uuid, |_name, value| Ok(InstanceId::from_uuid(value));
            TokenId = Uuid, |_name, value| Ok(TokenId::from_uuid(value));
            SegmentId = Uuid, |_name, value| Ok(SegmentId::from_uuid(value));
            Outcome = String, |name, value| word(name, &value, Outcome::parse);
            RunState = String, |name, value| word(name, &value, RunState::parse);
            JobState = String, |name, value| word(name, &value, JobState::parse);
            AttemptState = String, |name, value| word(name, &value, AttemptState::parse);
            StepState = String, |name, value| word(name, &value, StepState::parse);
            Containment = String, |name, value| word(name, &value, containment);
            KeyHash = Vec<u8>, |name, value| value
                .try_into()
                .map_err(|_| bad(name, "not 32 bytes"));
            Value = String, |name, value| json(name, &value);
            End = String, |name, value| json(name, &value);
            RunsOn = String, |name, value| json(name, &value);
            Vec<String> = String, |name, value| json(name, &value);
            Vec<AgentId> = String, |name, value| json(name, &value);
            BTreeMap<String, String> = String, |name, value| json(name, &value);
            Vec<Mark> = String, |name, value| json(name, &value);
        }
    )+};
}

columns!(SqliteRow, PgRow);

/// The stored word of a containment level.
pub(crate) fn containment_word(level: Containment) -> &'static str {
    match level {
        Containment::None => "none",
        Containment::Subreaper => "subreaper",
        Containment::Namespace => "namespace",
    }
}

fn containment(word: &str) -> Option<Containment> {
    [Containment::None, Containment::Subreaper, Containment::Namespace]
        .into_iter()
        .find(|&level| containment_word(level) == word)
}

/// A struct that is read from a row whose columns are called like its fields.
macro_rules! row {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
    })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }
        $crate::column::from_row!($name, sqlx::sqlite::SqliteRow: $($field: $type,)*);
        $crate::column::from_row!($name, sqlx::postgres::PgRow: $($field: $type,)*);
    )+};
}

macro_rules! from_row {
    ($name:ident, $row:ty: $($field:ident: $type:ty,)*) => {
        impl sqlx::FromRow<'_, $row> for $name {
            fn from_row(row: &$row) -> sqlx::Result<Self> {
                Ok(Self {
                    $($field: <$type as $crate::column::Column<$row>>::column(
                        row, stringify!($field))?,)*
                })
            }
        }
    };
}

pub(crate) use {from_row, row};
