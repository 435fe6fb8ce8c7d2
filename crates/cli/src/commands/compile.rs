//! `shunt compile`

use shuntyard_core::{plan::instances, trigger};

use super::plan;
use crate::{args::Compile, exit::Result, show::style};

pub(crate) async fn run(args: Compile) -> Result {
    let plan = plan::of_folder(&args.repository.directory).await?;
    if args.json {
        anstream::println!("{}", serde_json::to_string_pretty(&plan)?);
        return Ok(());
    }
    let (bold, dim) = (style::BOLD, style::DIM);
    for workflow in &plan.workflows {
        anstream::println!("{bold}{}{bold:#}  {dim}{}{dim:#}", workflow.name, workflow.file);
        for trigger in &workflow.on {
            anstream::println!("  on {}", trigger::describe(trigger));
        }
        for job in &workflow.jobs {
            let needs: Vec<_> = job.needs.iter().map(|need| need.job.as_str()).collect();
            let needs = if needs.is_empty() {
                String::new()
            } else {
                format!("  after {}", needs.join(", "))
            };
            for instance in instances(job)? {
                anstream::println!(
                    "  {}  {dim}{} steps{needs}{dim:#}",
                    instance.title,
                    job.steps.len()
                );
            }
        }
    }
    for warning in &plan.warnings {
        anstream::eprintln!("{}warning:{} {warning}", style::WARNING, anstyle::Reset);
    }
    Ok(())
}
