//! The configuration: one TOML file, then the environment (`SHUNT_SECTION__KEY`), then flags.
//!
//! An unknown key is refused, with the nearest one that exists. Only this module looks at the
//! environment, and through a function that is handed in.

mod hidden;
mod timers;

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
pub use hidden::Hidden;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use shuntyard_core::timers::Timers;
use toml::{Table, Value};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

/// Variables with our prefix that are no configuration keys.
const OTHER_VARIABLES: [&str; 6] =
    ["SHUNT_URL", "SHUNT_TOKEN", "SHUNT_JOIN_TOKEN", "SHUNT_LOG", "SHUNT_CONFIG", "SHUNT_DATA"];

/// Where a coordinator listens when nothing says otherwise.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:8484";

/// The settings of one coordinator process.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where everything local is kept: the `SQLite` file, log segments, mirrors, the master key.
    #[schema(value_type = String)]
    pub data_dir: PathBuf,
    /// Address of the API. Beyond loopback it needs `tls` or `behind_proxy`.
    #[schema(value_type = String)]
    pub listen: SocketAddr,
    /// How people and forges reach this server; used in every link.
    pub public_url: Option<String>,
    /// Networks of the reverse proxies whose `X-Forwarded-For` is believed.
    #[schema(value_type = Vec<String>)]
    pub behind_proxy: Vec<IpNet>,
    /// File with the master key (64 hexadecimal digits). Default: `master.key` in `data_dir`.
    #[schema(value_type = Option<String>)]
    pub master_key_file: Option<PathBuf>,
    /// The master key itself, for the environment.
    #[schema(value_type = Option<String>)]
    pub master_key: Option<Hidden>,
    /// Also run jobs here.
    pub with_agent: bool,
    pub agent: Agent,
    pub database: Database,
    pub tls: Option<Tls>,
    pub http: Http,
    pub webhook: Webhook,
    pub sandbox: Sandbox,
    #[serde(with = "timers")]
    #[schema(value_type = timers::Section)]
    pub timers: Timers,
    /// How often local sources are looked at for new commits.
    #[serde(skip)]
    pub watch_period: Duration,
}

/// The agent in this process, when there is one.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Agent {
    /// Jobs at once. Default: the number of processors.
    pub slots: Option<u32>,
    /// User that commands run as.
    pub run_as: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// `postgres://…`. Absent: an embedded `SQLite` file in `data_dir`.
    #[schema(value_type = Option<String>)]
    pub url: Option<Hidden>,
    /// File that holds the URL, to keep a password out of this file.
    #[schema(value_type = Option<String>)]
    pub url_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the certificate chain.
    #[schema(value_type = String)]
    pub cert: PathBuf,
    /// PEM file with the private key.
    #[schema(value_type = String)]
    pub key: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Connections at once, agents' links included; above, a new one is closed at once. Default: the
    /// files that the process may open, less an eighth (at most 1024) for everything else.
    pub connections_max: Option<usize>,
    /// Time for the head of a request, and for the next request on a connection that is kept, in
    /// seconds. Then it is closed.
    pub head_timeout_secs: u64,
}

