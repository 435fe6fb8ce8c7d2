//! The small decisions about steps: which run together, when another try is made, what is kept.

use std::time::Duration;

use serde_json::Value;
use shuntyard_protocol::plan::{Step, StepRetry};

/// Longest outputs of a job, as JSON.
const JOB_OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// Longest error text of a step; the rest is cut.
const ERROR_BYTES_MAX: usize = 32 * 1024;
/// Longest time between two tries of a step.
const RETRY_DELAY_MAX: Duration = Duration::from_hours(1);

/// Steps that run together: one, or those of a `parallel` block.
pub(super) fn groups(steps: &[Step]) -> Vec<(Option<u32>, Vec<usize>)> {
    let mut groups: Vec<(Option<u32>, Vec<usize>)> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        match groups.last_mut() {
            Some((block, group)) if block.is_some() && *block == step.parallel => group.push(index),
            _ => groups.push((step.parallel, vec![index])),
        }
    }
    groups
}

/// Refuses outputs that are too long to keep.
pub(super) fn check_job_outputs(outputs: Option<&Value>) -> Result<(), String> {
    let bytes = outputs.map_or(0, |outputs| outputs.to_string().len());
    if bytes > JOB_OUTPUT_BYTES_MAX {
        return Err(format!(
            "the job's outputs have {bytes} bytes as JSON: the limit is {JOB_OUTPUT_BYTES_MAX}"
        ));
    }
    Ok(())
}

/// Outputs that a function's commands wrote, and over them those that it returned.
pub(super) fn merge(written: Option<Value>, returned: Option<Value>) -> Option<Value> {
    match (written, returned) {
        (Some(Value::Object(mut written)), Some(Value::Object(returned))) => {
            written.extend(returned);
            Some(Value::Object(written))
        }
        (written, returned) => returned.or(written),
    }
}

/// Cuts a text that a fact must have room for.
pub(super) fn shorten(mut text: String) -> String {
    if text.len() > ERROR_BYTES_MAX {
        text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
        text.push('…');
    }
    text
}

/// Time to wait after try `n`, from 1.
pub(super) fn delay(retry: &StepRetry, n: u32) -> Duration {
    let factor = if retry.exponential { 2u64.saturating_pow(n.saturating_sub(1)) } else { 1 };
    let ms = retry.delay_ms.saturating_mul(factor);
    let ms = if retry.exponential { ms.min(retry.max_delay_ms) } else { ms };
    Duration::from_millis(ms).min(RETRY_DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_of_one_parallel_block_run_together() {
        let step = |parallel| Step { parallel, ..Step::default() };
        let steps =
            [step(None), step(Some(0)), step(Some(0)), step(Some(1)), step(None), step(None)];
        let sizes: Vec<_> = groups(&steps).into_iter().map(|(_, group)| group.len()).collect();
        assert_eq!(sizes, [1, 2, 1, 1, 1]);
    }

    #[test]
    fn job_outputs_at_the_limit_pass_and_one_byte_more_is_refused() {
        let of = |bytes: usize| Value::String("x".repeat(bytes - 2));
        assert!(check_job_outputs(Some(&of(JOB_OUTPUT_BYTES_MAX))).is_ok());
        assert!(check_job_outputs(Some(&of(JOB_OUTPUT_BYTES_MAX + 1))).is_err());
    }

    #[test]
    fn a_long_error_is_cut_at_a_character() {
        assert_eq!(shorten("é".repeat(ERROR_BYTES_MAX / 2)).len(), ERROR_BYTES_MAX);
        let cut = shorten("é".repeat(ERROR_BYTES_MAX));
        assert!(cut.ends_with("é…") && cut.len() <= ERROR_BYTES_MAX + 3);
    }

    #[test]
    fn what_a_function_returns_wins_over_what_it_wrote() {
        let merged = merge(Some(json!({"a": 1, "b": 1})), Some(json!({"b": 2})));
        assert_eq!(merged, Some(json!({"a": 1, "b": 2})));
        assert_eq!(merge(Some(json!({"a": 1})), None), Some(json!({"a": 1})));
    }

    #[test]
    fn the_delay_doubles_up_to_its_limit() {
        let retry =
            StepRetry { max_attempts: 9, delay_ms: 100, max_delay_ms: 500, exponential: true };
        let delays: Vec<_> = (1..=4).map(|n| delay(&retry, n).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 500]);
        let slow = StepRetry { delay_ms: u64::MAX, exponential: false, ..retry.clone() };
        assert_eq!(delay(&slow, 1), RETRY_DELAY_MAX);
        let fixed = StepRetry { exponential: false, ..retry };
        assert_eq!(delay(&fixed, 70).as_millis(), 100);
    }
}
