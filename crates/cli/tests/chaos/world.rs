//! A coordinator with its database, four agents behind a proxy, and a repository whose pushes start
//! runs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use shuntyard_sim::{
    chaos::proxy::Proxy,
    forge::{Forge, Repository},
};
use shuntyard_store::testing::Postgres;

use crate::{
    api::{Api, SECRET},
    processes::{Service, attempts, signal, supervisors},
};

pub(crate) const AGENTS: usize = 4;
/// The release of [`TIMERS`].
pub(crate) const RELEASE: Duration = Duration::from_secs(6);
/// Short, so that what happens after a release happens often.
pub(crate) const TIMERS: &str = "[timers]\nrenew = '400ms'\noverdue = '1500ms'\nrelease = '6s'\n\
    fence_term = '3s'\nfence_kill = '1500ms'\noffer = '2s'\nreservation = '5s'\n";
/// Name of the source.
pub(crate) const SOURCE: &str = "web";
/// Time for a process to be ready.
const START_TIMEOUT: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Db {
    Sqlite,
    Postgres,
}

/// Dropped from the top down: first those who use, then what they use.
pub(crate) struct World {
    pub(crate) agents: Vec<Service>,
    pub(crate) coordinator: Service,
    pub(crate) proxy: Proxy,
    pub(crate) api: Api,
    pub(crate) repository: Repository,
    pub(crate) postgres: Option<Postgres>,
    _forge: Forge,
    folder: Folder,
}

/// A temporary folder. Supervisors in it end with it.
struct Folder(tempfile::TempDir);

impl World {
    /// Starts everything. `slots`: of each agent; `settings`: the coordinator's.
    pub(crate) async fn start(db: Db, agents: usize, slots: u32, settings: &str) -> Self {
        let temp = tempfile::Builder::new().prefix("shunt-chaos-").tempdir().unwrap();
        let folder = Folder(temp);
        fs::create_dir(folder.path("truth")).unwrap();
        let config = folder.path("shunt.toml");
        fs::write(&config, settings).unwrap();
        let data = text(&folder.path("server"));
        let mut args = words("serve --listen 127.0.0.1:0 --data");
        args.extend([data, "--config".into(), text(&config)]);
        let postgres = (db == Db::Postgres).then(|| Postgres::start("chaos"));
        if let Some(postgres) = &postgres {
            let file = folder.path("database-url");
            fs::write(&file, postgres.database("shunt").await).unwrap();
            args.extend(["--database-url-file".into(), text(&file)]);
        }
        let mut first = Service::new(folder.root(), "coordinator", args.clone());
        first.start();
        let url = announced(&folder, &first).await;
        let token = fs::read_to_string(folder.path("server/admin-token")).unwrap();
        // From here on always at the same address, so that everybody finds it again.
        let address = url.strip_prefix("http://").unwrap().to_owned();
        first.kill();
        args[2].clone_from(&address);
        let mut coordinator = Service::new(folder.root(), "coordinator", args);
        coordinator.start();
        let api = Api::new(url, token);
        let proxy = Proxy::start(address.parse().unwrap()).await.unwrap();
        let forge = Forge::new().unwrap();
        let repository = forge.repository(SOURCE).unwrap();
        let source = json!({
            "name": SOURCE, "kind": "github", "url": repository.url(), "webhook_secret": SECRET,
        });
        api.post("/sources", &source).await;
        let mut world = Self {
            agents: Vec::new(),
            coordinator,
            proxy,
            api,
            repository,
            postgres,
            _forge: forge,
            folder,
        };
        for agent in 0..agents {
            world.enrol(agent, slots).await;
        }
        world
    }

    async fn enrol(&mut self, agent: usize, slots: u32) {
        let name = format!("agent{agent}");
        let new = json!({ "name": name, "kind": "enrol", "org": "default" });
        let token = self.api.post("/tokens", &new).await;
        let file = self.folder.path(&format!("{name}-token"));
        fs::write(&file, token["secret"].as_str().unwrap()).unwrap();
        let url = format!("http://{}", self.proxy.address());
        let mut args = words("agent --spool-mib 2 --pass-env CHAOS_TRUTH --coordinator");
        args.extend([url, "--name".into(), name.clone(), "--slots".into(), slots.to_string()]);
        args.extend(["--data".into(), text(&self.agent_data(agent))]);
        args.extend(["--enrol-token-file".into(), text(&file)]);
        let mut service = Service::new(self.folder.root(), &name, args);
        service.start();
        self.agents.push(service);
        until("the agent to connect", START_TIMEOUT, async || {
            let agents = self.api.list("/agents").await;
            (agents.len() > agent && agents.iter().all(|a| a["connected"] == true)).then_some(())
        })
        .await;
    }

    pub(crate) fn agent_data(&self, agent: usize) -> PathBuf {
        self.folder.path(&format!("agent{agent}"))
    }

    pub(crate) fn truth(&self) -> PathBuf {
        self.folder.path("truth")
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.root()
    }

    /// Attempts that the agents have not got rid of.
    pub(crate) fn held(&self) -> Vec<PathBuf> {
        (0..self.agents.len()).flat_map(|agent| attempts(&self.agent_data(agent))).collect()
    }

    /// Keeps everything for whoever looks for what went wrong; returns where.
    pub(crate) fn keep(&mut self) -> PathBuf {
        self.folder.0.disable_cleanup(true);
        self.root().to_owned()
    }
}

impl Folder {
    fn root(&self) -> &Path {
        self.0.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for agent in 0..AGENTS {
            for supervisor in supervisors(&self.path(&format!("agent{agent}"))) {
                signal(supervisor.pid, Signal::KILL);
            }
        }
    }
}

/// Looks until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(LOOK).await;
    }
}

async fn announced(folder: &Folder, coordinator: &Service) -> String {
    let path = folder.path("server/endpoint.json");
    until("the coordinator to start", START_TIMEOUT, async || {
        let log = fs::read_to_string(coordinator.log()).unwrap_or_default();
        let endpoint: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        log.contains("serving ").then(|| endpoint["url"].as_str().unwrap().to_owned())
    })
    .await
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Whether the programs that the commands need are there.
pub(crate) fn check_programs() {
    for program in ["bash", "flock"] {
        let found = Command::new(program).arg("--version").output();
        assert!(found.is_ok(), "the program {program} is needed for this test");
    }
}