impl Default for Http {
    fn default() -> Self {
        Self { connections_max: None, head_timeout_secs: 30 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Webhook {
    /// Longest body, in bytes. Above: 413.
    pub max_bytes: usize,
    /// Memory that bodies may take before their signature is verified, for all senders together, in
    /// bytes. Above: 429.
    pub unverified_bytes: usize,
    /// The same for the senders of one source.
    pub unverified_bytes_per_source: usize,
    /// Time that a body may take, in seconds. Above: 408.
    pub body_timeout_secs: u64,
}

impl Default for Webhook {
    fn default() -> Self {
        Self {
            max_bytes: 25 * 1024 * 1024,
            unverified_bytes: 64 * 1024 * 1024,
            unverified_bytes_per_source: 32 * 1024 * 1024,
            body_timeout_secs: 30,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    /// Evaluate workflow files of untrusted sources although a wall of the sandbox is missing.
    pub allow_missing_walls: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("/var/lib/shuntyard"),
            listen: LISTEN_DEFAULT.parse().expect("the default address is valid"),
            public_url: None,
            behind_proxy: Vec::new(),
            master_key_file: None,
            master_key: None,
            with_agent: false,
            agent: Agent::default(),
            database: Database::default(),
            tls: None,
            http: Http::default(),
            webhook: Webhook::default(),
            sandbox: Sandbox::default(),
            timers: Timers::default(),
            watch_period: Duration::from_secs(2),
        }
    }
}

impl Config {
    /// Reads the file and lays the environment over it.
    pub fn read(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> anyhow::Result<Self> {
        let Some(path) = file else { return Self::load(None, environment) };
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::load(Some((&path.display().to_string(), &text)), environment)
    }

    /// Reads the file's text and lays the environment over it.
    pub fn load(
        file: Option<(&str, &str)>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> anyhow::Result<Self> {
        let (name, text) = file.unwrap_or(("the environment", ""));
        let mut table: Table = text.parse().with_context(|| format!("{name} is not valid TOML"))?;
        let mut spelled = BTreeMap::new();
        for (variable, value) in environment {
            let Some(key) = variable.strip_prefix("SHUNT_") else { continue };
            if !OTHER_VARIABLES.contains(&variable.as_str()) {
                let key = key.to_lowercase();
                set(&mut table, &key, value_of(&value))
                    .with_context(|| format!("environment variable {variable}"))?;
                spelled.insert(key.replace("__", "."), (key, Some(value)));
            }
        }
        loop {
            let parsed = serde_path_to_error::deserialize(Value::Table(table.clone()));
            let error = match parsed {
                Ok(config) => return Ok(config),
                Err(error) => error,
            };
            let path = error.path().to_string();
            // A text may look like a number: a key, a password, a name.
            let from = spelled.get_mut(&path);
            if let Some((key, Some(text))) = from.map(|(key, text)| (&*key, text.take())) {
                set(&mut table, key, Value::String(text))?;
                continue;
            }
            let message = error.into_inner().message().to_owned();
            let of_environment = spelled.get(&path);
            let of_environment = of_environment
                .map(|(key, _)| format!("environment variable SHUNT_{}", key.to_uppercase()));
            return Err(match (nearest(&message), of_environment) {
                (Some((unknown, known)), place) => {
                    let place = place.unwrap_or_else(|| name.to_owned());
                    anyhow::anyhow!("{place}: there is no key '{unknown}'; did you mean '{known}'?")
                }
                (None, Some(place)) => anyhow::anyhow!("{place}: {message}"),
                (None, None) => anyhow::anyhow!("{name}: {path}: {message}"),
            });
        }
    }

    /// Refuses what would be unsafe or can never work.
    pub fn check(&self) -> anyhow::Result<()> {
        if !self.listen.ip().is_loopback() && self.tls.is_none() && self.behind_proxy.is_empty() {
            bail!(
                "listening on {} would send tokens in the clear: set tls.cert and tls.key, or \
                 behind_proxy to the network of the proxy that ends TLS",
                self.listen
            );
        }
        if let Some(url) = &self.public_url {
            let known = url.starts_with("http://") || url.starts_with("https://");
            if !known || url.ends_with('/') {
                bail!(
                    "public_url '{url}' must begin with http:// or https:// and not end with a slash"
                );
            }
        }
        if self.http.head_timeout_secs == 0 || self.http.connections_max == Some(0) {
            bail!("http.head_timeout_secs and http.connections_max must be more than 0");
        }
        let webhook = &self.webhook;
        let fits = webhook.max_bytes <= webhook.unverified_bytes_per_source
            && webhook.unverified_bytes_per_source <= webhook.unverified_bytes;
        if !fits {
            bail!(
                "webhook.max_bytes ({}) must fit into webhook.unverified_bytes_per_source ({}), and \
                 that into webhook.unverified_bytes ({})",
                webhook.max_bytes,
                webhook.unverified_bytes_per_source,
                webhook.unverified_bytes
            );
        }
        if !self.with_agent && (self.agent.slots.is_some() || self.agent.run_as.is_some()) {
            bail!("agent.slots and agent.run_as need with_agent: only then are jobs run here");
        }
        self.timers.check()?;
        Ok(())
    }

    /// Base of every link that is shown or sent.
    pub fn base_url(&self, bound: SocketAddr) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let ip = match bound.ip() {
            // No address that anybody can open.
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
        };
        let bound = SocketAddr::new(ip, bound.port());
        self.public_url.clone().unwrap_or_else(|| format!("{scheme}://{bound}"))
    }
}

/// The page `docs/config.md`: every key with what its comment here says and its default.
pub fn reference() -> String {
    let mut text = "# Configuration\n\nMade from the code by `cargo xtask gen`. One TOML file (`shunt serve \
        --config FILE`); the environment goes over it\n(`SHUNT_LISTEN`, `SHUNT_DATABASE__URL`), and flags \
        go over both. An unknown key is an error.\n"
        .to_owned();
    let defaults = Value::try_from(Config::default()).expect("defaults are TOML");
    section(&mut text, "", Config::schema(), Some(&defaults));
    for (name, schema) in [
        ("agent", Agent::schema()),
        ("database", Database::schema()),
        ("tls", Tls::schema()),
        ("http", Http::schema()),
        ("webhook", Webhook::schema()),
        ("sandbox", Sandbox::schema()),
        ("timers", timers::Section::schema()),
    ] {
        section(&mut text, name, schema, defaults.get(name));
    }
    text
}

fn section(text: &mut String, name: &str, schema: RefOr<Schema>, defaults: Option<&Value>) {
    let RefOr::T(Schema::Object(object)) = schema else { return };
    let heading = if name.is_empty() { "Top level".to_owned() } else { format!("[{name}]") };
    text.push_str("\n## ");
    text.push_str(&heading);
    text.push_str("\n\n| key | default | meaning |\n|---|---|---|\n");
    for (key, property) in &object.properties {
        let meaning = match property {
            RefOr::T(Schema::Object(property)) => property.description.clone(),
            RefOr::T(Schema::Array(property)) => property.description.clone(),
            // A section of its own.
            RefOr::T(_) | RefOr::Ref(_) => continue,
        };
        let meaning = meaning.unwrap_or_default().replace('\n', " ");
        let default =
            defaults.and_then(|d| d.get(key)).map(ToString::to_string).unwrap_or_default();
        let row = format!("| `{key}` | `{default}` | {meaning} |\n").replace("| `` |", "| |");
        text.push_str(&row);
    }
}

/// The TOML value that a text spells, else the text.
fn value_of(text: &str) -> Value {
    let parsed = format!("v = {text}").parse::<Table>().ok().and_then(|mut t| t.remove("v"));
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Puts `value` at `section__key`.
fn set(table: &mut Table, key: &str, value: Value) -> anyhow::Result<()> {
    let mut parts = key.split("__").collect::<Vec<_>>();
    let last = parts.pop().expect("split yields at least one part");
    let mut table = table;
    for part in parts {
        let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        table = entry.as_table_mut().with_context(|| format!("'{part}' is not a section"))?;
    }
    table.insert(last.to_owned(), value);
    Ok(())
}

/// The unknown key in serde's message, and the known one that looks most like it.
fn nearest(message: &str) -> Option<(String, String)> {
    let mut names = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let known = names.max_by(|a, b| {
        strsim::jaro_winkler(unknown, a).total_cmp(&strsim::jaro_winkler(unknown, b))
    })?;
    Some((unknown.to_owned(), known.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str, environment: &[(&str, &str)]) -> anyhow::Result<Config> {
        let environment = environment.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
        Config::load(Some(("shunt.toml", text)), environment)
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let config = load(
            "listen = '127.0.0.1:1'\n[database]\nurl = 'postgres://a/b'",
            &[
                ("SHUNT_LISTEN", "127.0.0.1:2"),
                ("SHUNT_WEBHOOK__MAX_BYTES", "5"),
                ("SHUNT_TOKEN", "x"),
            ],
        )
        .unwrap();
        assert_eq!(config.listen.port(), 2);
        assert_eq!(config.webhook.max_bytes, 5);
        assert_eq!(config.database.url.unwrap().reveal(), "postgres://a/b");
    }

    #[test]
    fn a_text_of_the_environment_may_look_like_a_number_and_a_secret_is_not_shown() {
        let key = format!("{}e5", "1".repeat(62));
        let config = load("", &[("SHUNT_MASTER_KEY", &key), ("SHUNT_AGENT__RUN_AS", "1000")]);
        let config = config.unwrap();
        assert_eq!(config.master_key.as_ref().unwrap().reveal(), key);
        assert_eq!(config.agent.run_as.as_deref(), Some("1000"));
        assert!(!format!("{config:?}{}", toml::to_string(&config).unwrap()).contains(&key));
        let error = load("", &[("SHUNT_AGENT__SLOTS", "many")]).unwrap_err().to_string();
        assert!(error.starts_with("environment variable SHUNT_AGENT__SLOTS: "), "{error}");
    }

    #[test]
    fn settings_of_an_agent_that_is_not_there_are_refused() {
        assert!(load("with_agent = true\n[agent]\nslots = 2", &[]).unwrap().check().is_ok());
        assert!(load("[agent]\nslots = 2", &[]).unwrap().check().is_err());
    }

    #[test]
    fn an_unknown_key_names_the_nearest_one() {
        let message = |text: &str| load(text, &[]).unwrap_err().to_string();
        assert_eq!(
            message("lisen = 'x'"),
            "shunt.toml: there is no key 'lisen'; did you mean 'listen'?"
        );
        assert_eq!(
            message("[database]\nurll = 'x'"),
            "shunt.toml: there is no key 'urll'; did you mean 'url'?"
        );
        assert!(
            load("", &[("SHUNT_DATADIR", "/x")]).unwrap_err().to_string().contains("'data_dir'")
        );
    }

    #[test]
    fn timers_that_could_not_fence_are_refused() {
        let config = load("[timers]\nrenew = '500ms'", &[("SHUNT_TIMERS__OFFER", "1s")]).unwrap();
        assert_eq!(config.timers.renew, Duration::from_millis(500));
        assert_eq!(config.timers.offer, Duration::from_secs(1));
        assert_eq!(config.timers.release, Timers::default().release);
        assert!(config.check().is_ok());
        let error = load("[timers]\nfence_kill = '45s'", &[]).unwrap().check().unwrap_err();
        assert_eq!(error.to_string(), "fence_kill must be shorter than fence_term");
        let error = load("[timers]\nrenew = 'soon'", &[]).unwrap_err().to_string();
        assert!(error.starts_with("shunt.toml: timers.renew: 'soon'"), "{error}");
    }

    #[test]
    fn a_wrong_value_names_its_place() {
        let error = load("[webhook]\nmax_bytes = 'many'", &[]).unwrap_err().to_string();
        assert!(error.starts_with("shunt.toml: webhook.max_bytes: "), "{error}");
    }

    #[test]
    fn a_webhook_body_must_fit_into_its_sources_budget_and_that_into_the_whole() {
        let check = |max: usize, source: usize, all: usize| {
            let text = format!(
                "[webhook]\nmax_bytes = {max}\nunverified_bytes_per_source = {source}\n\
                 unverified_bytes = {all}"
            );
            load(&text, &[]).unwrap().check()
        };
        assert!(check(5, 5, 5).is_ok());
        assert!(check(6, 5, 5).is_err());
        assert!(check(5, 6, 5).is_err());
    }

    #[test]
    fn a_server_that_could_answer_nobody_is_refused() {
        assert!(
            load("[http]\nhead_timeout_secs = 1\nconnections_max = 1", &[])
                .unwrap()
                .check()
                .is_ok()
        );
        for nothing in ["head_timeout_secs = 0", "connections_max = 0"] {
            assert!(load(&format!("[http]\n{nothing}"), &[]).unwrap().check().is_err());
        }
    }

    #[test]
    fn every_link_can_be_opened() {
        let base = |bound: &str| load("", &[]).unwrap().base_url(bound.parse().unwrap());
        assert_eq!(base("0.0.0.0:1"), "http://127.0.0.1:1");
        assert_eq!(base("[::]:1"), "http://[::1]:1");
        assert_eq!(base("10.1.2.3:1"), "http://10.1.2.3:1");
        let public = load("public_url = 'https://ci.example'", &[]).unwrap();
        assert_eq!(public.base_url("0.0.0.0:1".parse().unwrap()), "https://ci.example");
    }

    #[test]
    fn beyond_loopback_it_needs_tls_or_a_proxy() {
        assert!(load("listen = '0.0.0.0:8484'", &[]).unwrap().check().is_err());
        let behind = "listen = '0.0.0.0:8484'\nbehind_proxy = ['10.0.0.0/8']";
        assert!(load(behind, &[]).unwrap().check().is_ok());
        assert!(load("", &[]).unwrap().check().is_ok());
    }
}
