//! From a commit to its plan: fetched, evaluated in the sandbox, checked and kept.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use anyhow::Context;
use shuntyard_core::plan as rules;
use shuntyard_protocol::plan::Plan;
use shuntyard_script::{Bundle, EvaluateError, Require};
use shuntyard_store::{Source, StoredPlan};

use crate::{app::App, sources::Kind};

/// Parsed plans that are kept in memory.
const CACHED_PLANS_MAX: usize = 64;
/// Longest error of an author that is stored, in bytes.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// The plan of one commit.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub key: String,
    pub plan: Arc<Plan>,
}

/// Why a commit has no plan.
#[derive(Debug)]
pub(crate) enum PlanFailure {
    /// The author's mistake: trying again changes nothing, so it is kept.
    Author(String),
    /// It ran into a limit of this machine: most likely the author's affair, but not surely.
    Limit(String),
    /// Something here or on the way did not work: worth another try.
    Here(anyhow::Error),
}

impl From<anyhow::Error> for PlanFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::Here(error)
    }
}

impl From<shuntyard_store::StoreError> for PlanFailure {
    fn from(error: shuntyard_store::StoreError) -> Self {
        Self::Here(error.into())
    }
}

/// Plans by key, the oldest dropped first. They never change, so nothing has to be invalidated.
#[derive(Default)]
pub struct PlanCache(Mutex<BTreeMap<String, (u64, Arc<Plan>)>>);

impl PlanCache {
    fn get(&self, key: &str) -> Option<Arc<Plan>> {
        let cache = self.0.lock().expect("no panic while it is held");
        cache.get(key).map(|(_, plan)| Arc::clone(plan))
    }

    fn put(&self, key: &str, plan: &Arc<Plan>) {
        let mut cache = self.0.lock().expect("no panic while it is held");
        let age = cache.values().map(|(age, _)| age + 1).max().unwrap_or(0);
        cache.insert(key.to_owned(), (age, Arc::clone(plan)));
        if cache.len() > CACHED_PLANS_MAX {
            let oldest = cache.iter().min_by_key(|(_, (age, _))| *age).map(|(key, _)| key.clone());
            cache.remove(&oldest.expect("it is not empty"));
        }
    }
}

/// The plan at a commit that is in the source's mirror.
pub(crate) async fn plan_at(
    app: &App,
    source: &Source,
    commit: &str,
) -> Result<Planned, PlanFailure> {
    // Another version may plan the same files differently, and support more.
    let at = format!("{commit} {}", env!("CARGO_PKG_VERSION"));
    if let Some(known) = app.store.plan_at(source.id, &at).await? {
        return match (known.plan_key, known.error) {
            (Some(key), _) => load(app, key).await,
            (None, error) => Err(PlanFailure::Author(error.unwrap_or_default())),
        };
    }
    let files = app.git.workflow_folder(source.id, commit).await?;
    match evaluate(app, source, files).await {
        Ok((stored, plan)) => {
            app.store.put_plan(source.id, &at, &stored, app.env.now()).await?;
            let plan = Arc::new(plan);
            app.plans.put(&stored.key, &plan);
            Ok(Planned { key: stored.key, plan })
        }
        Err(PlanFailure::Author(error)) => {
            app.store.put_plan_error(source.id, &at, &error, app.env.now()).await?;
            Err(PlanFailure::Author(error))
        }
        Err(other) => Err(other),
    }
}

/// A stored plan by its key.
pub(crate) async fn load(app: &App, key: String) -> Result<Planned, PlanFailure> {
    if let Some(plan) = app.plans.get(&key) {
        return Ok(Planned { key, plan });
    }
    let stored = app.store.plan(&key).await?.with_context(|| format!("plan {key} is gone"))?;
    let plan: Plan =
        serde_json::from_str(&stored.body).with_context(|| format!("read plan {key}"))?;
    let plan = Arc::new(plan);
    app.plans.put(&key, &plan);
    Ok(Planned { key, plan })
}

async fn evaluate(
    app: &App,
    source: &Source,
    files: BTreeMap<String, String>,
) -> Result<(StoredPlan, Plan), PlanFailure> {
    let files = files.into_iter().filter(|(path, _)| Bundle::wants(path)).collect();
    let bundle = Bundle::new(files).map_err(|error| PlanFailure::Author(error.to_string()))?;
    if bundle.workflow_files().is_empty() {
        let message = "there are no workflow files: put one into .shuntyard/workflows/ \
                       (`shunt init` makes a first one)";
        return Err(PlanFailure::Author(message.to_owned()));
    }
    // Whoever may change a local repository may run commands on this machine anyhow.
    let trusted = Kind::parse(&source.kind) == Some(Kind::Local);
    let lenient = trusted || app.config.sandbox.allow_missing_walls;
    let require = if lenient { Require::Nothing } else { Require::Walls };
    let evaluated = shuntyard_script::evaluate(&app.launcher, &bundle, app.env.now(), require);
    let evaluated = evaluated.await.map_err(|error| match error {
        EvaluateError::Faults(_) => PlanFailure::Author(clip(error.to_string())),
        EvaluateError::Died { .. } | EvaluateError::TimedOut => {
            PlanFailure::Limit(clip(error.to_string()))
        }
        EvaluateError::MissingLayers(_) => PlanFailure::Limit(format!(
            "{error}; a newer kernel has them, or set sandbox.allow_missing_walls = true"
        )),
        EvaluateError::Spawn { .. } | EvaluateError::Link(_) | EvaluateError::Answer(_) => {
            PlanFailure::Here(error.into())
        }
    })?;
    let faults = rules::check(&evaluated.plan);
    if !faults.is_empty() {
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        return Err(PlanFailure::Author(clip(faults.join("\n"))));
    }
    let text = |bytes| String::from_utf8(bytes).expect("JSON is UTF-8");
    // The folder belongs to the plan's name: two folders may describe the same jobs with other
    // functions.
    let stored = StoredPlan {
        key: shuntyard_script::plan_key(&bundle),
        body: text(evaluated.bytes),
        folder: text(bundle.to_json()),
    };
    Ok((stored, evaluated.plan))
}

fn clip(mut text: String) -> String {
    if text.len() > ERROR_BYTES_MAX {
        let end = text.floor_char_boundary(ERROR_BYTES_MAX);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_plans_max_is_kept_by_dropping_the_oldest() {
        let cache = PlanCache::default();
        for i in 0..=CACHED_PLANS_MAX {
            cache.put(&i.to_string(), &Arc::new(Plan::default()));
        }
        assert!(cache.get("0").is_none());
        assert!(cache.get("1").is_some());
        assert_eq!(cache.0.lock().unwrap().len(), CACHED_PLANS_MAX);
    }

    #[test]
    fn error_bytes_max_is_kept_at_a_character() {
        assert_eq!(clip("x".repeat(ERROR_BYTES_MAX)).len(), ERROR_BYTES_MAX);
        assert_eq!(clip("ü".repeat(ERROR_BYTES_MAX)).len(), ERROR_BYTES_MAX);
        assert_eq!(clip(format!("x{}", "ü".repeat(ERROR_BYTES_MAX))).len(), ERROR_BYTES_MAX - 1);
    }
}
