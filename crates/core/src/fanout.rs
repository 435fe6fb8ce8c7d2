//! Expansion of a matrix, in a stable order.
//!
//! `exclude` goes first: an entry removes the combinations that match all its keys. Then `include`:
//! an entry whose keys do not clash extends the combinations that it matches, otherwise it is
//! added as one of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use shuntyard_protocol::plan::{Axes, Matrix};

use crate::limits::MATRIX_JOBS_MAX;

/// Most combinations before `exclude`, which may bring a large product below the limit of jobs.
const PRODUCT_MAX: usize = 16 * MATRIX_JOBS_MAX;
/// Most memory that combinations may take, in bytes, about: long values are copied into each.
const EXPANSION_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a value takes besides its text.
const CELL_BYTES: usize = 80;

/// Why a matrix cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    #[error("matrix axis '{axis}' has no values")]
    EmptyAxis { axis: String },
    #[error("matrix has no jobs: everything is excluded")]
    Empty,
    #[error("matrix has {count} jobs, above the limit of {MATRIX_JOBS_MAX}")]
    TooMany { count: usize },
    #[error("matrix has values that are too long: expanded it takes more than 16 MiB")]
    TooLong,
    #[error("matrix value {value} of '{axis}' must be a string, a number or a boolean")]
    NotScalar { axis: String, value: String },
    #[error("include and exclude need named axes; this matrix is a plain list")]
    ListWithEntries,
}

/// One combination: the value of `ctx.matrix`, and its short form for titles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    /// An object; for a plain list `{"value": …}`.
    pub values: Value,
    /// `linux, 22`.
    pub title: String,
}

/// All combinations, the first axis varying slowest.
pub fn expand(matrix: &Matrix) -> Result<Vec<Combination>, MatrixError> {
    let rows = match &matrix.axes {
        Axes::List(values) => list(values, matrix)?,
        Axes::Product(axes) => {
            let mut rows = product(axes)?;
            rows.retain(|row| !matrix.exclude.iter().any(|entry| agrees(row, entry)));
            include(&mut rows, &matrix.include, axes)?;
            rows
        }
    };
    match rows.len() {
        0 => Err(MatrixError::Empty),
        count if count > MATRIX_JOBS_MAX => Err(MatrixError::TooMany { count }),
        _ => Ok(rows.into_iter().map(combination).collect()),
    }
}

type Row = Vec<(String, Value)>;

fn list(values: &[Value], matrix: &Matrix) -> Result<Vec<Row>, MatrixError> {
    if !matrix.include.is_empty() || !matrix.exclude.is_empty() {
        return Err(MatrixError::ListWithEntries);
    }
    if values.is_empty() {
        return Err(MatrixError::EmptyAxis { axis: "value".to_owned() });
    }
    let row = |value: &Value| Ok(vec![("value".to_owned(), scalar("value", value)?)]);
    values.iter().map(row).collect()
}

fn product(axes: &[(String, Vec<Value>)]) -> Result<Vec<Row>, MatrixError> {
    let mut rows = vec![Row::new()];
    let mut row_bytes = 0;
    for (axis, values) in axes {
        if values.is_empty() {
            return Err(MatrixError::EmptyAxis { axis: axis.clone() });
        }
        // Excludes may still bring a large product below the limit; one that is hopelessly large
        // must not be built at all.
        let count = rows.len().saturating_mul(values.len());
        if count > PRODUCT_MAX {
            return Err(MatrixError::TooMany { count });
        }
        row_bytes += values.iter().map(|value| cell_bytes(axis, value)).max().unwrap_or(0);
        if count.saturating_mul(row_bytes) > EXPANSION_BYTES_MAX {
            return Err(MatrixError::TooLong);
        }
        let mut next = Vec::with_capacity(count);
        for row in &rows {
            for value in values {
                let mut row = row.clone();
                row.push((axis.clone(), scalar(axis, value)?));
                next.push(row);
            }
        }
        rows = next;
    }
    if axes.is_empty() { Ok(vec![]) } else { Ok(rows) }
}

