//! What is accepted from a forge, and what comes of it.

use std::{fs, sync::atomic::Ordering, time::Duration};

use reqwest::{Method, header};
use serde_json::json;
use shuntyard_sim::forge::{
    Repository,
    github::{Head, Pull, Webhook, signature},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    machine::until,
    on_both,
    web::answer,
    world::{CI, Db, SECRET, World, ci},
};

on_both!(only_a_right_signature_is_accepted_and_a_repetition_starts_nothing);

const HELLO: &str = "job('hello', { steps: [sh('cat greeting.txt')] })";

async fn only_a_right_signature_is_accepted_and_a_repetition_starts_nothing(db: Db) {
    let world = World::new(db).await;
    let web = world.repository("web").await;
    let commit = web.commit("main", &[(CI, &ci(HELLO))]).unwrap();
    let hook = web.push("first", "refs/heads/main", None, &commit);
    for secret in [None, Some("guessed")] {
        let (status, problem) = world.api.deliver("web", secret, &hook).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthorized")));
    }
    let (status, problem) = world.api.deliver("nobody", Some(SECRET), &hook).await;
    assert_eq!((status, &problem["code"]), (404, &json!("not-found")));
    let none = world.api.get("/sources/web/deliveries").await;
    assert!(none["items"].as_array().unwrap().is_empty(), "{none}");

    let (status, first) = world.api.deliver("web", Some(SECRET), &hook).await;
    assert_eq!(status, 202, "{first}");
    // GitHub does not sign the id, so that a replay may have another one.
    for repeated in [hook.clone(), hook.again_as("second")] {
        let (status, again) = world.api.deliver("web", Some(SECRET), &repeated).await;
        assert_eq!((status, &again["delivery"]), (200, &first["delivery"]));
    }
    let delivery = world.api.settled(&first["delivery"]).await;
    assert_eq!(delivery["state"], "done", "{delivery}");
    let runs = world.api.get("/runs").await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);
    let deliveries = world.api.get("/sources/web/deliveries").await;
    assert_eq!(deliveries["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_ping_and_a_deleted_branch_start_nothing_and_nonsense_is_told() {
    let world = World::new(Db::Sqlite).await;
    let web = world.repository("web").await;
    let commit = web.commit("topic", &[(CI, &ci(HELLO))]).unwrap();
    web.delete("topic").unwrap();
    let odd = Webhook { event: "push", id: "odd".into(), body: b"{\"ref\":1}".to_vec() };
    let gone = "1".repeat(40);
    for (hook, state, outcome) in [
        (web.ping("ping"), "ignored", "ping: the webhook works"),
        (web.deleted("deleted", "topic", &commit), "ignored", "refs/heads/topic was deleted"),
        (odd, "failed", "push payload: "),
    ] {
        let (status, answer) = world.api.deliver("web", Some(SECRET), &hook).await;
        assert_eq!(status, 202);
        let delivery = world.api.settled(&answer["delivery"]).await;
        assert_eq!(delivery["state"], state, "{delivery}");
        assert!(delivery["outcome"].as_str().unwrap().starts_with(outcome), "{delivery}");
    }
    // A commit that is not there may still come: it is tried again, and the reason can be read.
    let hook = web.push("early", "refs/heads/main", None, &gone);
    let (_, answer) = world.api.deliver("web", Some(SECRET), &hook).await;
    let path = format!("/deliveries/{}", answer["delivery"].as_str().unwrap());
    until("the first try", async || {
        let delivery = world.api.get(&path).await;
        delivery["error"].as_str()?.contains(&gone).then_some(())
    })
    .await;
    assert_eq!(world.api.get("/runs").await["items"], json!([]));
}

#[tokio::test]
async fn branches_tags_and_changed_files_choose_workflows() {
    let world = World::new(Db::Sqlite).await;
    let web = world.repository("web").await;
    let file = |name: &str, trigger: &str| {
        format!(
            "import {{ job, push, sh, tag, workflow }} from 'shuntyard';\n\
             export default workflow('{name}', {{ on: {trigger}, jobs: [job('a', {{ steps: [sh('true')] }})] }});"
        )
    };
    let first = web
        .commit(
            "main",
            &[
                (".shuntyard/workflows/docs.ts", &file("docs", "push({ paths: 'docs/**' })")),
                (".shuntyard/workflows/release.ts", &file("release", "tag('v*')")),
                (".shuntyard/workflows/topic.ts", &file("topic", "push({ branches: 'topic/*' })")),
            ],
        )
        .unwrap();
    let second = web.commit("main", &[("docs/a.md", "a"), ("src/b.rs", "b")]).unwrap();
    let third = web.commit("main", &[("src/b.rs", "c")]).unwrap();
    web.tag("v1", &first).unwrap();
    let annotated = web.annotated_tag("v2", &first).unwrap();
    web.branch("topic/x", &third).unwrap();
    for (name, before, after, started) in [
        ("refs/heads/main", Some(&first), &second, vec!["docs"]),
        ("refs/heads/main", Some(&second), &third, vec![]),
        ("refs/tags/v1", None, &first, vec!["release"]),
        ("refs/tags/v2", None, &annotated, vec!["release"]),
        ("refs/heads/topic/x", None, &third, vec!["topic"]),
    ] {
        assert_eq!(started_by(&world, &web, name, before, after).await, started, "{name}");
    }
    // Nothing in common with before: every file of either is one that changed.
    let forced =
        web.force_push("main", &[("docs/z.md", "z"), (CI, &file("ci", "push()"))]).unwrap();
    let started = started_by(&world, &web, "refs/heads/main", Some(&third), &forced).await;
    assert_eq!(started, ["ci"]);
}

/// The workflows that a push starts.
async fn started_by(
    world: &World,
    repository: &Repository,
    name: &str,
    before: Option<&String>,
    after: &str,
) -> Vec<String> {
    let id = format!("{name} {after}");
    let hook = repository.push(&id, name, before.map(String::as_str), after);
    let (_, answer) = world.api.deliver(repository.name(), Some(SECRET), &hook).await;
    let delivery = world.api.settled(&answer["delivery"]).await;
    let mut names = Vec::new();
    for run in world.api.runs_of(&delivery).await {
        names.push(world.api.run(&run).await["run"]["workflow"].as_str().unwrap().to_owned());
    }
    names
}

#[tokio::test]
async fn a_pull_request_runs_but_a_forks_only_where_it_was_allowed_and_contained() {
    let mut world = World::new(Db::Sqlite).await;
    let web = world.repository("web").await;
    let base = web.commit("main", &[(CI, &ci(HELLO)), ("greeting.txt", "hello\n")]).unwrap();
    let own =
        web.commit("topic", &[(CI, &ci(HELLO)), ("greeting.txt", "from a branch\n")]).unwrap();
    // A stranger's change of the workflow itself is not what runs.
    let hijack = ci(&HELLO.replace("cat greeting.txt", "echo hijacked; exit 1"));
    let strange = [("greeting.txt", "from a stranger\n"), (CI, &hijack)];
    let strange = web.pull_head(8, &base, &strange).unwrap();
    let pull = |number, head, from| Pull {
        number,
        action: "opened",
        branch: "topic",
        head,
        base: &base,
        from,
    };
    let deliver = async |id: &str, pull: &Pull<'_>| {
        let hook = web.pull_request(id, pull);
        let (status, answer) = world.api.deliver("web", Some(SECRET), &hook).await;
        assert_eq!(status, 202, "{answer}");
        world.api.settled(&answer["delivery"]).await
    };
    let hint = "shunt admin source set web --forks run";
    for (id, from) in [("a", Head::Fork), ("b", Head::Gone)] {
        let delivery = deliver(id, &pull(8, &strange, from)).await;
        assert_eq!(delivery["state"], "ignored");
        let outcome = delivery["outcome"].as_str().unwrap();
        assert!(outcome.starts_with("fork: ") && outcome.contains(hint), "{outcome}");
    }
    let ours = deliver("c", &pull(7, &own, Head::Own)).await;
    assert_eq!(ours["state"], "done", "{ours}");
    let closed = deliver("d", &Pull { action: "closed", ..pull(7, &own, Head::Own) }).await;
    assert_eq!(closed["state"], "ignored", "{closed}");
    let listed = world.shunt(&["admin", "source", "deliveries", "web"]).await.ok();
    assert!(listed.contains("fork: "), "{listed}");

    // What the payload says of the base is old: its branch has gone on.
    let newest = HELLO.replace("greeting.txt", "greeting.txt; echo by the newest workflow");
    web.commit("main", &[(CI, &ci(&newest))]).unwrap();
    world.shunt(&["admin", "source", "set", "web", "--forks", "run"]).await.ok();
    let theirs =
        deliver("e", &Pull { action: "synchronize", ..pull(8, &strange, Head::Fork) }).await;
    assert_eq!(theirs["state"], "done", "{theirs}");
    let theirs = world.api.runs_of(&theirs).await.remove(0);
    let queue = world.api.get("/queue").await;
    assert_eq!(queue["items"].as_array().unwrap().len(), 2);
    world.agent("a", &[]).await;
    let run = world.api.ended(&theirs).await;
    assert_eq!(run["run"]["state"], "success", "{run}");
    world.api.logs(&run["jobs"][0], "from a stranger").await;
    world.api.logs(&run["jobs"][0], "by the newest workflow").await;
    let agents = world.api.get("/agents").await;
    assert_eq!(agents["items"][0]["containment"], "namespace", "only such an agent may run it");
}

