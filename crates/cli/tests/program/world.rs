//! A server with its database, a forge and agents.

use std::{fs, io::Write, path::PathBuf, process::Stdio};

use serde_json::{Value, json};
use shuntyard_sim::forge::{Forge, Repository};
use shuntyard_store::testing::Postgres;

use crate::{
    machine::{Machine, Process},
    web::Api,
};

/// Secret of every source's webhooks.
pub(crate) const SECRET: &str = "what only the forge knows";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Db {
    Sqlite,
    Postgres,
}

/// Dropped from the top down: first those who use, then what they use.
pub(crate) struct World {
    pub(crate) agents: Vec<Process>,
    pub(crate) server: Process,
    pub(crate) api: Api,
    pub(crate) forge: Forge,
    pub(crate) machine: Machine,
    arguments: Vec<String>,
    _postgres: Option<Postgres>,
}

impl World {
    pub(crate) async fn new(db: Db) -> Self {
        Self::with(db, &[]).await
    }

    /// With a configuration file.
    pub(crate) async fn configured(toml: &str) -> Self {
        let machine = Machine::new();
        let file = machine.path("shunt.toml");
        fs::write(&file, toml).unwrap();
        Self::on(machine, Db::Sqlite, &["--config", file.to_str().unwrap()]).await
    }

    /// A server with further arguments.
    pub(crate) async fn with(db: Db, extra: &[&str]) -> Self {
        Self::on(Machine::new(), db, extra).await
    }

    /// A server on a machine with further arguments.
    pub(crate) async fn on(machine: Machine, db: Db, extra: &[&str]) -> Self {
        let mut arguments: Vec<_> = extra.iter().map(|&arg| arg.to_owned()).collect();
        let postgres = (db == Db::Postgres).then(|| Postgres::start("program"));
        if let Some(postgres) = &postgres {
            let file = machine.path("database-url");
            fs::write(&file, postgres.database("shunt").await).unwrap();
            arguments.extend(["--database-url-file".into(), file.to_str().unwrap().into()]);
        }
        let (server, api) = serve(&machine, "127.0.0.1:0", &arguments).await;
        let forge = Forge::new().unwrap();
        Self { agents: Vec::new(), server, api, forge, machine, arguments, _postgres: postgres }
    }

    /// With one agent that has two slots.
    pub(crate) async fn with_agent(db: Db) -> Self {
        let mut world = Self::new(db).await;
        world.agent("a", &["--slots", "2"]).await;
        world
    }

    /// The coordinator's process once more, whatever becomes of it.
    pub(crate) fn serve(&self) -> Process {
        spawn_server(&self.machine, "127.0.0.1:0", &self.arguments)
    }

    /// Starts the coordinator again where it was.
    pub(crate) async fn start_again(&mut self) {
        let address = self.api.url.strip_prefix("http://").unwrap().to_owned();
        let (server, api) = serve(&self.machine, &address, &self.arguments).await;
        (self.server, self.api) = (server, api);
    }

    /// A new agent, once it is connected; its data folder has its name.
    pub(crate) async fn agent(&mut self, name: &str, extra: &[&str]) {
        let enrol = json!({ "name": name, "kind": "enrol", "org": "default" });
        let token = self.api.new_token(&enrol).await;
        let mut child = self.agent_process(name, extra, Some(&token));
        child.says("connected to").await;
        self.agents.push(child);
    }

    /// Starts an agent again that was there before.
    pub(crate) async fn agent_again(&mut self, name: &str, extra: &[&str]) {
        let mut child = self.agent_process(name, extra, None);
        child.says("connected to").await;
        self.agents.push(child);
    }

    fn agent_process(&self, name: &str, extra: &[&str], token: Option<&str>) -> Process {
        let data = self.machine.path(name);
        let mut args = vec!["agent", "--coordinator", &self.api.url, "--name", name];
        args.extend(["--data", data.to_str().unwrap()]);
        args.extend(extra);
        if token.is_some() {
            args.extend(["--enrol-token-file", "-"]);
        }
        let mut command = self.machine.command(&args);
        if let Some(token) = token {
            // A pipe holds it until the agent reads.
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(token.as_bytes()).unwrap();
            command.stdin(Stdio::from(reader));
        }
        self.machine.spawn(command, name)
    }

    /// A repository that is a source for GitHub's webhooks.
    pub(crate) async fn repository(&self, name: &str) -> Repository {
        let repository = self.forge.repository(name).unwrap();
        let source = json!({
            "name": name, "kind": "github", "url": repository.url(), "webhook_secret": SECRET,
        });
        self.api.post("/sources", &source).await;
        repository
    }

    /// Commits these workflows, delivers the push and returns its runs.
    pub(crate) async fn push(
        &self,
        repository: &Repository,
        files: &[(&str, &str)],
    ) -> Vec<String> {
        let delivery = self.delivered(repository, files).await;
        assert_eq!(delivery["state"], "done", "{delivery}");
        self.api.runs_of(&delivery).await
    }

    /// What came of a push of these files.
    pub(crate) async fn delivered(&self, repository: &Repository, files: &[(&str, &str)]) -> Value {
        let commit = repository.commit("main", files).unwrap();
        let hook = repository.push(&format!("push-{commit}"), "refs/heads/main", None, &commit);
        let (status, answer) = self.api.deliver(repository.name(), Some(SECRET), &hook).await;
        assert_eq!(status, 202, "{answer}");
        self.api.settled(&answer["delivery"]).await
    }

    /// One run of one workflow `ci` with these jobs, which are the source between the brackets.
    pub(crate) async fn run(&self, jobs: &str) -> String {
        let repository = self.repository("web").await;
        let runs = self.push(&repository, &[(CI, &ci(jobs))]).await;
        assert_eq!(runs.len(), 1);
        runs[0].clone()
    }

    /// The data folder of the server.
    pub(crate) fn data(&self) -> PathBuf {
        self.machine.path("server")
    }

    /// `shunt` with this server's data folder behind the arguments.
    pub(crate) async fn shunt(&self, args: &[&str]) -> crate::machine::Done {
        let data = self.data();
        let args = [args, &["--data", data.to_str().unwrap()]].concat();
        self.machine.run(&args).await
    }
}

/// Where workflows of tests are.
pub(crate) const CI: &str = ".shuntyard/workflows/ci.ts";

/// A workflow file with these jobs, which a push starts.
pub(crate) fn ci(jobs: &str) -> String {
    format!(
        "import {{ job, parallel, pr, push, sh, step, workflow }} from 'shuntyard';\n\
         export default workflow('ci', {{ on: [push({{ branches: 'main' }}), pr()], jobs: [{jobs}] }});\n"
    )
}

fn spawn_server(machine: &Machine, listen: &str, arguments: &[String]) -> Process {
    let data = machine.path("server");
    let mut args = vec!["serve", "--data", data.to_str().unwrap(), "--listen", listen];
    args.extend(arguments.iter().map(String::as_str));
    machine.start(&args)
}

async fn serve(machine: &Machine, listen: &str, arguments: &[String]) -> (Process, Api) {
    let mut server = spawn_server(machine, listen, arguments);
    let data = machine.path("server");
    server.says("serving ").await;
    let endpoint = fs::read(data.join("endpoint.json")).unwrap();
    let endpoint: Value = serde_json::from_slice(&endpoint).unwrap();
    assert_eq!(endpoint["pid"], server.id());
    let token = fs::read_to_string(data.join("admin-token")).unwrap();
    (server, Api::new(endpoint["url"].as_str().unwrap(), &token))
}
