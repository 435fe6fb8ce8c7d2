//! `shunt runs`

use std::io::Write;

use anyhow::Context;
use futures_util::StreamExt;
use reqwest::Method;
use shuntyard_protocol::api::{
    CancelRequest, Delivery, Job, LogLines, Page, RerunRequest, Run, RunDetail, StartRequest,
};

use super::dev::{runs_of, settled};
use crate::{
    args::{Connect, Runs, RunsCommand},
    client::Client,
    exit::{FAILED, Failure, Result, usage},
    show::{
        self,
        live::{self, Screen, Style},
        style, table,
    },
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
        RunsCommand::Logs { connect, run, follow: true, .. } => {
            follow(&Client::connect(&connect)?, &run).await
        }
        RunsCommand::Logs { connect, run, job, raw, timestamps, .. } => {
            let form = match (raw, timestamps) {
                (true, _) => Form::Raw,
                (false, true) => Form::Timestamps,
                (false, false) => Form::Plain,
            };
            logs(&Client::connect(&connect)?, &run, job.as_deref(), form).await
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
        let time = show::between(job.started_at, job.ended_at);
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

/// How a log is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Under the names of its jobs and steps.
    Plain,
    /// The same, each line with its time.
    Timestamps,
    /// The bytes alone.
    Raw,
}

async fn follow(client: &Client, run: &str) -> Result {
    let mut screen = Screen::new(Style::Plain);
    let last = live::follow(client, run, &mut screen).await?;
    if last.run.state == "success" { Ok(()) } else { Err(Failure::Said(FAILED)) }
}

async fn logs(client: &Client, run: &str, job: Option<&str>, form: Form) -> Result {
    let detail: RunDetail = client.get(&format!("/runs/{run}"), &[]).await?;
    let named =
        |name: &str, job: &Job| name == job.name || name == job.title || name == job.id.to_string();
    let wanted = detail.jobs.iter().filter(|item| job.is_none_or(|name| named(name, item)));
    let jobs: Vec<_> = wanted.collect();
    if jobs.is_empty() {
        let names: Vec<_> = detail.jobs.iter().map(|job| job.title.as_str()).collect();
        return Err(usage(format!("there is no such job; there are {}", names.join(", "))));
    }
    if form == Form::Raw {
        let [job] = jobs.as_slice() else {
            return Err(usage("--raw prints one job: choose it with --job"));
        };
        return copy(client, job, None).await;
    }
    for job in jobs {
        anstream::println!("{}{}{}", style::BOLD, job.title, anstyle::Reset);
        print(client, job, 0, form).await?;
        for step in job.steps.iter().filter(|step| step.state != "pending") {
            anstream::println!("{}{}{}", style::DIM, step.name, anstyle::Reset);
            print(client, job, step.index + 1, form).await?;
        }
    }
    Ok(())
}

async fn print(client: &Client, job: &Job, stream: u32, form: Form) -> Result {
    if form != Form::Timestamps {
        return copy(client, job, Some(stream)).await;
    }
    let mut from = 0;
    loop {
        let query = [("stream", stream.to_string()), ("from", from.to_string())];
        let slice: LogLines = client.get(&format!("/jobs/{}/logs", job.id), &query).await?;
        for line in &slice.lines {
            anstream::println!(
                "{}{}{} {}",
                style::DIM,
                show::time(line.at),
                anstyle::Reset,
                line.text
            );
        }
        if slice.next == from {
            return Ok(());
        }
        from = slice.next;
    }
}

/// Copies a log to the output, byte by byte as it is.
async fn copy(client: &Client, job: &Job, stream: Option<u32>) -> Result {
    let query: Vec<_> = stream.map(|stream| ("stream", stream.to_string())).into_iter().collect();
    let response = client.bytes(&format!("/jobs/{}/logs/raw", job.id), &query).await?;
    let mut bytes = Box::pin(response.bytes_stream());
    let mut out = std::io::stdout().lock();
    while let Some(chunk) = bytes.next().await {
        out.write_all(&chunk.context("read the log")?).context("print the log")?;
    }
    Ok(out.flush()?)
}