fn scalar(axis: &str, value: &Value) -> Result<Value, MatrixError> {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(value.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            let value = value.to_string().chars().take(80).collect();
            Err(MatrixError::NotScalar { axis: axis.to_owned(), value })
        }
    }
}

/// About what a value takes in a combination.
fn cell_bytes(key: &str, value: &Value) -> usize {
    CELL_BYTES + key.len() + value.as_str().map_or(0, str::len)
}

fn get<'a>(row: &'a Row, key: &str) -> Option<&'a Value> {
    row.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn agrees(row: &Row, entry: &BTreeMap<String, Value>) -> bool {
    entry.iter().all(|(key, value)| get(row, key) == Some(value))
}

fn include(
    rows: &mut Vec<Row>,
    entries: &[BTreeMap<String, Value>],
    axes: &[(String, Vec<Value>)],
) -> Result<(), MatrixError> {
    let original = rows.len();
    // Entries only add.
    if original > MATRIX_JOBS_MAX {
        return Err(MatrixError::TooMany { count: original });
    }
    let mut bytes = 0;
    for entry in entries {
        for (key, value) in entry {
            scalar(key, value)?;
        }
        let entry_bytes: usize = entry.iter().map(|(key, value)| cell_bytes(key, value)).sum();
        bytes += entry_bytes * original.max(1);
        if bytes > EXPANSION_BYTES_MAX {
            return Err(MatrixError::TooLong);
        }
        let is_axis = |key: &str| axes.iter().any(|(axis, _)| axis == key);
        let mut extended = false;
        for row in &mut rows[..original] {
            // Only the axes decide; values that an earlier entry added may be overwritten.
            let fits =
                entry.iter().filter(|(k, _)| is_axis(k)).all(|(k, v)| get(row, k) == Some(v));
            if !fits {
                continue;
            }
            extended = true;
            for (key, value) in entry {
                match row.iter_mut().find(|(name, _)| name == key) {
                    Some((_, slot)) => *slot = value.clone(),
                    None => row.push((key.clone(), value.clone())),
                }
            }
        }
        if !extended {
            rows.push(entry.iter().map(|(k, v)| (k.clone(), v.clone())).collect());
        }
    }
    Ok(())
}

