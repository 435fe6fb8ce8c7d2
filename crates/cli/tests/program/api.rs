//! The API: who may what, how errors look, and that lists have no holes.

use std::{collections::BTreeSet, fs, path::Path};

use reqwest::{Method, Response, header};
use serde_json::{Value, json};

use crate::{
    machine::until,
    on_both,
    web::answer,
    world::{CI, Db, World},
};

/// Every route and the least role that may use it.
const ROUTES: [(&str, &str, &str); 23] = [
    ("get", "/api/v1/agents", "viewer"),
    ("post", "/api/v1/agents/{id}/drain", "admin"),
    ("post", "/api/v1/agents/{id}/resume", "admin"),
    ("delete", "/api/v1/agents/{id}", "admin"),
    ("get", "/api/v1/deliveries/{id}", "viewer"),
    ("get", "/api/v1/info", "viewer"),
    ("get", "/api/v1/jobs/{id}", "viewer"),
    ("post", "/api/v1/jobs/{id}/cancel", "operator"),
    ("get", "/api/v1/jobs/{id}/logs", "viewer"),
    ("get", "/api/v1/jobs/{id}/logs/raw", "viewer"),
    ("get", "/api/v1/queue", "viewer"),
    ("get", "/api/v1/runs", "viewer"),
    ("post", "/api/v1/runs", "operator"),
    ("get", "/api/v1/runs/{id}", "viewer"),
    ("post", "/api/v1/runs/{id}/cancel", "operator"),
    ("get", "/api/v1/runs/{id}/events", "viewer"),
    ("post", "/api/v1/runs/{id}/rerun", "operator"),
    ("get", "/api/v1/sources", "viewer"),
    ("post", "/api/v1/sources", "admin"),
    ("delete", "/api/v1/sources/{name}", "admin"),
    ("patch", "/api/v1/sources/{name}", "admin"),
    ("get", "/api/v1/sources/{name}/deliveries", "viewer"),
    ("post", "/api/v1/sources/{name}/push", "operator"),
];
/// The same, for what gives rights away.
const TOKEN_ROUTES: [(&str, &str, &str); 3] = [
    ("get", "/api/v1/tokens", "admin"),
    ("post", "/api/v1/tokens", "admin"),
    ("delete", "/api/v1/tokens/{id}", "admin"),
];
const ROLES: [&str; 3] = ["viewer", "operator", "admin"];

/// A path with something that is nowhere in place of what varies.
fn example(path: &str) -> String {
    let kind = path.split('/').nth(3).unwrap_or_default();
    let prefix = match kind {
        "runs" => "run",
        "jobs" => "job",
        "agents" => "agt",
        "deliveries" => "dlv",
        _ => "tok",
    };
    path.replace("{id}", &format!("{prefix}_{}", "0".repeat(26))).replace("{name}", "nowhere")
}

async fn status(world: &World, method: &str, path: &str, token: Option<&str>) -> (u16, Value) {
    let method: Method = method.to_uppercase().parse().unwrap();
    let mut request = world.api.bare(method, &example(path));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.unwrap();
    if response.status().is_success() {
        return (response.status().as_u16(), Value::Null);
    }
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json", "{path}");
    let (status, problem) = answer(response).await;
    assert_eq!(problem["status"], status);
    for field in ["code", "detail", "request_id", "title", "type"] {
        assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
    }
    (status, problem)
}

