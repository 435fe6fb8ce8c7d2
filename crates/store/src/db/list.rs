//! Lists of ids and rows in a statement, so that its text does not follow their length.
//!
//! A statement whose text was seen before is neither parsed nor planned again, and PostgreSQL answers it
//! in one round trip instead of two. PostgreSQL gets an array for each column. SQLite has no arrays: its
//! short lists of values are filled up to a power of two with rows of nulls, which nothing is equal to;
//! for long ones filling up costs more than it saves.

use sqlx::{
    Database, FromRow, Postgres, QueryBuilder, Sqlite,
    postgres::{PgArguments, PgRow},
    query::{Query, QueryAs},
    query_builder::Separated,
    sqlite::{SqliteArguments, SqliteRow},
};
use uuid::Uuid;

use shuntyard_core::state::OutcomeSet;
use shuntyard_protocol::{AgentId, InstanceId, JobId, RunId, SegmentId, Timestamp};

/// Most values of a list that SQLite gets filled up.
const FILLED_MAX: usize = 512;
/// A longer text is not kept: it has a list that is not filled up, and is hardly ever seen again.
const KEPT_TEXT_MAX: usize = 4096;

/// One value of a row. All values of a column are of the same variant.
#[derive(Clone)]
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
        [$($crate::db::list::Cell::from($value)),+]
    };
}

pub(crate) use cells;

/// What is pushed into a statement as a list. No list is empty.
pub(crate) trait Lists {
    type Db: Database;

    /// After a column: true where it is one of these.
    fn push_in<T: Copy + Into<Cell>>(&mut self, ids: &[T]) -> &mut Self;

    /// Where a table may stand: the rows, as `v` with the columns `column1`, `column2` … An insert takes
    /// only those whose first column is not null.
    fn push_rows<R, const N: usize>(
        &mut self,
        rows: &[R],
        cells: impl FnMut(&R) -> [Cell; N],
    ) -> &mut Self;

    /// The finished statement, to be executed.
    fn done(&mut self) -> Query<'_, Self::Db, <Self::Db as Database>::Arguments>;

    /// The finished statement, whose rows are wanted.
    fn done_as<'q, T: FromRow<'q, <Self::Db as Database>::Row>>(
        &'q mut self,
    ) -> QueryAs<'q, Self::Db, T, <Self::Db as Database>::Arguments>;
}

impl Lists for QueryBuilder<Postgres> {
    type Db = Postgres;

    fn push_in<T: Copy + Into<Cell>>(&mut self, ids: &[T]) -> &mut Self {
        self.push(" = any(");
        let mut list = self.separated(", ");
        push_array(&mut list, ids.iter().map(|&id| id.into()).collect());
        self.push(")")
    }

    fn push_rows<R, const N: usize>(
        &mut self,
        rows: &[R],
        mut cells: impl FnMut(&R) -> [Cell; N],
    ) -> &mut Self {
        let mut columns: [Vec<Cell>; N] = std::array::from_fn(|_| Vec::with_capacity(rows.len()));
        for row in rows {
            for (column, cell) in columns.iter_mut().zip(cells(row)) {
                column.push(cell);
            }
        }
        self.push(" unnest(");
        let mut list = self.separated(", ");
        for column in columns {
            push_array(&mut list, column);
        }
        self.push(") as v (");
        let mut names = self.separated(", ");
        for n in 1..=N {
            names.push(format_args!("column{n}"));
        }
        self.push(")")
    }

    fn done(&mut self) -> Query<'_, Postgres, PgArguments> {
        self.build()
    }

    fn done_as<'q, T: FromRow<'q, PgRow>>(&'q mut self) -> QueryAs<'q, Postgres, T, PgArguments> {
        self.build_query_as()
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

impl Lists for QueryBuilder<Sqlite> {
    type Db = Sqlite;

    fn push_in<T: Copy + Into<Cell>>(&mut self, ids: &[T]) -> &mut Self {
        self.push(" in (");
        let mut list = self.separated(", ");
        for &id in ids {
            push_value(&mut list, id.into());
        }
        push_nulls(&mut list, filled(ids.len(), 1) - ids.len());
        self.push(")")
    }

    fn push_rows<R, const N: usize>(
        &mut self,
        rows: &[R],
        mut cells: impl FnMut(&R) -> [Cell; N],
    ) -> &mut Self {
        self.push(" (");
        let all = rows.iter().map(Some).chain(std::iter::repeat(None));
        self.push_values(all.take(filled(rows.len(), N)), |mut list, row| match row {
            Some(row) => cells(row).into_iter().for_each(|cell| push_value(&mut list, cell)),
            None => push_nulls(&mut list, N),
        });
        self.push(") as v")
    }

    fn done(&mut self) -> Query<'_, Sqlite, SqliteArguments> {
        let kept = self.sql().as_str().len() <= KEPT_TEXT_MAX;
        self.build().persistent(kept)
    }

    fn done_as<'q, T: FromRow<'q, SqliteRow>>(
        &'q mut self,
    ) -> QueryAs<'q, Sqlite, T, SqliteArguments> {
        let kept = self.sql().as_str().len() <= KEPT_TEXT_MAX;
        self.build_query_as().persistent(kept)
    }
}

/// How long a list of rows is made.
fn filled(rows: usize, values: usize) -> usize {
    let filled = rows.next_power_of_two();
    if filled * values <= FILLED_MAX { filled } else { rows }
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
    use sqlx::Execute;

    use super::*;

    fn texts(rows: usize) -> [usize; 2] {
        let rows = vec![1_i64; rows];
        let mut lite = QueryBuilder::<Sqlite>::new("select v.* from");
        let mut pg = QueryBuilder::<Postgres>::new("select v.* from");
        lite.push_rows(&rows, |n| cells![*n, *n]);
        pg.push_rows(&rows, |n| cells![*n, *n]);
        [lite.into_string().len(), pg.into_string().len()]
    }

    #[test]
    fn a_list_up_to_filled_max_values_is_filled_up() {
        let most = FILLED_MAX / 2;
        assert_eq!(texts(most / 2 + 1), texts(most));
        assert_ne!(texts(most + 1)[0], texts(most + 2)[0]);
        assert_eq!(texts(1)[1], texts(most + 1)[1]);
    }

    #[test]
    fn a_text_up_to_kept_text_max_is_kept() {
        let kept = |text: String| Execute::persistent(&QueryBuilder::<Sqlite>::new(text).done());
        assert!(kept("x".repeat(KEPT_TEXT_MAX)));
        assert!(!kept("x".repeat(KEPT_TEXT_MAX + 1)));
    }
}
