//! Everything that the parts of a coordinator share.

use std::sync::Arc;

use shuntyard_protocol::InstanceId;
use shuntyard_script::Launcher;
use shuntyard_store::{Source, Store};
use tokio::sync::mpsc;

use crate::{
    config::Config,
    dispatch::Classes,
    env::Env,
    git::Git,
    http::hooks::Unverified,
    link::{Agents, Handshakes},
    metrics::Metrics,
    planner::PlanCache,
    secrets::MasterKey,
    sources::SourceSecrets,
    starts::Wanted,
    tasks::{Poke, Tasks},
};

/// One coordinator process.
pub struct App {
    pub config: Config,
    pub env: Env,
    pub store: Store,
    pub tasks: Tasks,
    pub key: MasterKey,
    pub git: Git,
    /// How to start the child that evaluates workflow files.
    pub launcher: Launcher,
    pub instance: InstanceId,
    pub cluster: String,
    /// Base of every link that is shown.
    pub url: String,
    pub agents: Agents,
    pub plans: PlanCache,
    pub classes: Classes,
    pub(crate) starts: mpsc::Sender<Wanted>,
    pub pokes: Pokes,
    pub unverified: Unverified,
    pub(crate) handshakes: Handshakes,
    pub metrics: Metrics,
}

/// Hints to the reconcilers. Losing one costs at most a period.
#[derive(Clone, Default)]
pub struct Pokes {
    /// A delivery came in.
    pub inbox: Poke,
    /// A job became ready, or an agent has room.
    pub dispatch: Poke,
    /// Somebody left a gate, or has to make room there.
    pub gates: Poke,
    /// Local sources should be looked at.
    pub watch: Poke,
}

impl App {
    pub fn source_secrets(&self, source: &Source) -> anyhow::Result<SourceSecrets> {
        SourceSecrets::open(&self.key, source)
    }

    /// Link to a run.
    pub fn run_url(&self, run: shuntyard_protocol::RunId) -> String {
        format!("{}/runs/{run}", self.url)
    }
}

/// How handlers and tasks hold it.
pub type Shared = Arc<App>;
