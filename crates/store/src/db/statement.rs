//! Statements with lists of ids and rows in them, whose text does not follow how long the lists are.
//!
//! A statement whose text was seen before is neither parsed nor planned again, and PostgreSQL answers it
//! in one round trip instead of two. PostgreSQL gets an array for each column. SQLite has no arrays: its
//! short lists of values are filled up to a power of two with rows of nulls, which nothing is equal to;
//! for long ones filling up costs more than it saves, and their statements are not kept.

use std::fmt::Display;

use shuntyard_core::state::OutcomeSet;
use shuntyard_protocol::{AgentId, InstanceId, JobId, RunId, SegmentId, Timestamp};
use sqlx::{
    Database, Encode, FromRow, Postgres, QueryBuilder, Sqlite, Type,
    database::HasStatementCache,
    query::{Query, QueryAs},
    query_builder::Separated,
};
use uuid::Uuid;

/// Most values of a list that SQLite gets filled up.
const FILLED_MAX: usize = 512;

/// One value of a row. All values of a column are of the same variant.
pub(crate) enum Cell {
    Id(Option<Uuid>),
    Number(Option<i64>),
    Text(Option<String>),
    Flag(Option<bool>),
    Bytes(Option<Vec<u8>>),
}

macro_rules! cells_from {
    ($($variant:ident: $($type:ty = |$value:ident| $convert:expr),+;)+) => {$($(
        impl From<$type> for Cell {
            fn from($value: $type) -> Self {
                Self::$variant(Some($convert))
            }
        }
        impl From<Option<$type>> for Cell {
            fn from(value: Option<$type>) -> Self {
                Self::$variant(value.map(|$value| $convert))
            }
        }
    )+)+};
}

cells_from! {
    Id: Uuid = |id| id, RunId = |id| id.uuid(), JobId = |id| id.uuid(), AgentId = |id| id.uuid(),
        SegmentId = |id| id.uuid(), InstanceId = |id| id.uuid();
    Number: i64 = |number| number, u32 = |number| i64::from(number), i32 = |number| i64::from(number),
        Timestamp = |at| at.0, OutcomeSet = |set| set.bits();
    Text: String = |text| text, &str = |text| text.to_owned(), &String = |text| text.clone();
    Flag: bool = |flag| flag;
    Bytes: Vec<u8> = |bytes| bytes;
}

/// The values of one row.
macro_rules! cells {
    ($($value:expr),+ $(,)?) => {
        [$($crate::db::statement::Cell::from($value)),+]
    };
}

pub(crate) use cells;

/// A statement that is put together. No list in it is empty.
pub(crate) struct Statement<D: Dialect> {
    text: QueryBuilder<D>,
    /// Its text may come again.
    kept: bool,
}

impl<D: Dialect> Statement<D> {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: QueryBuilder::new(text), kept: true }
    }

    pub(crate) fn push(&mut self, text: impl Display) -> &mut Self {
        self.text.push(text);
        self
    }

    pub(crate) fn push_bind<'t>(&mut self, value: impl Encode<'t, D> + Type<D>) -> &mut Self {
        self.text.push_bind(value);
        self
    }

    /// After a column: true where it is one of these.
    pub(crate) fn push_in<T: Copy + Into<Cell>>(&mut self, ids: &[T]) -> &mut Self {
        self.kept &= D::push_ids(&mut self.text, ids.iter().map(|&id| id.into()).collect());
        self
    }

    /// Where a table may stand: the rows, as `v` with the columns `column1`, `column2` … An insert takes
    /// only those whose first column is not null.
    pub(crate) fn push_rows<R, const N: usize>(
        &mut self,
        rows: &[R],
        cells: impl FnMut(&R) -> [Cell; N],
    ) -> &mut Self {
        self.kept &= D::push_table(&mut self.text, rows.iter().map(cells).collect());
        self
    }

    /// The finished statement, to be executed.
    pub(crate) fn done(&mut self) -> Query<'_, D, D::Arguments> {
        self.text.build().persistent(self.kept)
    }

    /// The finished statement, whose rows are wanted.
    pub(crate) fn done_as<'q, T: FromRow<'q, D::Row>>(
        &'q mut self,
    ) -> QueryAs<'q, D, T, D::Arguments> {
        self.text.build_query_as().persistent(self.kept)
    }
}

/// How lists are written for a database. Each tells whether the text does not follow their length.
pub(crate) trait Dialect: Database + HasStatementCache {
    fn push_ids(text: &mut QueryBuilder<Self>, ids: Vec<Cell>) -> bool;
    fn push_table<const N: usize>(text: &mut QueryBuilder<Self>, rows: Vec<[Cell; N]>) -> bool;
}

impl Dialect for Postgres {
    fn push_ids(text: &mut QueryBuilder<Self>, ids: Vec<Cell>) -> bool {
        push_array(&mut text.push(" = any(").separated(""), ids);
        text.push(")");
        true
    }

