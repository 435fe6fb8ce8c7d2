//! `shunt run`: the working tree as it is, on this machine, leaving nothing behind.

use anyhow::Context;
use serde_json::json;
use shuntyard_protocol::api::{Delivery, NewSource, Source, StartRequest};
use shuntyard_server::config::Config;

use super::{
    dev::{runs_of, say_outcome, settled},
    plan,
    server::{LocalAgent, Server, interrupted, plan_error},
};
use crate::{
    args::Run,
    client::Client,
    exit::{FAILED, Failure, Result, usage},
    paths,
    show::live::{self, Screen, Style},
};

pub(crate) async fn run(args: Run) -> Result {
    let path = args.repository.directory.canonicalize();
    let path = path.map_err(|e| usage(format!("{}: {e}", args.repository.directory.display())))?;
    // Mistakes in the files are said before anything starts.
    let planned = plan::of_folder(&path).await?;
    if let Some(wanted) = &args.workflow
        && !planned.workflows.iter().any(|workflow| workflow.name == *wanted)
    {
        let names: Vec<_> = planned.workflows.iter().map(|w| w.name.as_str()).collect();
        return Err(usage(format!(
            "there is no workflow '{wanted}'; there are {}",
            names.join(", ")
        )));
    }
    let folder =
        tempfile::Builder::new().prefix("shunt-run-").tempdir().context("make a folder")?;
    let mut config = Config { data_dir: folder.path().to_path_buf(), ..Config::default() };
    config.listen.set_port(0);
    let mut server = Server::start(config, false).await?;
    server.start_agent(LocalAgent { slots: None, run_as: None }).await?;
    let mut screen = Screen::new(Style::choose(args.json));
    let (client, name) = (server.client.clone(), paths::source_name(&path));
    let (result, interrupt) = tokio::select! {
        result = once(&client, &path, &name, args.workflow, &mut screen) => (result, None),
        error = server.agent_failed() => (Err(Failure::Error(error)), None),
        interrupt = interrupted() => (Ok(()), Some(interrupt?)),
    };
    let stopped = server.stop(interrupt).await;
    result.and(stopped)
}

async fn once(
    client: &Client,
    path: &std::path::Path,
    name: &str,
    workflow: Option<String>,
    screen: &mut Screen,
) -> Result {
    let source = NewSource {
        name: name.to_owned(),
        kind: "local".to_owned(),
        url: path.to_str().context("the path is not UTF-8")?.to_owned(),
        org: Some("default".to_owned()),
        webhook_secret: None,
        forks: None,
        labels: Vec::new(),
        work_tree: true,
    };
    client.post::<Source>("/sources", &source).await?;
    let delivery: Delivery = match workflow {
        Some(workflow) => {
            let start =
                StartRequest { source: name.to_owned(), workflow, org: None, ref_name: None };
            client.post("/runs", &start).await?
        }
        None => client.post(&format!("/sources/{name}/push"), &json!({})).await?,
    };
    let delivery = settled(client, delivery).await?;
    if delivery.state != "done" {
        say_outcome(&delivery, screen);
        return Err(plan_error());
    }
    let mut failed = false;
    for run in runs_of(client, &delivery, name).await? {
        failed |= live::follow(client, &run.to_string(), screen).await?.run.state != "success";
    }
    if failed { Err(Failure::Said(FAILED)) } else { Ok(()) }
}
