//! The load generator's command line; `cargo xtask bench` builds and starts it.

use std::{path::PathBuf, process::ExitCode};

use shuntyard_sim::bench::{Setup, dispatch, echo, logs, webhooks};

const USAGE: &str =
    "usage: shunt-bench SHUNT dispatch|run|webhooks|logs sqlite|postgres COUNT AGENTS LINES";

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run()));
    match result {
        Ok(report) => {
            write(std::io::stdout(), &report);
            ExitCode::SUCCESS
        }
        Err(error) => {
            write(std::io::stderr(), &format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn write(mut to: impl std::io::Write, text: &str) {
    // Nobody is left to tell when the output is closed.
    drop(writeln!(to, "{text}"));
}

async fn run() -> anyhow::Result<String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [program, what, database, count, agents, lines] = words.as_slice() else {
        anyhow::bail!(USAGE);
    };
    let setup = Setup { program: PathBuf::from(program), postgres: database == "postgres" };
    let (count, agents, lines) = (count.parse()?, agents.parse()?, lines.parse()?);
    Ok(match what.as_str() {
        "dispatch" => {
            serde_json::to_string_pretty(&dispatch::run(&setup, count, agents, lines).await?)?
        }
        "run" => serde_json::to_string_pretty(&echo::run(&setup, count).await?)?,
        "webhooks" => serde_json::to_string_pretty(&webhooks::run(&setup, count, agents).await?)?,
        "logs" => serde_json::to_string_pretty(&logs::run(&setup, count as u64, agents).await?)?,
        _ => anyhow::bail!(USAGE),
    })
}
