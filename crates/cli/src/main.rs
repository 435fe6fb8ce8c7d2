//! `shunt`: the whole of Shuntyard in one program.

mod args;
mod client;
mod commands;
mod exit;
mod paths;
mod reference;
mod show;

use std::{env, ffi::OsString, process::ExitCode};

use clap::Parser;

use crate::args::{Args, Command};

/// Hidden sub-command that evaluates workflow files behind walls.
pub(crate) const EVALUATE: &str = "__evaluate";

fn main() -> ExitCode {
    // The children of this program are this program: they must be told apart before any thread.
    let rest: Vec<OsString> = env::args_os().skip(1).collect();
    if rest.first().is_some_and(|first| first == EVALUATE) {
        return shuntyard_script::evaluate_child_main();
    }
    if let Some(code) = shuntyard_agent::hidden_command(&rest) {
        return code;
    }
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("the operating system gives threads");
    let result = runtime.block_on(run(args));
    // Blocking reads of standard input must not hold up the end.
    runtime.shutdown_background();
    exit::code(result)
}

async fn run(args: Args) -> exit::Result {
    show::log(args.verbose);
    // Both TLS providers could be linked; the choice is explicit.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    match args.command {
        Command::Dev(args) => commands::dev::run(args).await,
        Command::Serve(args) => commands::serve::run(args).await,
        Command::Agent(args) => commands::agent::run(args).await,
        Command::Run(args) => commands::run::run(args).await,
        Command::Init(args) => commands::init::run(&args),
        Command::Compile(args) => commands::compile::run(args).await,
        Command::Preview(args) => commands::preview::run(args).await,
        Command::Runs(args) => commands::runs::run(args).await,
        Command::Queue(args) => commands::queue::run(args).await,
        Command::Admin(args) => commands::admin::run(args).await,
        Command::Login(args) => commands::login::run(args).await,
        Command::Reference { page } => reference::print(page),
    }
}
