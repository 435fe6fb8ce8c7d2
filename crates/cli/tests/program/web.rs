//! The API as a program uses it.

use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use shuntyard_sim::forge::github::{Webhook, signature};

use crate::machine::until;

/// States of a run or job that has ended.
pub(crate) const ENDED: [&str; 6] =
    ["success", "failed", "timed_out", "cancelled", "skipped", "lost"];

#[derive(Clone)]
pub(crate) struct Api {
    http: reqwest::Client,
    pub(crate) url: String,
    pub(crate) token: String,
}

impl Api {
    pub(crate) fn new(url: &str, token: &str) -> Self {
        // Tests may be the first to use TLS in this process.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        Self { http: reqwest::Client::new(), url: url.to_owned(), token: token.to_owned() }
    }

    /// The same server for somebody else.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// A request without a token.
    pub(crate) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, &format!("/api/v1{path}")).bearer_auth(&self.token)
    }

    pub(crate) async fn try_get(&self, path: &str) -> Option<Value> {
        let response = self.request(Method::GET, path).send().await.ok()?;
        response.status().is_success().then_some(response)?.json().await.ok()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        checked(self.request(Method::GET, path).send().await.unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        checked(self.request(Method::POST, path).json(body).send().await.unwrap()).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        answer(self.request(method, path).json(body).send().await.unwrap()).await
    }

    /// Makes a token and returns its secret.
    pub(crate) async fn new_token(&self, token: &Value) -> String {
        self.post("/tokens", token).await["secret"].as_str().unwrap().to_owned()
    }

    /// A webhook of GitHub to the source `name` of the org `default`.
    pub(crate) async fn deliver(
        &self,
        name: &str,
        secret: Option<&str>,
        hook: &Webhook,
    ) -> (u16, Value) {
        answer(self.webhook(name, secret, hook).send().await.unwrap()).await
    }

    /// The same, when the server may hang up on a sender that it has answered already.
    pub(crate) async fn deliver_or_break(
        &self,
        name: &str,
        secret: &str,
        hook: &Webhook,
    ) -> Option<u16> {
        Some(self.webhook(name, Some(secret), hook).send().await.ok()?.status().as_u16())
    }

    fn webhook(&self, name: &str, secret: Option<&str>, hook: &Webhook) -> RequestBuilder {
        let mut request = self
            .bare(Method::POST, &format!("/webhooks/default/{name}"))
            .header("content-type", "application/json")
            .header("x-github-event", hook.event)
            .header("x-github-delivery", &hook.id);
        if let Some(secret) = secret {
            request = request.header("x-hub-signature-256", signature(secret, &hook.body));
        }
        request.body(hook.body.clone())
    }

    /// Waits until a delivery has come to something.
    pub(crate) async fn settled(&self, delivery: &Value) -> Value {
        let path = format!("/deliveries/{}", delivery.as_str().unwrap());
        let delivery = until("a delivery to be handled", async || {
            self.try_get(&path).await.filter(|delivery| delivery["state"] != "pending")
        });
        delivery.await
    }

    /// Runs of a delivery, first one first.
    pub(crate) async fn runs_of(&self, delivery: &Value) -> Vec<String> {
        let runs = self.get("/runs?limit=500").await;
        let of = runs["items"].as_array().unwrap().iter().rev();
        let of = of.filter(|run| run["event"] == delivery["event"]);
        of.map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) async fn run(&self, id: &str) -> Value {
        self.get(&format!("/runs/{id}")).await
    }

    /// Waits for the end of a run.
    pub(crate) async fn ended(&self, id: &str) -> Value {
        let path = format!("/runs/{id}");
        let ended = until("a run to end", async || {
            let run = self.try_get(&path).await?;
            ENDED.contains(&run["run"]["state"].as_str()?).then_some(run)
        });
        ended.await
    }

    /// Waits until a job of a run is in a state.
    pub(crate) async fn reaches(&self, run: &str, name: &str, state: &str) -> Value {
        let path = format!("/runs/{run}");
        let job = until(format!("{name} to be {state}"), async || {
            let found = job(&self.try_get(&path).await?, name).clone();
            let now = found["state"].as_str()?.to_owned();
            assert!(now == state || !ENDED.contains(&now.as_str()), "{name} is {now}: {found}");
            (now == state).then_some(found)
        });
        job.await
    }

    /// Waits for a part of a job's log.
    pub(crate) async fn logs(&self, job: &Value, part: &str) -> String {
        let text = until(format!("{part:?} in a log"), async || {
            let text = String::from_utf8_lossy(&self.raw(job, None).await).into_owned();
            text.contains(part).then_some(text)
        });
        text.await
    }

    /// The bytes of a stream of a job that has ended, or of all: what is still on its way from the
    /// agent is waited for.
    pub(crate) async fn whole(&self, job: &Value, stream: Option<u32>) -> Vec<u8> {
        let path = format!("/jobs/{}", job["id"].as_str().unwrap());
        until("the log to be complete", async || {
            let detail = self.try_get(&path).await?;
            let streams = detail["logs"].as_array()?;
            streams.iter().all(|stream| stream["complete"] == true).then_some(())
        })
        .await;
        self.raw(job, stream).await
    }

    /// The bytes of a stream of a job, or of all.
    pub(crate) async fn raw(&self, job: &Value, stream: Option<u32>) -> Vec<u8> {
        let stream = stream.map(|stream| format!("?stream={stream}")).unwrap_or_default();
        let path = format!("/jobs/{}/logs/raw{stream}", job["id"].as_str().unwrap());
        let response = self.request(Method::GET, &path).send().await.unwrap();
        assert!(response.status().is_success());
        response.bytes().await.unwrap().to_vec()
    }
}

/// A job of a run, by its name or title.
#[track_caller]
pub(crate) fn job<'a>(run: &'a Value, name: &str) -> &'a Value {
    let jobs = run["jobs"].as_array().unwrap();
    let found = jobs.iter().find(|job| job["title"] == name || job["name"] == name);
    found.unwrap_or_else(|| panic!("there is no job {name} in {run}"))
}

/// The states of a run's jobs by title.
pub(crate) fn states(run: &Value) -> Vec<String> {
    let jobs = run["jobs"].as_array().unwrap().iter();
    jobs.map(|job| format!("{} {}", job["title"], job["state"]).replace('"', "")).collect()
}

pub(crate) async fn answer(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

async fn checked(response: Response) -> Value {
    let (status, body) = answer(response).await;
    assert!((200..300).contains(&status), "{status}: {body}");
    body
}