/// A server whose limits are near.
async fn narrow(webhook: &str) -> World {
    let world = World::configured(&format!("[webhook]\n{webhook}\n")).await;
    for name in ["web", "api"] {
        drop(world.repository(name).await);
    }
    world
}

/// A signed push of any length that starts nothing.
fn padded(id: &str, length: usize) -> Webhook {
    let mut body = format!("{{\"x\":\"{id}\"}}").into_bytes();
    body.resize(length, b' ');
    Webhook { event: "ping", id: id.to_owned(), body }
}

#[tokio::test]
async fn a_body_has_a_limit_a_type_and_a_method() {
    let world = narrow("max_bytes = 300000").await;
    let (status, answer) = world.api.deliver("web", Some(SECRET), &padded("a", 300_000)).await;
    assert_eq!(status, 202, "{answer}");
    let (status, problem) = world.api.deliver("web", Some(SECRET), &padded("b", 300_001)).await;
    assert_eq!((status, &problem["code"]), (413, &json!("too-large")));
    assert!(problem["detail"].as_str().unwrap().contains("webhook.max_bytes"), "{problem}");

    let body = padded("c", 100).body;
    let post = |kind: Option<&str>| {
        let mut request = world.api.bare(Method::POST, "/webhooks/default/web");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        request
            .header("x-hub-signature-256", signature(SECRET, &body))
            .header("x-github-event", "ping")
            .header("x-github-delivery", "c")
            .body(body.clone())
    };
    for kind in [None, Some("application/x-www-form-urlencoded"), Some("text/json")] {
        let (status, problem) = self::answer(post(kind).send().await.unwrap()).await;
        assert_eq!((status, &problem["code"]), (415, &json!("unsupported-type")));
    }
    let charset = post(Some("application/json; charset=utf-8")).send().await.unwrap();
    assert_eq!(charset.status(), 202);
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let request = world.api.bare(method, "/webhooks/default/web");
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let (status, problem) = self::answer(response).await;
        assert_eq!((status, &problem["code"]), (405, &json!("method-not-allowed")));
    }
    for missing in ["x-github-event", "x-github-delivery"] {
        let mut request = post(Some("application/json")).build().unwrap();
        request.headers_mut().remove(missing);
        let (status, problem) =
            self::answer(reqwest::Client::new().execute(request).await.unwrap()).await;
        assert_eq!(status, 400);
        assert!(problem["detail"].as_str().unwrap().to_lowercase().contains(missing));
    }
}

