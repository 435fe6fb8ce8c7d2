//! Applying facts: lock, load, let `core` decide, write, commit.

pub(crate) mod batch;
pub(crate) mod load;
pub(crate) mod rows;
pub(crate) mod save;
pub(crate) mod save_gates;
pub(crate) mod save_queue;
pub(crate) mod writer;

/// Most rows of one list. With the widest rows, of 25 values, a statement then has 12 800 binds; SQLite
/// allows 32 766, PostgreSQL 65 535.
pub(crate) const ROWS_MAX: usize = 512;

/// `rows` in portions of which one statement can take each.
pub(crate) fn portions<T>(rows: &[T]) -> impl Iterator<Item = &[T]> {
    rows.chunks(ROWS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_max_is_never_exceeded() {
        let rows = vec![0; ROWS_MAX + 1];
        let sizes: Vec<_> = portions(&rows).map(<[i32]>::len).collect();
        assert_eq!(sizes, [ROWS_MAX, 1]);
    }
}
