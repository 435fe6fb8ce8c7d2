//! Applying facts: lock, load, let `core` decide, write, commit.

pub(crate) mod batch;
pub(crate) mod load;
pub(crate) mod rows;
pub(crate) mod save;
pub(crate) mod save_gates;
pub(crate) mod save_queue;
pub(crate) mod writer;

/// Most binds of one statement; SQLite allows 32 766, PostgreSQL 65 535.
pub(crate) const BINDS_MAX: usize = 30_000;

/// `rows` in portions of which one statement with `columns` binds per row can take each.
pub(crate) fn portions<T>(rows: &[T], columns: usize) -> impl Iterator<Item = &[T]> {
    rows.chunks(BINDS_MAX / columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_max_is_never_exceeded() {
        let rows = vec![0; BINDS_MAX / 3 + 1];
        let sizes: Vec<_> = portions(&rows, 3).map(<[i32]>::len).collect();
        assert_eq!(sizes, [BINDS_MAX / 3, 1]);
    }
}
