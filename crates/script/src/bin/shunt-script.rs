//! The crate's bare children, for its tests: `evaluate`, `runner` and `probe`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("evaluate") => shuntyard_script::evaluate_child_main(),
        Some("runner") => shuntyard_script::runner_child_main(),
        #[cfg(target_os = "linux")]
        Some("probe") => shuntyard_script::probe_child_main(),
        _ => ExitCode::from(2),
    }
}
