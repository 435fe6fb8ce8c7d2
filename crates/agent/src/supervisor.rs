//! The process that holds one attempt, from `begin` to the last acknowledgement.
//!
//! It outlives its agent. It has one thread: its children belong to the PID namespace and die by
//! the parent-death signal of the very thread that forked them, and a thread could not be started
//! any more once the namespace is there. So nothing in here may need tokio's blocking pool.

mod core;
mod engine;
mod files;
mod job;
mod output;
mod rules;
mod serve;
mod step;

use std::{path::Path, process::ExitCode, rc::Rc};

use shuntyard_protocol::{
    Outcome,
    agent::{AttemptFact, End},
};

use self::core::{Core, Halt, Why};
use crate::{
    attempt::{AttemptDir, Processes, Settings},
    files::{self as disk, FileError},
    identity::ProcessId,
    sandbox::{self, Unit, UnitSpec},
    wire,
};

/// Entry of `__supervise DIR`.
pub(crate) fn main(dir: &Path) -> ExitCode {
    // Out of the agent's session: a terminal's signals and its end are not for us.
    rustix::process::setsid().ok();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    match start(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("supervisor ends: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(dir: &Path) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let dir = AttemptDir::from_root(dir).context("the argument is no attempt's directory")?;
    let settings = dir.settings()?;
    let spec = dir.spec()?;
    let listener = wire::listen(dir.root()).context("cannot listen in the attempt's directory")?;
    let isolated = sandbox::isolate(settings.level);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let core = Core::open(dir, spec, settings)?;
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async move {
        let core = Rc::new(core);
        let serving = tokio::task::spawn_local(serve::serve(core.clone(), listener));
        let ticking = tokio::task::spawn_local(serve::tick(core.clone()));
        match isolated {
            Ok(()) => supervise(&core).await,
            Err(error) => core.abandon(format!("{:#}", anyhow::Error::from(error))),
        }
        core.finished().await;
        serving.abort();
        ticking.abort();
    }));
    Ok(())
}

async fn supervise(core: &Rc<Core>) {
    let unit = match prepare(core).await {
        Ok(unit) => Rc::new(unit),
        Err(error) => return core.abandon(format!("{error:#}")),
    };
    core.ask_to_begin();
    let mut halts = core.halts();
    tokio::select! {
        () = core.begun() => {}
        _ = halts.wait_for(|halt| *halt != Halt::Run) => {}
    }
    if core.key().is_none() {
        unit.kill().await;
        return core.abandon("it was ended before it began".into());
    }
    let report = job::run(core, &unit).await;
    if !unit.kill().await {
        tracing::error!("something of the unit cannot be killed");
    }
    core.rest();
    core.fact(&AttemptFact::Ended(end(core, report))).await;
    core.idle();
}

fn end(core: &Core, report: job::Report) -> End {
    let job::Report { outcome, reason, outputs } = report;
    End { at: core.now(), outcome, reason, outputs, ends: core.ends(), torn: core.torn() }
}

/// Everything before `begin`: nothing of the user runs here.
async fn prepare(core: &Core) -> anyhow::Result<Unit> {
    let Settings { level, hide, user, launcher, data_dir, .. } = &core.settings;
    let me = ProcessId::of(i32::try_from(std::process::id())?)
        .ok_or_else(|| anyhow::anyhow!("this process is not in /proc"))?;
    core.dir.write_processes(&Processes { supervisor: me.clone(), init: None })?;
    make_work(core)?;
    let hide = hide.iter().chain([data_dir]).cloned().collect();
    let unit = Unit::start(UnitSpec {
        level: *level,
        hide,
        keep: Some(core.dir.work().to_owned()),
        user: user.clone(),
        launcher: launcher.clone(),
        mark: core.dir.mark(),
    })
    .await?;
    let init = unit.init_pid().and_then(ProcessId::of);
    core.dir.write_processes(&Processes { supervisor: me, init })?;
    Ok(unit)
}

/// The directory that the commands see: theirs is the workspace, ours is the rest.
fn make_work(core: &Core) -> Result<(), FileError> {
    let workspace = core.dir.workspace();
    disk::remove_tree(core.dir.work())?;
    disk::make_dir(core.dir.work(), 0o755)?;
    disk::make_dir(&core.dir.work().join("steps"), 0o755)?;
    disk::make_dir(&workspace, 0o755)?;
    if let Some(user) = &core.settings.user {
        std::os::unix::fs::chown(&workspace, Some(user.uid), Some(user.gid))
            .map_err(FileError::of("change owner of", &workspace))?;
    }
    Ok(())
}

impl Why {
    /// How an attempt ends that was ended for this reason.
    fn outcome(&self) -> Outcome {
        match self {
            Self::Cancelled { .. } | Self::Unwanted => Outcome::Cancelled,
            Self::TimedOut { .. } => Outcome::TimedOut,
            Self::Fenced => Outcome::Lost,
        }
    }

    fn reason(&self) -> String {
        match self {
            Self::Cancelled { reason } => reason.clone(),
            Self::TimedOut { limit_ms } => {
                let limit = std::time::Duration::from_millis(*limit_ms);
                format!("the job did not end within its limit of {limit:?}")
            }
            Self::Fenced => {
                "no coordinator renewed the lease in time, so the agent ended it".into()
            }
            Self::Unwanted => "it is no longer the current attempt".into(),
        }
    }
}