#[tokio::test]
async fn every_route_wants_a_token_with_a_role() {
    let world = World::new(Db::Sqlite).await;
    let document = world.api.get("/openapi.json").await;
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        described.extend(methods.as_object().unwrap().keys().map(|method| (&**method, &**path)));
    }
    let routes: Vec<_> = ROUTES.iter().chain(&TOKEN_ROUTES).collect();
    let listed = routes.iter().map(|(method, path, _)| (*method, *path)).collect();
    assert_eq!(described, listed, "a route that is new needs a role here");

    let mut tokens = Vec::new();
    for role in ROLES {
        let token = json!({ "name": role, "kind": "api", "role": role, "org": "default" });
        tokens.push((role, world.api.new_token(&token).await));
    }
    let enrol = world.api.new_token(&json!({ "name": "agent", "kind": "enrol" })).await;
    for (method, path, needed) in routes.into_iter().chain(&[("get", "/metrics", "viewer")]) {
        for token in [None, Some("shunt_guessed"), Some(&*enrol), Some("")] {
            let (status, problem) = status(&world, method, path, token).await;
            assert_eq!(
                (status, &problem["code"]),
                (401, &json!("unauthorized")),
                "{method} {path}"
            );
        }
        let needed = ROLES.iter().position(|role| role == needed).unwrap();
        for (rank, (role, token)) in tokens.iter().enumerate() {
            let (status, problem) = status(&world, method, path, Some(token)).await;
            if rank < needed {
                assert_eq!(
                    (status, &problem["code"]),
                    (403, &json!("forbidden")),
                    "{method} {path}"
                );
            } else {
                assert!(![401, 403, 500].contains(&status), "{role} {method} {path}: {problem}");
            }
        }
    }
    for public in ["/healthz", "/readyz", "/api/v1/openapi.json"] {
        assert_eq!(world.api.bare(Method::GET, public).send().await.unwrap().status(), 200);
    }
    let link = world.api.bare(Method::GET, "/api/v1/agent/link").send().await.unwrap();
    assert!(link.status().is_client_error(), "{}", link.status());
}

#[tokio::test]
async fn a_token_ends_when_it_expires_and_sees_its_own_org_alone() {
    let world = World::new(Db::Sqlite).await;
    world.repository("web").await;
    let brief = json!({ "name": "brief", "kind": "api", "ttl_ms": 1 });
    let brief = world.api.with_token(&world.api.new_token(&brief).await);
    until("the token to expire", async || {
        let response = brief.request(Method::GET, "/runs").send().await.unwrap();
        (response.status() == 401).then_some(())
    })
    .await;
    let other = json!({ "name": "other", "kind": "api", "role": "admin", "org": "other" });
    let other = world.api.with_token(&world.api.new_token(&other).await);
    assert_eq!(other.get("/sources").await["items"], json!([]));
    let source = "/sources/web?org=default";
    for (method, path, body, expected) in [
        (Method::GET, "/sources/web/deliveries?org=default", json!({}), 404),
        (Method::PATCH, source, json!({ "forks": "run" }), 404),
        (Method::DELETE, source, json!({}), 404),
        (Method::GET, "/runs?org=default", json!({}), 404),
        (
            Method::POST,
            "/runs",
            json!({ "source": "web", "workflow": "ci", "org": "default" }),
            404,
        ),
        (Method::POST, "/tokens", json!({ "name": "x", "kind": "api", "org": "default" }), 403),
        (Method::POST, "/tokens", json!({ "name": "x", "kind": "api", "org": "*" }), 403),
    ] {
        let (status, problem) = other.send(method.clone(), path, &body).await;
        assert_eq!(status, expected, "{method} {path}: {problem}");
    }
    let tokens = other.get("/tokens").await;
    assert!(tokens["items"].as_array().unwrap().iter().all(|token| token["org"] == "other"));
}

