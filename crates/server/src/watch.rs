//! Local sources: a new head of a watched repository becomes a delivery.

use std::path::Path;

use serde_json::json;
use shuntyard_protocol::{DeliveryId, Timestamp};
use shuntyard_store::{NewDelivery, Source};

use crate::{
    app::App,
    git::{self, Head},
    sources::{Kind, Settings},
};

/// The sender's name of what a watched repository does.
pub(crate) const PUSH: &str = "push";

/// Looks at every local source once. One that cannot be read does not hold up the others.
pub(crate) async fn tick(app: &App) -> anyhow::Result<()> {
    for source in app.store.sources(None).await? {
        if Kind::parse(&source.kind) == Some(Kind::Local)
            && let Err(error) = look(app, source.clone()).await
        {
            tracing::warn!(
                source = source.name,
                error = format!("{error:#}"),
                "cannot look at a local source"
            );
        }
    }
    Ok(())
}

async fn look(app: &App, source: Source) -> anyhow::Result<()> {
    let (_, head) = head(app, &source).await?;
    let mut settings = Settings::of(&source)?;
    if settings.seen.as_deref() == Some(head.commit.as_str()) {
        return Ok(());
    }
    let before = settings.seen.replace(head.commit.clone());
    // The delivery first: if the process dies between the two, the same key makes it a duplicate.
    if let Some(before) = before {
        let key =
            format!("{before}..{} {}", head.commit, head.ref_name.as_deref().unwrap_or("HEAD"));
        push(app, &source, &head, Some(before), key).await?;
    }
    let now = app.env.now();
    let changed = Source { settings: settings.to_json(), updated_at: now, ..source };
    app.store.update_source(&changed).await?;
    Ok(())
}

/// Makes a delivery for the head as it is, whether or not it was seen before. Returns its id.
pub(crate) async fn push_head(app: &App, source: &Source) -> anyhow::Result<DeliveryId> {
    let (_, head) = head(app, source).await?;
    let mut settings = Settings::of(source)?;
    if settings.seen.as_deref() != Some(head.commit.as_str()) {
        settings.seen = Some(head.commit.clone());
        let now = app.env.now();
        let changed = Source { settings: settings.to_json(), updated_at: now, ..source.clone() };
        app.store.update_source(&changed).await?;
    }
    let key = format!("asked for {}", app.env.secret());
    push(app, source, &head, None, key).await
}

async fn push(
    app: &App,
    source: &Source,
    head: &Head,
    before: Option<String>,
    key: String,
) -> anyhow::Result<DeliveryId> {
    let now: Timestamp = app.env.now();
    let id = DeliveryId::mint(now, app.env.random());
    // A detached head is on no branch; triggers see it as the branch HEAD.
    let ref_name = head.ref_name.as_deref().unwrap_or("refs/heads/HEAD");
    let null = "0".repeat(head.commit.len());
    let body = json!({
        "ref": ref_name,
        "before": before.unwrap_or(null),
        "after": head.commit,
    });
    let delivery = NewDelivery {
        id,
        org: source.org.clone(),
        source: source.id,
        delivery_key: key,
        body_digest: None,
        kind: PUSH.to_owned(),
        headers: json!({}),
        body: serde_json::to_vec(&body)?,
    };
    app.store.insert_delivery(&delivery, now).await?;
    app.pokes.inbox.poke();
    Ok(id)
}

/// The repository to fetch from, and its head. A plain folder is committed to a repository of ours.
pub(crate) async fn head(app: &App, source: &Source) -> anyhow::Result<(String, Head)> {
    let folder = Path::new(&source.url);
    if is_committed(source, folder).await? {
        return Ok((source.url.clone(), git::local_head(folder).await?));
    }
    let (repository, head) = app.git.snapshot(source.id, folder).await?;
    Ok((repository.to_string_lossy().into_owned(), head))
}

/// Where the code of a source is fetched from.
pub(crate) async fn code_url(app: &App, source: &Source) -> anyhow::Result<String> {
    if Kind::parse(&source.kind) != Some(Kind::Local) {
        return Ok(source.url.clone());
    }
    let snapshot = app.git.snapshot_path(source.id).to_string_lossy().into_owned();
    let folder = Path::new(&source.url);
    let path = if is_committed(source, folder).await? { &source.url } else { &snapshot };
    // Git decodes what looks like an escape in a URL.
    Ok(format!("file://{}", path.replace('%', "%25")))
}

/// Whether the commits of the folder itself are what runs.
async fn is_committed(source: &Source, folder: &Path) -> anyhow::Result<bool> {
    Ok(!Settings::of(source)?.work_tree && git::is_repository(folder).await)
}
