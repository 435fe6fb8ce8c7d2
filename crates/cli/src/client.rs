//! Talking to a server as a person's or script's program.

use std::{
    fmt,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::Context;
use futures_util::{Stream, StreamExt, stream};
use reqwest::{Certificate, Method, RequestBuilder, Response};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use shuntyard_protocol::api::Problem;
use shuntyard_server::ADMIN_TOKEN_FILE;

use crate::{
    args::Connect,
    exit::{Failure, Result, usage},
    paths::{self, Endpoint},
};

/// Longest token file that is read, in bytes.
const SECRET_BYTES_MAX: u64 = 64 * 1024;
/// Longest event of a live stream, in bytes.
const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A server and the right to talk to it.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.url)
    }
}

/// What `shunt login` keeps.
#[derive(Serialize, Deserialize)]
pub(crate) struct Profile {
    pub(crate) url: String,
    pub(crate) token: String,
}

impl Profile {
    pub(crate) fn path() -> anyhow::Result<PathBuf> {
        Ok(paths::config_home()?.join("profile.toml"))
    }

    fn load() -> Option<Self> {
        toml::from_str(&std::fs::read_to_string(Self::path().ok()?).ok()?).ok()
    }

    pub(crate) fn save(&self) -> anyhow::Result<()> {
        let path = Self::path()?;
        paths::make_private_dir(path.parent().context("a profile has a folder")?)?;
        paths::write_private(&path, toml::to_string(self)?.as_bytes())
    }
}

/// A live event of a run.
pub(crate) struct LiveEvent {
    pub(crate) name: String,
    pub(crate) data: String,
}

impl Client {
    pub(crate) fn new(url: &str, token: &str) -> anyhow::Result<Self> {
        Self::with_authority(url, token, None)
    }

    /// Also believes a server that is vouched for by the certificates in `ca_file`.
    pub(crate) fn with_authority(
        url: &str,
        token: &str,
        ca_file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let agent = concat!("shunt/", env!("CARGO_PKG_VERSION"));
        let mut builder = reqwest::Client::builder().user_agent(agent);
        if let Some(path) = ca_file {
            let read = || anyhow::Ok(Certificate::from_pem_bundle(&std::fs::read(path)?)?);
            let certificates = read().with_context(|| format!("read {}", path.display()))?;
            builder = builder.tls_certs_merge(certificates);
        }
        let http = builder.build().context("start the client")?;
        let (url, token) = (url.trim_end_matches('/').to_owned(), token.trim().to_owned());
        Ok(Self { http, url, token })
    }

    /// The server that the options name, or the one that can only be meant.
    pub(crate) fn connect(connect: &Connect) -> Result<Self> {
        let token = match &connect.credentials.token_file {
            Some(path) if path.to_string_lossy().starts_with("shunt_") => {
                return Err(usage(
                    "--token takes a file, so that the token is in no process list: write it to a file, \
                     or set SHUNT_TOKEN",
                ));
            }
            Some(path) => Some(read_secret(path)?),
            None => environment_token(),
        };
        if let Some(url) = &connect.server {
            let token =
                token.or_else(|| Profile::load().filter(|p| p.url == *url).map(|p| p.token));
            let token =
                token.ok_or_else(|| usage("a token is needed: --token FILE or SHUNT_TOKEN"))?;
            return Ok(Self::new(url, &token)?);
        }
        if let Some(data) = &connect.credentials.data {
            return Self::of_endpoint(&Endpoint::of_data(data)?, token);
        }
        if let Some(profile) = Profile::load() {
            return Ok(Self::new(&profile.url, token.as_deref().unwrap_or(&profile.token))?);
        }
        match Endpoint::running().as_slice() {
            [one] => Self::of_endpoint(one, token),
            [] => {
                Err(usage("no server: give --url and --token, or --data DIR, or start `shunt dev`"))
            }
            several => {
                let list: Vec<_> = several.iter().map(|e| e.data.display().to_string()).collect();
                Err(usage(format!(
                    "several servers run; choose one by --data: {}",
                    list.join(", ")
                )))
            }
        }
    }