#[tokio::test]
async fn every_mistake_is_a_problem_document_with_a_stable_code() {
    let world = World::new(Db::Sqlite).await;
    let path = |path: &str| format!("{}{path}", world.api.url);
    let client = reqwest::Client::new();
    let token = &world.api.token;
    let get = |at: &str| client.get(path(at)).bearer_auth(token);
    let post = |at: &str, body: &str| {
        let request = client.post(path(at)).bearer_auth(token).body(body.to_owned());
        request.header("content-type", "application/json")
    };
    let long = format!("\"{}\"", "x".repeat(1024 * 1024));
    for (request, status, code) in [
        (get("/nowhere"), 404, "not-found"),
        (get("/api/v1/nowhere"), 404, "not-found"),
        (client.delete(path("/api/v1/runs")).bearer_auth(token), 405, "method-not-allowed"),
        (client.post(path("/healthz")), 405, "method-not-allowed"),
        (get("/api/v1/runs/run_nonsense"), 400, "bad-request"),
        (get("/api/v1/runs?limit=many"), 400, "bad-request"),
        (get("/api/v1/runs?limit=0"), 400, "bad-request"),
        (get("/api/v1/runs?cursor=x"), 400, "bad-request"),
        (get("/api/v1/runs?state=odd"), 400, "bad-request"),
        (post("/api/v1/runs", "{"), 400, "bad-request"),
        (post("/api/v1/runs", "{}"), 422, "unprocessable"),
        (client.post(path("/api/v1/runs")).bearer_auth(token).body("{}"), 415, "unsupported-type"),
        (post("/api/v1/runs", &long), 413, "too-large"),
        (get("/api/v1/info").header("host", "evil.example"), 421, "misdirected"),
        (client.post(path("/webhooks/a/b")).header("host", "evil.example"), 421, "misdirected"),
    ] {
        let request = request.build().unwrap();
        let what = format!("{} {}", request.method(), request.url());
        let response: Response = client.execute(request).await.unwrap();
        let kind = response.headers().get(header::CONTENT_TYPE).cloned();
        let id = response.headers()["x-request-id"].clone();
        let (found, problem) = answer(response).await;
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{what}: {problem}");
        assert_eq!(kind.unwrap(), "application/problem+json", "{what}");
        assert_eq!(problem["request_id"], id.to_str().unwrap(), "{what}");
    }
    for host in ["localhost", "127.0.0.1", "[::1]:80", "ci.localhost"] {
        let response = get("/api/v1/info").header("host", host).send().await.unwrap();
        assert_eq!(response.status(), 200, "{host}");
    }
}

on_both!(pages_show_every_run_once_newest_first);

async fn pages_show_every_run_once_newest_first(db: Db) {
    let world = World::new(db).await;
    let web = world.repository("web").await;
    let file = |name: &str| {
        format!(
            "import {{ job, push, sh, workflow }} from 'shuntyard';\n\
             export default workflow('{name}', {{ on: push(), jobs: [job('a', {{ steps: [sh('true')] }})] }});"
        )
    };
    let names: Vec<_> = (0..7).map(|n| format!("w{n}")).collect();
    let files: Vec<_> =
        names.iter().map(|n| (CI.replace("ci.ts", &format!("{n}.ts")), file(n))).collect();
    let files: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
    let mut made = world.push(&web, &files).await;
    assert_eq!(made.len(), 7);
    made.reverse();
    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let at = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = world.api.get(&format!("/runs?limit=3{at}")).await;
        let items = page["items"].as_array().unwrap();
        assert!((1..=3).contains(&items.len()), "{page}");
        seen.extend(items.iter().map(|run| run["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(seen, made);
    // A run that starts between two pages shifts nothing.
    let page = world.api.get("/runs?limit=3").await;
    world.push(&web, &[("a.txt", "a")]).await;
    let next =
        world.api.get(&format!("/runs?limit=3&cursor={}", page["next"].as_str().unwrap())).await;
    assert_eq!(next["items"][0]["id"], made[3].as_str());
    for filter in ["workflow=w3", "branch=main", "source=web", "state=pending"] {
        let found = world.api.get(&format!("/runs?{filter}")).await;
        assert!(!found["items"].as_array().unwrap().is_empty(), "{filter}");
    }
    assert_eq!(world.api.get("/runs?branch=other").await["items"], json!([]));
}

#[tokio::test]
async fn the_document_of_the_api_is_the_one_in_the_repository() {
    let world = World::new(Db::Sqlite).await;
    let served = world.api.bare(Method::GET, "/api/v1/openapi.json").send().await.unwrap();
    let served: Value = served.json().await.unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let kept: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert!(served == kept, "docs/openapi.json is not up to date: run `cargo xtask gen`");
}
