//! Planning the files of a folder, for the commands that need no server.

use std::path::Path;

use anyhow::Context;
use shuntyard_protocol::{Timestamp, plan::Plan};
use shuntyard_script::{Bundle, EvaluateError, Launcher, Require};
use shuntyard_server::env::Env;

use crate::{
    EVALUATE,
    exit::{Failure, Result, usage},
};

const NO_WORKFLOW: &str = "no file in .shuntyard/workflows/ exports a workflow; write \
    `export default workflow('ci', { … })`";

/// How to start the child that evaluates workflow files.
pub(crate) fn launcher() -> anyhow::Result<Launcher> {
    let program = std::env::current_exe().context("find this program")?;
    Ok(Launcher { program, args: vec![EVALUATE.into()] })
}

/// The checked plan of a working tree. A mistake in the files is a usage error.
pub(crate) async fn of_folder(folder: &Path) -> Result<Plan> {
    let folder =
        folder.canonicalize().map_err(|error| usage(format!("{}: {error}", folder.display())))?;
    let bundle = Bundle::from_dir(&folder).map_err(usage)?;
    if bundle.workflow_files().is_empty() {
        return Err(usage(format!(
            "{} has no workflow files in .shuntyard/workflows/; `shunt init` makes a first one",
            folder.display()
        )));
    }
    let now: Timestamp = Env::system().now();
    let evaluated = shuntyard_script::evaluate(&launcher()?, &bundle, now, Require::Nothing).await;
    let evaluated = evaluated.map_err(|error| match error {
        EvaluateError::Faults(_) | EvaluateError::Died { .. } | EvaluateError::TimedOut => {
            usage(error)
        }
        EvaluateError::MissingLayers(_)
        | EvaluateError::Spawn { .. }
        | EvaluateError::Link(_)
        | EvaluateError::Answer(_) => Failure::Error(error.into()),
    })?;
    if evaluated.plan.workflows.is_empty() {
        return Err(usage(NO_WORKFLOW));
    }
    let faults = shuntyard_core::plan::check(&evaluated.plan);
    if faults.is_empty() {
        return Ok(evaluated.plan);
    }
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    Err(usage(faults.join("\n")))
}