    fn push_table<const N: usize>(text: &mut QueryBuilder<Self>, rows: Vec<[Cell; N]>) -> bool {
        let mut columns: [Vec<Cell>; N] = std::array::from_fn(|_| Vec::with_capacity(rows.len()));
        for row in rows {
            for (column, cell) in columns.iter_mut().zip(row) {
                column.push(cell);
            }
        }
        text.push(" unnest(");
        let mut list = text.separated(", ");
        for column in columns {
            push_array(&mut list, column);
        }
        text.push(") as v (");
        let mut names = text.separated(", ");
        for n in 1..=N {
            names.push(format_args!("column{n}"));
        }
        text.push(")");
        true
    }
}

fn push_array(list: &mut Separated<'_, Postgres, &'static str>, column: Vec<Cell>) {
    macro_rules! array {
        ($variant:ident) => {{
            let values = column.into_iter().map(|cell| match cell {
                Cell::$variant(value) => value,
                _ => unreachable!("a column has one type"),
            });
            list.push_bind(values.collect::<Vec<_>>())
        }};
    }
    match column.first().expect("no list is empty") {
        Cell::Id(_) => array!(Id),
        Cell::Number(_) => array!(Number),
        Cell::Text(_) => array!(Text),
        Cell::Flag(_) => array!(Flag),
        Cell::Bytes(_) => array!(Bytes),
    };
}

impl Dialect for Sqlite {
    fn push_ids(text: &mut QueryBuilder<Self>, ids: Vec<Cell>) -> bool {
        let nulls = missing(ids.len(), 1);
        let mut list = text.push(" in (").separated(", ");
        for id in ids {
            push_value(&mut list, id);
        }
        push_nulls(&mut list, nulls.unwrap_or(0));
        text.push(")");
        nulls.is_some()
    }

    fn push_table<const N: usize>(text: &mut QueryBuilder<Self>, rows: Vec<[Cell; N]>) -> bool {
        let nulls = missing(rows.len(), N);
        let all = rows.into_iter().map(Some);
        let all = all.chain(std::iter::repeat_with(|| None).take(nulls.unwrap_or(0)));
        text.push(" (").push_values(all, |mut list, row| match row {
            Some(row) => row.into_iter().for_each(|cell| push_value(&mut list, cell)),
            None => push_nulls(&mut list, N),
        });
        text.push(") as v");
        nulls.is_some()
    }
}

/// How many rows of nulls a list is filled up with, if it is.
fn missing(rows: usize, values: usize) -> Option<usize> {
    let filled = rows.next_power_of_two();
    (filled * values <= FILLED_MAX).then_some(filled - rows)
}

fn push_value(list: &mut Separated<'_, Sqlite, &'static str>, cell: Cell) {
    match cell {
        Cell::Id(value) => list.push_bind(value),
        Cell::Number(value) => list.push_bind(value),
        Cell::Text(value) => list.push_bind(value),
        Cell::Flag(value) => list.push_bind(value),
        Cell::Bytes(value) => list.push_bind(value),
    };
}

fn push_nulls(list: &mut Separated<'_, Sqlite, &'static str>, count: usize) {
    for _ in 0..count {
        list.push_bind(None::<i64>);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair<D: Dialect>(rows: usize) -> Statement<D> {
        let mut q = Statement::new("select v.* from");
        q.push_rows(&vec![1_i64; rows], |n| cells![*n, *n]);
        q
    }

    fn text<D: Dialect>(q: Statement<D>) -> (String, bool) {
        (q.text.into_string(), q.kept)
    }

    #[test]
    fn with_sqlite_lists_of_filled_max_values_are_filled_up_and_no_longer_ones() {
        let most = FILLED_MAX / 2;
        assert_eq!(text(pair::<Sqlite>(most / 2 + 1)), text(pair::<Sqlite>(most)));
        assert!(text(pair::<Sqlite>(most)).1);
        assert!(!text(pair::<Sqlite>(most + 1)).1);
        assert_ne!(text(pair::<Sqlite>(most + 1)).0, text(pair::<Sqlite>(most + 2)).0);
        let ids = |count| {
            let mut q = Statement::<Sqlite>::new("delete from queue where seq");
            q.push_in(&vec![1_i64; count]);
            text(q)
        };
        assert_eq!(ids(FILLED_MAX - 1), ids(FILLED_MAX));
        assert!(!ids(FILLED_MAX + 1).1);
    }

    #[test]
    fn with_postgresql_a_text_never_follows_its_lists() {
        assert_eq!(text(pair::<Postgres>(1)), text(pair::<Postgres>(FILLED_MAX)));
        let wanted = "select v.* from unnest($1, $2) as v (column1, column2)";
        assert_eq!(text(pair::<Postgres>(1)), (wanted.to_owned(), true));
    }
}