    fn of_endpoint(endpoint: &Endpoint, token: Option<String>) -> Result<Self> {
        let token = match token {
            Some(token) => token,
            None => read_secret(&endpoint.data.join(ADMIN_TOKEN_FILE))?,
        };
        Ok(Self::with_authority(&endpoint.url, &token, endpoint.ca_file.as_deref())?)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}/api/v1{path}", self.url)).bearer_auth(&self.token)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await;
        let response =
            response.with_context(|| format!("the server at {} does not answer", self.url))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.unwrap_or_default();
        let message = match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => format!("{} (request {})", problem.detail, problem.request_id),
            Err(_) => format!("the server answered {status}"),
        };
        if status.is_client_error() {
            return Err(Failure::Usage(message));
        }
        Err(Failure::Error(anyhow::anyhow!(message)))
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T> {
        let response = self.send(self.request(Method::GET, path).query(query)).await?;
        Ok(response.json().await.context("understand the server's answer")?)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let response = self.send(self.request(Method::POST, path).json(body)).await?;
        Ok(response.json().await.context("understand the server's answer")?)
    }

    /// For requests that are only accepted.
    pub(crate) async fn tell(&self, method: Method, path: &str, body: &impl Serialize) -> Result {
        self.send(self.request(method, path).json(body)).await.map(drop)
    }

    pub(crate) async fn bytes(&self, path: &str, query: &[(&str, String)]) -> Result<Response> {
        self.send(self.request(Method::GET, path).query(query)).await
    }

    /// The live events of a run; ends with the run or the connection.
    pub(crate) async fn events(
        &self,
        run: &str,
    ) -> Result<impl Stream<Item = anyhow::Result<LiveEvent>> + use<>> {
        let path = format!("/runs/{run}/events");
        let response = self.bytes(&path, &[("logs", "true".to_owned())]).await?;
        let state = (Box::pin(response.bytes_stream()), Vec::new());
        Ok(stream::try_unfold(state, |(mut bytes, mut buffer): (_, Vec<u8>)| async move {
            loop {
                if let Some(event) = take(&mut buffer)? {
                    return Ok(Some((event, (bytes, buffer))));
                }
                match bytes.next().await {
                    Some(chunk) => buffer.extend_from_slice(&chunk.context("read live events")?),
                    None => return Ok(None),
                }
            }
        }))
    }
}

/// Takes the first whole event out of what came so far.
fn take(buffer: &mut Vec<u8>) -> anyhow::Result<Option<LiveEvent>> {
    while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
        let rest = buffer.split_off(end + 2);
        let block = std::mem::replace(buffer, rest);
        if let Some(event) = parse(&String::from_utf8_lossy(&block)) {
            return Ok(Some(event));
        }
    }
    anyhow::ensure!(buffer.len() <= EVENT_BYTES_MAX, "an event of the server is too long");
    Ok(None)
}

/// One block of a server-sent event stream; a comment yields nothing.
fn parse(block: &str) -> Option<LiveEvent> {
    let mut event = LiveEvent { name: String::new(), data: String::new() };
    for line in block.lines() {
        if let Some(name) = line.strip_prefix("event:") {
            name.trim().clone_into(&mut event.name);
        } else if let Some(data) = line.strip_prefix("data:") {
            event.data.push_str(data.trim_start());
        }
    }
    (!event.name.is_empty()).then_some(event)
}

/// Reads a secret from a file, or from standard input for `-`.
pub(crate) fn read_secret(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(SECRET_BYTES_MAX + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text))
    };
    let bytes = read.with_context(|| format!("read {}", path.display()))?;
    anyhow::ensure!(
        bytes as u64 <= SECRET_BYTES_MAX,
        "{} is longer than {SECRET_BYTES_MAX} bytes: is it the right file?",
        path.display()
    );
    Ok(text.trim().to_owned())
}

#[expect(clippy::disallowed_methods, reason = "the one secret that may come from the environment")]
fn environment_token() -> Option<String> {
    std::env::var("SHUNT_TOKEN").ok().filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_of_secret_bytes_max_is_read_and_a_longer_one_is_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let longest = usize::try_from(SECRET_BYTES_MAX).unwrap();
        std::fs::write(&file, "x".repeat(longest)).unwrap();
        assert_eq!(read_secret(&file).unwrap().len(), longest);
        std::fs::write(&file, "x".repeat(longest + 1)).unwrap();
        assert!(read_secret(&file).unwrap_err().to_string().contains("right file"));
    }

    #[test]
    fn events_are_taken_one_by_one_and_comments_are_skipped() {
        let mut buffer = b": hello\n\nevent: run\ndata: {\"a\":\ndata: 1}\n\nevent: e".to_vec();
        let event = take(&mut buffer).unwrap().unwrap();
        assert_eq!((event.name.as_str(), event.data.as_str()), ("run", "{\"a\":1}"));
        assert!(take(&mut buffer).unwrap().is_none());
        assert_eq!(buffer, b"event: e");
        assert!(take(&mut vec![b'x'; EVENT_BYTES_MAX]).unwrap().is_none());
        assert!(take(&mut vec![b'x'; EVENT_BYTES_MAX + 1]).is_err());
    }
}
