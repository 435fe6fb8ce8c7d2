//! `shunt runs`

mod logs;

use reqwest::Method;
use shuntyard_protocol::api::{
    CancelRequest, Delivery, Page, RerunRequest, Run, RunDetail, StartRequest,
};

use self::logs::Form;
use super::dev::{runs_of, settled};
use crate::{
    args::{Connect, Runs, RunsCommand},
    client::Client,
    exit::{Result, usage},
    show::{self, style, table},
};

pub(crate) async fn run(args: Runs) -> Result {
    match args.command {
        RunsCommand::List { connect, source, workflow, branch, state, limit, cursor, json } => {
            let filters = [
                ("source", source),
                ("workflow", workflow),
                ("branch", branch),
                ("state", state),
                ("limit", Some(limit.to_string())),
                ("cursor", cursor),
            ];
            let query: Vec<_> = filters.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            list(&connect, &query, json).await
        }
        RunsCommand::Show { connect, run, json } => show(&connect, &run, json).await,
        RunsCommand::Logs { connect, run, follow, job, raw, timestamps } => {
            let form = match (raw, timestamps) {
                (true, _) => Form::Raw,
                (false, true) => Form::Timestamps,
                (false, false) => Form::Plain,
            };
            let (client, job) = (Client::connect(&connect)?, job.as_deref());
            if follow {
                logs::follow(&client, &run, job, form).await
            } else {
                logs::print(&client, &run, job, form).await
            }
        }
        RunsCommand::Cancel { connect, run, force } => {
            let request = CancelRequest { force, reason: None };
            let client = Client::connect(&connect)?;
            client.tell(Method::POST, &format!("/runs/{run}/cancel"), &request).await
        }
        RunsCommand::Rerun { connect, run, failed } => {
            let client = Client::connect(&connect)?;
            let made: Run =
                client.post(&format!("/runs/{run}/rerun"), &RerunRequest { failed }).await?;
            anstream::println!("{}", made.id);
            Ok(())
        }
        RunsCommand::Start { connect, workflow, source, ref_name } => {
            let client = Client::connect(&connect)?;
            let request = StartRequest { source: source.clone(), workflow, org: None, ref_name };
            let delivery: Delivery = client.post("/runs", &request).await?;
            let delivery = settled(&client, delivery).await?;
            if delivery.state != "done" {
                return Err(usage(delivery.outcome.unwrap_or_default()));
            }
            for run in runs_of(&client, &delivery, &source).await? {
                anstream::println!("{run}");
            }
            Ok(())
        }
    }
}

async fn list(connect: &Connect, query: &[(&str, String)], json: bool) -> Result {
    let page: Page<Run> = Client::connect(connect)?.get("/runs", query).await?;
    if json {
        anstream::println!("{}", serde_json::to_string_pretty(&page)?);
        return Ok(());
    }
    if page.items.is_empty() {
        anstream::println!("no runs yet");
    }
    let row = |run: &Run| {
        vec![
            style::paint(&run.state),
            run.id.to_string(),
            format!("{} #{}", run.workflow, run.number),
            run.branch.clone().unwrap_or_default(),
            run.commit.chars().take(8).collect(),
            show::between(run.started_at, run.ended_at),
            run.subject.chars().take(50).collect(),
        ]
    };
    let rows: Vec<_> = page.items.iter().map(row).collect();
    if !rows.is_empty() {
        table::print(&["state", "run", "workflow", "branch", "commit", "time", "subject"], &rows);
    }
    if let Some(next) = page.next {
        anstream::println!("{}more: --cursor {next}{}", style::DIM, anstyle::Reset);
    }
    Ok(())
}

async fn show(connect: &Connect, run: &str, json: bool) -> Result {
    let detail: RunDetail = Client::connect(connect)?.get(&format!("/runs/{run}"), &[]).await?;
    if json {
        anstream::println!("{}", serde_json::to_string_pretty(&detail)?);
        return Ok(());
    }
    let run = &detail.run;
    let bold = style::BOLD;
    anstream::println!(
        "{bold}{} #{}{bold:#}  {}",
        run.workflow,
        run.number,
        style::paint(&run.state)
    );
    anstream::println!("{}  {} by {}", run.commit, run.subject, run.author);
    anstream::println!("{}  {}", detail.why, show::time(run.created_at));
    if let Some(waiting) = &detail.waiting {
        anstream::println!("{waiting}");
    }
    for job in &detail.jobs {
        let reason = job.reason.as_deref().map(|r| format!("  {r}")).unwrap_or_default();
        let time = show::time_of(job);
        anstream::println!(
            "\n{}  {}  {time}{reason}  {}",
            style::paint(&job.state),
            job.title,
            job.id
        );
        for step in &job.steps {
            let error = step.error.as_deref().map(|e| format!("  {e}")).unwrap_or_default();
            let time = show::between(step.started_at, step.ended_at);
            anstream::println!("    {}  {}  {time}{error}", style::paint(&step.state), step.name);
        }
    }
    Ok(())
}