/// A sender that stops in the middle of a body.
async fn stalled(world: &World, source: &str, sent: usize) -> TcpStream {
    let address = world.api.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /webhooks/default/{source} HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: 200000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; sent]).await.unwrap();
    stream
}

async fn first_line(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 1024];
    while !bytes.contains(&b'\n') {
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut buffer)).await;
        let read = read.expect("the server answers").unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8_lossy(&bytes).lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn a_sender_that_stalls_holds_up_nobody_and_is_sent_away() {
    let world = narrow("body_timeout_secs = 1").await;
    let slow = stalled(&world, "web", 10).await;
    let (status, answer) = world.api.deliver("web", Some(SECRET), &padded("a", 100)).await;
    assert_eq!(status, 202, "{answer}");
    assert!(first_line(slow).await.starts_with("HTTP/1.1 408"));
}

#[tokio::test]
async fn unverified_bodies_have_a_budget_and_one_source_cannot_use_up_anothers() {
    let world = narrow(
        "max_bytes = 200000\nunverified_bytes = 400000\nunverified_bytes_per_source = 250000",
    )
    .await;
    let held = stalled(&world, "web", 150_000).await;
    let flooded = async |source: &str, id: &str| {
        let (status, _) = world.api.deliver(source, Some(SECRET), &padded(id, 120_000)).await;
        status
    };
    until("the first body to count", async || {
        let id = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        (flooded("web", &id).await == 429).then_some(())
    })
    .await;
    assert_eq!(flooded("api", "a").await, 202, "the other source has room");
    // Both together are above the budget of all.
    let held_too = stalled(&world, "api", 199_999).await;
    until("the second body to count", async || {
        let id = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        (flooded("api", &id).await == 429).then_some(())
    })
    .await;
    drop((held, held_too));
    until("the budget to be given back", async || {
        let id = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        (flooded("web", &id).await == 202).then_some(())
    })
    .await;
}

