//! `shunt runs logs`

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use anyhow::Context;
use futures_util::StreamExt;
use shuntyard_protocol::{
    JobId,
    api::{Job, JobDetail, LogLines, RunDetail},
};

use crate::{
    client::Client,
    exit::{FAILED, Failure, Result, usage},
    show::{
        self,
        live::{self, Screen, Update},
        printed, style,
    },
};

/// How a log is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Under the names of its jobs and steps.
    Plain,
    /// The same, each line with its time.
    Timestamps,
    /// The bytes alone.
    Raw,
}

/// Prints what the jobs of a run wrote, or those that `job` names, and says if that is not all.
pub(super) async fn print(client: &Client, run: &str, job: Option<&str>, form: Form) -> Result {
    let detail: RunDetail = client.get(&format!("/runs/{run}"), &[]).await?;
    let jobs = chosen(&detail, job, form)?;
    // Before it is read: what comes meanwhile may be printed or not.
    let missing = missing(client, &jobs).await?;
    match (form, jobs.as_slice()) {
        (Form::Raw, [job]) => copy(client, job, None).await?,
        _ => print_jobs(client, &jobs, form).await?,
    }
    say(&missing);
    Ok(())
}

/// The same until the run has ended, as it comes. Ends as the run does.
pub(super) async fn follow(client: &Client, run: &str, job: Option<&str>, form: Form) -> Result {
    let detail: RunDetail = client.get(&format!("/runs/{run}"), &[]).await?;
    let jobs = chosen(&detail, job, form)?;
    let ids: BTreeSet<_> = jobs.iter().map(|job| job.id).collect();
    let last = if form == Form::Raw {
        live::each_update(client, run, |update| match update {
            Update::Log(chunk) if ids.contains(&chunk.job) => printed(write(&chunk.bytes)),
            Update::Log(_) | Update::Run(_) => Ok(()),
        })
        .await?
    } else {
        show_live(client, run, &ids, form).await?
    };
    say(&missing(client, &jobs).await?);
    if last.run.state == "success" { Ok(()) } else { Err(Failure::Said(FAILED)) }
}

async fn show_live(
    client: &Client,
    run: &str,
    ids: &BTreeSet<JobId>,
    form: Form,
) -> Result<RunDetail> {
    let mut screen = Screen::plain(form == Form::Timestamps);
    let mut last = live::each_update(client, run, |mut update| {
        match &mut update {
            Update::Run(detail) => detail.jobs.retain(|job| ids.contains(&job.id)),
            Update::Log(chunk) if ids.contains(&chunk.job) => {}
            Update::Log(_) => return Ok(()),
        }
        printed(screen.update(update))
    })
    .await?;
    last.jobs.retain(|job| ids.contains(&job.id));
    printed(screen.finish(&last))?;
    Ok(last)
}

/// The jobs that are meant.
fn chosen<'a>(run: &'a RunDetail, job: Option<&str>, form: Form) -> Result<Vec<&'a Job>> {
    let named =
        |name: &str, job: &Job| name == job.name || name == job.title || name == job.id.to_string();
    let wanted = run.jobs.iter().filter(|item| job.is_none_or(|name| named(name, item)));
    let jobs: Vec<_> = wanted.collect();
    if jobs.is_empty() {
        let names: Vec<_> = run.jobs.iter().map(|job| job.title.as_str()).collect();
        return Err(usage(format!("there is no such job; there are {}", names.join(", "))));
    }
    if form == Form::Raw && jobs.len() > 1 {
        return Err(usage("--raw prints one job: choose it with --job"));
    }
    Ok(jobs)
}

/// Why what is stored now is not all that these jobs have to say.
async fn missing(client: &Client, jobs: &[&Job]) -> Result<Vec<String>> {
    let (mut open, mut missing) = (Vec::new(), Vec::new());
    for job in jobs {
        let JobDetail { job, logs, .. } = client.get(&format!("/jobs/{}", job.id), &[]).await?;
        if logs.iter().any(|stream| stream.torn) {
            let title = &job.title;
            missing.push(format!("the last lines of {title} are lost: its supervisor died"));
        }
        if job.ended_at.is_none() {
            open.push(job.title);
        } else if !logs.iter().all(|stream| stream.complete) {
            missing.push(format!("the agent of {} has not sent all of it yet", job.title));
        }
    }
    match open.as_slice() {
        [] => {}
        [one] => missing.push(format!("{one} has not ended; --follow waits for it")),
        more => missing.push(format!("{} have not ended; --follow waits", more.join(", "))),
    }
    Ok(missing)
}

fn say(missing: &[String]) {
    for why in missing {
        anstream::eprintln!("{}incomplete:{} {why}", style::WARNING, anstyle::Reset);
    }
}

async fn print_jobs(client: &Client, jobs: &[&Job], form: Form) -> Result {
    let title = |style, title: &str| {
        printed(writeln!(anstream::stdout(), "{style}{title}{}", anstyle::Reset))
    };
    for job in jobs {
        title(style::BOLD, &job.title)?;
        print_stream(client, job, 0, form).await?;
        for step in job.steps.iter().filter(|step| step.state != "pending") {
            title(style::DIM, &step.name)?;
            print_stream(client, job, step.index + 1, form).await?;
        }
    }
    Ok(())
}

async fn print_stream(client: &Client, job: &Job, stream: u32, form: Form) -> Result {
    if form != Form::Timestamps {
        return copy(client, job, Some(stream)).await;
    }
    let (mut from, dim) = (0, style::DIM);
    loop {
        let query = [("stream", stream.to_string()), ("from", from.to_string())];
        let slice: LogLines = client.get(&format!("/jobs/{}/logs", job.id), &query).await?;
        for line in &slice.lines {
            let (at, text) = (show::time(line.at), &line.text);
            printed(writeln!(anstream::stdout(), "{dim}{at}{dim:#} {text}"))?;
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
    while let Some(chunk) = bytes.next().await {
        printed(write(&chunk.context("read the log")?))?;
    }
    Ok(())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
