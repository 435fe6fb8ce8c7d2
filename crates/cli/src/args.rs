//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Parser, Subcommand, ValueEnum};

/// A CI server in one program.
#[derive(Parser)]
#[command(name = "shunt", version, max_term_width = 100, propagate_version = true)]
pub(crate) struct Args {
    /// Show what is going on inside.
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

// Which server a client command talks to. Not a doc comment: it would describe every command that has
// none of its own.
#[derive(clap::Args, Clone)]
pub(crate) struct Connect {
    /// Address of the server. Default: that of `shunt login`, or the one `shunt dev` of this user that
    /// runs.
    #[arg(long = "url", alias = "server", env = "SHUNT_URL", help_heading = "Server")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: Credentials,
}

// The same for a command whose `--url` is the code's.
#[derive(clap::Args, Clone)]
pub(crate) struct ConnectServer {
    /// Address of the server. Default: that of `shunt login`, or the one `shunt dev` of this user that
    /// runs.
    #[arg(long, env = "SHUNT_URL", help_heading = "Server")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: Credentials,
}

impl From<ConnectServer> for Connect {
    fn from(connect: ConnectServer) -> Self {
        Self { server: connect.server, credentials: connect.credentials }
    }
}

#[derive(clap::Args, Clone)]
pub(crate) struct Credentials {
    /// File with the token, `-` for standard input; the variable `SHUNT_TOKEN` holds the token itself.
    #[arg(long = "token-file", alias = "token", value_name = "FILE", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
    /// Data folder of a server that runs on this machine.
    #[arg(long = "data", value_name = "DIR", env = "SHUNT_DATA", help_heading = "Server")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a whole CI server for a repository on this machine and run its workflows.
    Dev(Dev),
    /// Start a coordinator.
    Serve(Serve),
    /// Start an agent that runs jobs for a coordinator.
    Agent(Agent),
    /// Run workflows on this machine, with the working tree as it is.
    Run(Run),
    /// Put a first workflow and the editor's types into a repository.
    Init(Init),
    /// Check the workflow files and print the plan.
    Compile(Compile),
    /// Show which workflows an event would start, and why.
    Preview(Preview),
    /// List, show, follow, cancel and repeat runs.
    Runs(Runs),
    /// Show what waits, and why.
    Queue(Queue),
    /// Sources, agents and tokens.
    Admin(Admin),
    /// Keep the address and token of a server for later commands.
    Login(Login),
    /// Print a reference page of the documentation.
    #[command(hide = true)]
    Reference { page: Page },
}

/// A page that is made from the code.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Page {
    Cli,
    Config,
    Openapi,
}

#[derive(clap::Args)]
pub(crate) struct Dev {
    /// Repository or folder with `.shuntyard/workflows`.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
    /// End with the run's result: 0 success, 1 failed, 2 plan or usage error.
    #[arg(long)]
    pub(crate) once: bool,
    /// Where to listen; port 0 picks one. Default: 127.0.0.1:8484 or the next free port.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Jobs at once. Default: the number of processors.
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Print one event a line, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where everything is kept. Default: a folder of the user's data directory named after the path.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct Serve {
    /// Configuration file.
    #[arg(long, short, value_name = "FILE", env = "SHUNT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Where everything local is kept.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where to listen; port 0 picks one. Default: 127.0.0.1:8484.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// File with the address of the PostgreSQL database. Default: an embedded file.
    #[arg(long, value_name = "FILE")]
    pub(crate) database_url_file: Option<PathBuf>,
    /// How people and forges reach this server.
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// PEM file with the certificate chain.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Network of the reverse proxy that ends TLS.
    #[arg(long, value_name = "CIDR")]
    pub(crate) behind_proxy: Vec<ipnet::IpNet>,
    /// Also run jobs here.
    #[arg(long)]
    pub(crate) with_agent: bool,
    /// Jobs at once, with `--with-agent`. Default: the number of processors.
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// User that commands run as, with `--with-agent`.
    #[arg(long, value_name = "USER")]
    pub(crate) run_as: Option<String>,
}

#[derive(clap::Args)]
pub(crate) struct Agent {
    /// Address of a coordinator; several for a cluster.
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) coordinator: Vec<String>,
    /// Where the agent keeps its key, spools and workspaces.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// File with the enrolment token, `-` for standard input. Needed once.
    #[arg(long, value_name = "FILE")]
    pub(crate) enrol_token_file: Option<PathBuf>,
    /// Name for people. Default: the host's.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// A label; may be given several times.
    #[arg(long)]
    pub(crate) label: Vec<String>,
    /// Jobs at once. Default: 1.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) slots: u32,
    /// User that commands run as.
    #[arg(long, value_name = "USER")]
    pub(crate) run_as: Option<String>,
    /// Name of a host variable that commands may see; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,
    /// PEM file with a further authority for TLS.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Log of one job, in MiB, that is kept here while no coordinator takes it; then the job waits.
    #[arg(long, value_name = "MIB", default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(2..=1024 * 1024))]
    pub(crate) spool_mib: u64,
}

