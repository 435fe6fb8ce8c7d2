//! Pages of lists, newest first.

use std::{fmt, str::FromStr};

use shuntyard_protocol::Timestamp;
use uuid::Uuid;

/// Most rows of one page.
pub const PAGE_MAX: u32 = 500;

/// Where a page ends; the next one starts behind it. As text it is `<time>.<id>`, opaque to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub at: Timestamp,
    pub id: Uuid,
}

impl Cursor {
    /// Before everything.
    pub(crate) const START: Self = Self { at: Timestamp(i64::MAX), id: Uuid::max() };
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at.0, self.id.simple())
    }
}

/// A text that no list has given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor: take it from the answer before")]
pub struct ParseCursorError;

impl FromStr for Cursor {
    type Err = ParseCursorError;
    fn from_str(text: &str) -> Result<Self, ParseCursorError> {
        let (at, id) = text.split_once('.').ok_or(ParseCursorError)?;
        let at = Timestamp(at.parse().map_err(|_| ParseCursorError)?);
        let id = Uuid::try_parse(id).map_err(|_| ParseCursorError)?;
        Ok(Self { at, id })
    }
}

/// Some rows of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Absent: nothing follows.
    pub next: Option<Cursor>,
}

/// Rows to ask for: one more than wanted tells whether anything follows.
pub(crate) fn fetch(limit: u32) -> i64 {
    i64::from(limit.clamp(1, PAGE_MAX)) + 1
}

impl<T> Page<T> {
    pub(crate) fn new(mut items: Vec<T>, limit: u32, key: impl Fn(&T) -> Cursor) -> Self {
        let limit = limit.clamp(1, PAGE_MAX) as usize;
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(key) } else { None };
        Self { items, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_garbage_is_refused() {
        let cursor = Cursor { at: Timestamp(12), id: Uuid::from_u128(7) };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for text in ["", ".", "1", "x.0", "1.zz"] {
            assert_eq!(text.parse::<Cursor>(), Err(ParseCursorError), "{text}");
        }
    }

    #[test]
    fn page_max_is_the_most_that_is_fetched() {
        assert_eq!(fetch(PAGE_MAX + 1), i64::from(PAGE_MAX) + 1);
        assert_eq!(fetch(0), 2);
        let page = Page::new(vec![1, 2, 3], 2, |&n| Cursor { at: Timestamp(n), id: Uuid::nil() });
        assert_eq!((page.items, page.next.map(|c| c.at.0)), (vec![1, 2], Some(2)));
    }
}