fn combination(row: Row) -> Combination {
    let words = row.iter().map(|(_, value)| match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    });
    let title = words.collect::<Vec<_>>().join(", ");
    Combination { title, values: Value::Object(row.into_iter().collect::<Map<_, _>>()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matrix(axes: &[(&str, Value)], include: Value, exclude: Value) -> Matrix {
        let axes = axes.iter().map(|(name, values)| {
            ((*name).to_owned(), serde_json::from_value(values.clone()).unwrap())
        });
        Matrix {
            axes: Axes::Product(axes.collect()),
            include: serde_json::from_value(include).unwrap(),
            exclude: serde_json::from_value(exclude).unwrap(),
            max_parallel: None,
            fail_fast: false,
        }
    }

    fn titles(matrix: &Matrix) -> Vec<String> {
        expand(matrix).unwrap().into_iter().map(|c| c.title).collect()
    }

    #[test]
    fn the_product_keeps_the_order_of_declaration() {
        let m = matrix(
            &[("os", json!(["linux", "mac"])), ("node", json!([20, 22]))],
            json!([]),
            json!([]),
        );
        assert_eq!(titles(&m), ["linux, 20", "linux, 22", "mac, 20", "mac, 22"]);
    }

    #[test]
    fn exclude_removes_what_matches_all_its_keys() {
        let m = matrix(
            &[("os", json!(["linux", "mac"])), ("node", json!([20, 22]))],
            json!([]),
            json!([{"os": "mac", "node": 20}]),
        );
        assert_eq!(titles(&m), ["linux, 20", "linux, 22", "mac, 22"]);
    }

    #[test]
    fn include_extends_what_it_does_not_clash_with_and_else_is_added() {
        let m = matrix(
            &[("os", json!(["linux", "mac"]))],
            json!([{"os": "mac", "xcode": 16}, {"os": "bsd"}, {"colour": true}]),
            json!([]),
        );
        let values: Vec<_> = expand(&m).unwrap().into_iter().map(|c| c.values).collect();
        assert_eq!(
            values,
            [
                json!({"os": "linux", "colour": true}),
                json!({"os": "mac", "xcode": 16, "colour": true}),
                json!({"os": "bsd"})
            ]
        );
    }

    #[test]
    fn a_plain_list_becomes_value() {
        let list = Matrix {
            axes: Axes::List(vec![json!("a"), json!(1)]),
            include: vec![],
            exclude: vec![],
            max_parallel: None,
            fail_fast: false,
        };
        let expanded = expand(&list).unwrap();
        assert_eq!(expanded[1], Combination { values: json!({"value": 1}), title: "1".into() });
    }

    #[test]
    fn two_hundred_and_fifty_six_jobs_fit_and_one_more_does_not() {
        let values = |n: usize| json!((0..n).collect::<Vec<_>>());
        let at = matrix(&[("n", values(MATRIX_JOBS_MAX))], json!([]), json!([]));
        assert_eq!(expand(&at).unwrap().len(), 256);
        let above = matrix(&[("n", values(MATRIX_JOBS_MAX + 1))], json!([]), json!([]));
        assert_eq!(expand(&above), Err(MatrixError::TooMany { count: 257 }));
        let huge = matrix(&[("a", values(1000)), ("b", values(1000))], json!([]), json!([]));
        assert_eq!(expand(&huge), Err(MatrixError::TooMany { count: 1_000_000 }));
    }

    #[test]
    fn product_max_combinations_may_be_excluded_from_and_one_axis_more_may_not() {
        let values = |n: usize| json!((0..n).collect::<Vec<_>>());
        let few = json!((2..PRODUCT_MAX / 16).map(|b| json!({"b": b})).collect::<Vec<_>>());
        let product = |a: usize| {
            let axes = [("a", values(a)), ("b", values(PRODUCT_MAX / 16))];
            expand(&matrix(&axes, json!([]), few.clone())).map(|rows| rows.len())
        };
        assert_eq!(product(16), Ok(32));
        assert_eq!(product(17), Err(MatrixError::TooMany { count: PRODUCT_MAX / 16 * 17 }));
    }

    #[test]
    fn combinations_take_expansion_bytes_max_and_no_more() {
        let values = json!((0..256).collect::<Vec<_>>());
        let each = EXPANSION_BYTES_MAX / 256 - 2 * (CELL_BYTES + 1);
        let long = |len: usize| {
            let axes = [("n", values.clone()), ("l", json!(["x".repeat(len)]))];
            expand(&matrix(&axes, json!([]), json!([]))).map(|rows| rows.len())
        };
        assert_eq!(long(each), Ok(256));
        assert_eq!(long(each + 1), Err(MatrixError::TooLong));
        let each = EXPANSION_BYTES_MAX / 256 - CELL_BYTES - 1;
        let entry = |len: usize| {
            let entries = json!([{"l": "x".repeat(len)}]);
            expand(&matrix(&[("n", values.clone())], entries, json!([]))).map(|rows| rows.len())
        };
        assert_eq!(entry(each), Ok(256));
        assert_eq!(entry(each + 1), Err(MatrixError::TooLong));
    }

    #[test]
    fn empty_and_odd_values_are_errors() {
        let empty = matrix(&[("n", json!([]))], json!([]), json!([]));
        assert_eq!(expand(&empty), Err(MatrixError::EmptyAxis { axis: "n".into() }));
        let all_out = matrix(&[("n", json!([1]))], json!([]), json!([{"n": 1}]));
        assert_eq!(expand(&all_out), Err(MatrixError::Empty));
        let object = matrix(&[("n", json!([{"a": 1}]))], json!([]), json!([]));
        assert!(matches!(expand(&object), Err(MatrixError::NotScalar { .. })));
    }
}