static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1000);

/// Most memory that the server ever had, in bytes.
fn peak(world: &World) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", world.server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn a_flood_of_unsigned_bodies_takes_no_more_memory_than_allowed() {
    const MEBIBYTE: usize = 1024 * 1024;
    let world = narrow("unverified_bytes = 33554432").await;
    let before = peak(&world);
    let hook = padded("flood", 8 * MEBIBYTE);
    let floods = (0..24).map(|_| world.api.deliver_or_break("web", "guessed", &hook));
    let answers = futures_util::future::join_all(floods).await;
    assert!(answers.iter().flatten().all(|status| [401, 429].contains(status)), "{answers:?}");
    let grown = peak(&world) - before;
    assert!(grown < 96 * MEBIBYTE as u64, "grown by {grown} bytes");
    let (status, answer) = world.api.deliver("web", Some(SECRET), &padded("after", 100)).await;
    assert_eq!(status, 202, "{answer}");
}

#[tokio::test]
async fn a_generic_sender_signs_or_shows_the_secret() {
    let world = World::new(Db::Sqlite).await;
    let web = world.forge.repository("web").unwrap();
    let commit = web.commit("main", &[(CI, &ci(HELLO))]).unwrap();
    let secret = world.machine.path("secret");
    fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let added = world
        .shunt(&[
            "admin",
            "source",
            "add",
            "generic",
            "web",
            "--url",
            &web.url(),
            "--webhook-secret-file",
            secret.to_str().unwrap(),
        ])
        .await
        .ok();
    assert!(added.contains(&format!("{}/webhooks/default/web", world.api.url)), "{added}");
    let body = json!({ "ref": "refs/heads/main", "commit": commit }).to_string().into_bytes();
    let post = || {
        world
            .api
            .bare(Method::POST, "/webhooks/default/web")
            .header("content-type", "application/json")
            .body(body.clone())
    };
    let wrong = [
        post(),
        post().bearer_auth("guessed"),
        post().header("x-signature-256", signature("guessed", &body)),
        post().header("x-signature-256", "sha256=zz"),
    ];
    for request in wrong {
        assert_eq!(request.send().await.unwrap().status(), 401);
    }
    let signed = post().header("x-signature-256", signature(SECRET, &body));
    let (status, signed) = answer(signed.send().await.unwrap()).await;
    assert_eq!(status, 202);
    let (status, shown) = answer(post().bearer_auth(SECRET).send().await.unwrap()).await;
    assert_eq!(status, 202, "the same body may ask for another run");
    let keyed = || post().bearer_auth(SECRET).header("idempotency-key", "k1");
    let (status, first) = answer(keyed().send().await.unwrap()).await;
    assert_eq!(status, 202);
    let (status, again) = answer(keyed().send().await.unwrap()).await;
    assert_eq!((status, &again["delivery"]), (200, &first["delivery"]));
    for delivery in [signed, shown, first] {
        let delivery = world.api.settled(&delivery["delivery"]).await;
        assert_eq!(delivery["state"], "done", "{delivery}");
        assert_eq!(world.api.runs_of(&delivery).await.len(), 1);
    }
}