// The repository that a command is about.
#[derive(clap::Args)]
pub(crate) struct Repository {
    /// Repository to use instead of the current folder.
    #[arg(short = 'C', value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Run {
    /// Workflow to run. Default: those that a push of the current branch starts.
    pub(crate) workflow: Option<String>,
    #[command(flatten)]
    pub(crate) repository: Repository,
    /// Print one event a line, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args)]
pub(crate) struct Init {
    /// Repository to use instead of the current folder.
    #[arg(default_value = ".")]
    pub(crate) path: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Compile {
    #[command(flatten)]
    pub(crate) repository: Repository,
    /// Print the plan as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventKind {
    Push,
    Tag,
    Pr,
}

#[derive(clap::Args)]
pub(crate) struct Preview {
    /// What happened.
    pub(crate) event: EventKind,
    #[command(flatten)]
    pub(crate) repository: Repository,
    /// Branch that was pushed.
    #[arg(long, default_value = "main")]
    pub(crate) branch: String,
    /// Tag that was pushed.
    #[arg(long, default_value = "v1.0.0")]
    pub(crate) tag: String,
    /// Branch that the pull request wants to change.
    #[arg(long, default_value = "main")]
    pub(crate) target: String,
    /// Branch that the pull request comes from.
    #[arg(long, default_value = "topic")]
    pub(crate) source: String,
    /// Changed files, separated by commas. Default: not known.
    #[arg(long, value_delimiter = ',')]
    pub(crate) files: Option<Vec<String>>,
    /// Workflows that must match, `!name` for those that must not; else exit code 1.
    #[arg(long, value_delimiter = ',')]
    pub(crate) expect: Vec<String>,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args)]
pub(crate) struct Runs {
    #[command(subcommand)]
    pub(crate) command: RunsCommand,
}

#[derive(Subcommand)]
pub(crate) enum RunsCommand {
    /// Newest first.
    List {
        #[command(flatten)]
        connect: Connect,
        #[arg(long)]
        source: Option<String>,
        #[arg(long)]
        workflow: Option<String>,
        #[arg(long)]
        branch: Option<String>,
        /// pending, running, cancelling, success, failed, `timed_out`, cancelled, skipped or lost.
        #[arg(long)]
        state: Option<String>,
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// Where the page before ended: its `next`.
        #[arg(long)]
        cursor: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// One run with its jobs and steps.
    Show {
        #[command(flatten)]
        connect: Connect,
        run: String,
        #[arg(long)]
        json: bool,
    },
    /// What its jobs printed.
    Logs {
        #[command(flatten)]
        connect: Connect,
        run: String,
        /// Go on until the run has ended, and end with its result.
        #[arg(long, short)]
        follow: bool,
        /// Only this job.
        #[arg(long)]
        job: Option<String>,
        /// The bytes as they were written, without prefixes; needs `--job` if there are several.
        #[arg(long, conflicts_with = "timestamps")]
        raw: bool,
        /// With the time at which each line was printed.
        #[arg(long)]
        timestamps: bool,
    },
    /// Ask its commands to stop.
    Cancel {
        #[command(flatten)]
        connect: Connect,
        run: String,
        /// Kill them at once.
        #[arg(long)]
        force: bool,
    },
    /// Run it again.
    Rerun {
        #[command(flatten)]
        connect: Connect,
        run: String,
        /// Only what did not succeed, and what needs it.
        #[arg(long)]
        failed: bool,
    },
    /// Start a workflow by hand.
    Start {
        #[command(flatten)]
        connect: Connect,
        workflow: String,
        #[arg(long)]
        source: String,
        /// Branch, tag or commit. Default: the head of the default branch.
        #[arg(long = "ref")]
        ref_name: Option<String>,
    },
}

#[derive(clap::Args)]
pub(crate) struct Queue {
    #[command(flatten)]
    pub(crate) connect: Connect,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args)]
pub(crate) struct Admin {
    #[command(subcommand)]
    pub(crate) command: AdminCommand,
}

#[derive(Subcommand)]
pub(crate) enum AdminCommand {
    /// API tokens.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Agents and their enrolment.
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Where events and code come from.
    #[command(subcommand)]
    Source(SourceCommand),
}

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it once. On the machine of a server, `--data DIR` is enough, whether or
    /// not the server runs.
    Create {
        #[command(flatten)]
        connect: Connect,
        /// Configuration file of the server, to make the token in its database.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "token_file"])]
        config: Option<PathBuf>,
        name: String,
        /// viewer, operator or admin.
        #[arg(long, default_value = "viewer")]
        role: String,
        #[arg(long)]
        org: Option<String>,
        /// Days until it expires.
        #[arg(long, default_value_t = 90)]
        days: u64,
        #[arg(long)]
        json: bool,
    },
    /// Tokens, without their secrets.
    List {
        #[command(flatten)]
        connect: Connect,
        #[arg(long)]
        json: bool,
    },
    /// Refuse a token from now on.
    Revoke {
        #[command(flatten)]
        connect: Connect,
        id: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    /// Make an enrolment token and print it once.
    CreateToken {
        #[command(flatten)]
        connect: Connect,
        #[arg(default_value = "agent")]
        name: String,
        #[arg(long)]
        org: Option<String>,
        /// Agents that it admits.
        #[arg(long, default_value_t = 1)]
        uses: u32,
        /// Minutes until it expires.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        #[arg(long)]
        json: bool,
    },
    /// Agents, and how many jobs each runs.
    List {
        #[command(flatten)]
        connect: Connect,
        #[arg(long)]
        json: bool,
    },
    /// Offer an agent nothing more, until `resume`.
    Drain {
        #[command(flatten)]
        connect: Connect,
        id: String,
    },
    /// Offer jobs to a drained agent again.
    Resume {
        #[command(flatten)]
        connect: Connect,
        id: String,
    },
    /// Refuse an agent's key from now on.
    Revoke {
        #[command(flatten)]
        connect: Connect,
        id: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SourceKind {
    Github,
    Generic,
    Local,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Forks {
    /// Pull requests from other repositories start nothing.
    Ignore,
    /// They start runs: strangers then run code on your agents.
    Run,
}

#[derive(Subcommand)]
pub(crate) enum SourceCommand {
    /// Add a source.
    Add {
        #[command(flatten)]
        connect: ConnectServer,
        kind: SourceKind,
        name: String,
        /// Where the code is: https, ssh or file; a path for a local source.
        #[arg(long, value_name = "URL")]
        url: String,
        /// File with the webhook secret, `-` for standard input.
        #[arg(long, value_name = "FILE")]
        webhook_secret_file: Option<PathBuf>,
        #[arg(long)]
        org: Option<String>,
        /// A label of its jobs without `runsOn`; may be given several times.
        #[arg(long)]
        label: Vec<String>,
    },
    /// Sources of the org, or of all.
    List {
        #[command(flatten)]
        connect: Connect,
        #[arg(long)]
        json: bool,
    },
    /// Change a source.
    Set {
        #[command(flatten)]
        connect: Connect,
        name: String,
        #[arg(long)]
        org: Option<String>,
        /// What pull requests from other repositories do. With `run`, strangers run code of theirs
        /// on your agents.
        #[arg(long)]
        forks: Option<Forks>,
        /// File with the new webhook secret, `-` for standard input.
        #[arg(long, value_name = "FILE")]
        webhook_secret_file: Option<PathBuf>,
    },
    /// Remove a source; its runs stay.
    Remove {
        #[command(flatten)]
        connect: Connect,
        name: String,
        #[arg(long)]
        org: Option<String>,
    },
    /// Its deliveries, newest first.
    Deliveries {
        #[command(flatten)]
        connect: Connect,
        name: String,
        #[arg(long)]
        org: Option<String>,
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
pub(crate) struct Login {
    /// Address of the server.
    pub(crate) server: String,
    /// File with the token. Default: standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) with_token_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// A line for each command below, with its full name.
    fn lines(command: &clap::Command, name: &str, found: &mut Vec<(String, String)>) {
        for inner in command.get_subcommands() {
            let name = format!("{name} {}", inner.get_name());
            let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
            lines(inner, &name, found);
            found.push((about, name));
        }
    }

    #[test]
    fn each_command_has_a_line_of_its_own() {
        let mut found = Vec::new();
        lines(&Args::command(), "shunt", &mut found);
        found.sort();
        for pair in found.windows(2) {
            assert_ne!(pair[0].0, pair[1].0, "{} and {}", pair[0].1, pair[1].1);
        }
        for (about, name) in found {
            assert!(!about.is_empty(), "{name}");
        }
    }
}
