//! Starting a coordinator, and stopping it.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use axum_server::{Handle, tls_rustls::RustlsAcceptor};
use shuntyard_core::timers::CLOCK_ERROR_MAX;
use shuntyard_protocol::{InstanceId, Timestamp};
use shuntyard_script::Launcher;
use shuntyard_store::{Database, Instance, Options, Store, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    app::{App, Pokes, Shared},
    config::Config,
    connections::{self, Connections, limited},
    data,
    dispatch::{self, Classes},
    env::Env,
    expiry, gates,
    git::Git,
    hints, http,
    http::hooks::Unverified,
    inbox,
    link::{Agents, Handshakes},
    local::{ADMIN_TOKEN_FILE, machine_token},
    metrics::Metrics,
    planner::PlanCache,
    secrets::MasterKey,
    starts,
    tasks::{Poke, Tasks},
    watch,
};

/// How often an instance says that it lives, and measures the database's clock.
const BEAT_PERIOD: Duration = Duration::from_secs(10);
/// How often a start asks for the database's time until the answer comes in time.
const CLOCK_TRIES_MAX: u32 = 10;
/// An instance that has not said so for this long is dead.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// File in the data folder with the id of the instance that runs with it.
const INSTANCE_FILE: &str = "instance";
/// Safety net of reconcilers that are poked.
const POLL_PERIOD: Duration = Duration::from_secs(5);
/// Open requests are given this long when the process stops.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// What [`start`] needs besides the configuration.
pub struct StartOptions {
    pub config: Config,
    pub env: Env,
    /// How to start the child that evaluates workflow files.
    pub launcher: Launcher,
    pub stop: CancellationToken,
    /// Where to listen when `config.listen` is taken: the next free ports.
    pub next_free_port: bool,
}

/// A coordinator that is ready.
pub struct Running {
    pub app: Shared,
    pub address: SocketAddr,
    handle: Handle<SocketAddr>,
    /// Held as long as the data folder is in use.
    _lock: File,
}

/// What the start found out.
pub struct Started {
    pub running: Running,
    /// Whether this start made [`ADMIN_TOKEN_FILE`] for the owner of the cluster.
    pub first: bool,
}

/// Opens the store, starts everything and returns when it serves.
///
/// # Errors
/// When the address is taken, the database cannot be opened, the master key is not the database's,
/// or the configuration is unsafe.
pub async fn start(options: StartOptions) -> anyhow::Result<Started> {
    let StartOptions { config, env, launcher, stop, next_free_port } = options;
    config.check()?;
    let data = config.data_dir.clone();
    data::make_private_dir(&data)?;
    let lock = data::lock(&data)?;
    let database = database(&config)?;
    data::close(&data, &database)?;
    let listener = listen(config.listen, next_free_port)?;
    let address = listener.local_addr().context("address of the listener")?;
    let instance = InstanceId::mint(env.now(), env.random());
    let clock = env.clone();
    let (store, writers) = Store::open(Options {
        database,
        segments: Some(data.join("segments")),
        instance,
        clock: Arc::new(move || clock.now()),
    })
    .await?;
    set_clock(&env, async || store.db_now().await).await?;
    let (key, cluster) = master_key(&config, &store, &env).await?;
    take_over(&store, &data, instance).await?;
    let url = config.base_url(address);
    let tasks = Tasks::new(stop);
    for writer in writers {
        tasks.spawn("store writer", writer.run());
    }
    let (starts, wanted) = mpsc::channel(starts::CAPACITY);
    let app = Arc::new(App {
        git: Git::new(data.join("mirrors")),
        env,
        store,
        tasks,
        key,
        launcher,
        instance,
        cluster,
        url,
        agents: Agents::default(),
        plans: PlanCache::default(),
        classes: Classes::default(),
        starts,
        pokes: Pokes::default(),
        unverified: Unverified::default(),
        handshakes: Handshakes::default(),
        metrics: Metrics::default(),
        config,
    });
    let first = first_admin_token(&app).await?;
    beat(&app, app.env.now()).await?;
    app.tasks.spawn("starts", starts::run(Arc::clone(&app), wanted));
    spawn_reconcilers(&app);
    let handle = serve(&app, listener).await?;
    Ok(Started { running: Running { app, address, handle, _lock: lock }, first })
}

impl Running {
    /// Stops serving, then everything else. What was promised stays in the database.
    pub async fn stop(self) {
        self.handle.graceful_shutdown(Some(STOP_GRACE));
        self.app.tasks.shut_down().await;
        drop(self.app.store.remove_instance(self.app.instance).await);
        self.app.store.close().await;
    }
}

/// The master key, which must be the database's, and the cluster's id. Only a new database gets a
/// new key.
async fn master_key(
    config: &Config,
    store: &Store,
    env: &Env,
) -> anyhow::Result<(MasterKey, String)> {
    let file = config.master_key_file.as_ref();
    let path = file.map_or_else(|| config.data_dir.join("master.key"), PathBuf::clone);
    let place = path.display();
    let mut made = false;
    let (key, place) = match (&config.master_key, file) {
        (Some(_), Some(_)) => bail!("master_key and master_key_file exclude each other"),
        (Some(key), None) => {
            (MasterKey::parse(key.reveal()).context("master_key")?, "master_key".to_owned())
        }
        (None, _) => match MasterKey::load(&path)? {
            Some(key) => (key, place.to_string()),
            None if store.known_cluster().await?.is_some() => bail!(
                "the database is sealed with a master key, and {place} is missing: put it back, or set \
                 master_key_file"
            ),
            None => {
                made = true;
                (MasterKey::create(&path, env)?, place.to_string())
            }
        },
    };
    let id = env.secret();
    let row = store.cluster(&id[..32], key.check_value().as_bytes(), env.now()).await?;
    if row.key_check != key.check_value().as_bytes() {
        if made {
            // Another coordinator was first.
            drop(std::fs::remove_file(&path));
        }
        bail!(
            "the database was sealed with another master key than {place}: put the right one there, or \
             set master_key_file"
        );
    }
    Ok((key, row.id))
}

pub(crate) fn database(config: &Config) -> anyhow::Result<Database> {
    let url = match (&config.database.url, &config.database.url_file) {
        (Some(_), Some(_)) => bail!("database.url and database.url_file exclude each other"),
        (Some(url), None) => Some(url.reveal().to_owned()),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path);
            Some(text.with_context(|| format!("read {}", path.display()))?.trim().to_owned())
        }
        (None, None) => None,
    };
    match url {
        None => Ok(Database::Sqlite(config.data_dir.join("shuntyard.db"))),
        Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
            Ok(Database::Postgres(url))
        }
        Some(_) => bail!("database.url must begin with postgres://"),
    }
}

fn listen(address: SocketAddr, next_free: bool) -> anyhow::Result<std::net::TcpListener> {
    let ports = address.port()..=if next_free {
        address.port().saturating_add(100)
    } else {
        address.port()
    };
    let mut last = None;
    for port in ports {
        match std::net::TcpListener::bind((address.ip(), port)) {
            Ok(listener) => {
                listener.set_nonblocking(true).context("make the listener non-blocking")?;
                return Ok(listener);
            }
            Err(error) => last = Some(error),
        }
    }
    let error = last.map_or_else(|| anyhow::anyhow!("no port"), anyhow::Error::from);
    Err(error).with_context(|| {
        format!("cannot listen on {address}; is another server running? --listen chooses another address")
    })
}

async fn serve(
    app: &Shared,
    listener: std::net::TcpListener,
) -> anyhow::Result<Handle<SocketAddr>> {
    let router = http::router(Arc::clone(app));
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let handle = Handle::new();
    let config = &app.config.http;
    let patience = Duration::from_secs(config.head_timeout_secs);
    let connections = Connections::new(config.connections_max);
    let server = axum_server::from_tcp(listener).context("serve")?.handle(handle.clone());
    let server = limited(server, patience);
    match &app.config.tls {
        None => {
            let server = server.acceptor(connections);
            app.tasks.spawn("http", async move {
                if let Err(error) = server.serve(service).await {
                    tracing::error!(%error, "http server ended");
                }
            });
        }
        Some(tls) => {
            let tls = RustlsAcceptor::new(connections::tls(tls).await?).acceptor(connections);
            let server = server.acceptor(tls);
            app.tasks.spawn("https", async move {
                if let Err(error) = server.serve(service).await {
                    tracing::error!(%error, "https server ended");
                }
            });
        }
    }
    Ok(handle)
}

fn spawn_reconcilers(app: &Shared) {
    let changes = app.store.changes();
    app.tasks.spawn("hints", hints::forward(Arc::clone(app), changes));
    let reconcile = |name, period, poke: &Poke, tick: fn(Shared) -> Tick| {
        let app_of_tick = Arc::clone(app);
        app.tasks.reconcile(name, period, poke.clone(), move || tick(Arc::clone(&app_of_tick)));
    };
    reconcile("inbox", POLL_PERIOD, &app.pokes.inbox, |app| {
        Box::pin(async move { inbox::tick(&app).await })
    });
    reconcile("dispatch", POLL_PERIOD, &app.pokes.dispatch, |app| {
        Box::pin(async move { dispatch::tick(&app).await })
    });
    reconcile("gates", gates::PERIOD, &app.pokes.gates, |app| {
        Box::pin(async move { gates::tick(&app).await })
    });
    reconcile("expiry", expiry::PERIOD, &Poke::default(), |app| {
        Box::pin(async move { expiry::tick(&app).await })
    });
    reconcile("watch", app.config.watch_period, &app.pokes.watch, |app| {
        Box::pin(async move { watch::tick(&app).await })
    });
    let started = app.env.now();
    let beating = Arc::clone(app);
    app.tasks.reconcile("beat", BEAT_PERIOD, Poke::default(), move || {
        let app = Arc::clone(&beating);
        async move { beat(&app, started).await }
    });
}

type Tick = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Before anything is decided by it.
async fn set_clock(
    env: &Env,
    ask: impl AsyncFn() -> Result<Timestamp, StoreError>,
) -> anyhow::Result<()> {
    for _ in 0..CLOCK_TRIES_MAX {
        if env.adjust(ask()).await? {
            return Ok(());
        }
    }
    bail!(
        "the database takes more than {} s to tell its time, so nothing can be timed by it; \
        is it overloaded, or far away?",
        CLOCK_ERROR_MAX.as_secs()
    )
}

/// Says that this instance lives, and sets the clock by the database's.
async fn beat(app: &App, started_at: Timestamp) -> anyhow::Result<()> {
    if !app.env.adjust(app.store.db_now()).await? {
        tracing::warn!(
            "the database took too long to tell its time; the clock goes on as it was set"
        );
    }
    let instance = Instance {
        id: app.instance,
        name: "coordinator".to_owned(),
        url: Some(app.url.clone()),
        software: env!("CARGO_PKG_VERSION").to_owned(),
        started_at,
        beat_at: app.env.now(),
    };
    app.store.beat(&instance).await?;
    let now = app.env.now();
    if app.store.adopt_deliveries(now - DEAD_AFTER, now).await? > 0 {
        app.pokes.inbox.poke();
    }
    Ok(())
}

/// Whoever ran with this data folder before is dead, or the folder would be locked: what it had
/// taken is free at once, and not only when it has been silent for long enough.
async fn take_over(store: &Store, data: &Path, instance: InstanceId) -> anyhow::Result<()> {
    let path = data.join(INSTANCE_FILE);
    let earlier = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    if let Some(earlier) = earlier {
        store.remove_instance(earlier).await?;
    }
    std::fs::write(&path, instance.to_string()).with_context(|| format!("write {}", path.display()))
}

/// The first start of a cluster makes a token for its owner. Whether this is the first one.
async fn first_admin_token(app: &App) -> anyhow::Result<bool> {
    let path = app.config.data_dir.join(ADMIN_TOKEN_FILE);
    let known = app.store.tokens(None).await?.iter().any(|token| token.kind == "api");
    if known || path.exists() {
        return Ok(false);
    }
    machine_token(app).await?;
    Ok(true)
}

/// A link that signs one browser in, once, within 15 minutes.
pub async fn sign_in_link(app: &App) -> anyhow::Result<String> {
    http::signin::link(app).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

    use super::*;
    use crate::env::Clock;

    /// Somebody moves it.
    #[derive(Default)]
    struct Hand(AtomicI64);

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            Timestamp(self.0.load(Ordering::Relaxed))
        }
    }

    #[tokio::test]
    async fn a_start_asks_for_the_time_clock_tries_max_times() {
        let hand = Arc::new(Hand::default());
        let env = Env::new(Arc::clone(&hand) as Arc<dyn Clock>);
        let asked = AtomicU32::new(0);
        // Each answer but the one that is `quick` comes a moment too late.
        let ask = async |quick: u32| {
            let n = asked.fetch_add(1, Ordering::Relaxed) + 1;
            let took = i64::try_from(CLOCK_ERROR_MAX.as_millis()).unwrap() + i64::from(n != quick);
            hand.0.fetch_add(took, Ordering::Relaxed);
            Ok(Timestamp(1_000_000))
        };
        set_clock(&env, async || ask(CLOCK_TRIES_MAX).await).await.unwrap();
        assert_eq!(env.now(), Timestamp(1_000_000));
        asked.store(0, Ordering::Relaxed);
        let error = set_clock(&env, async || ask(CLOCK_TRIES_MAX + 1).await).await.unwrap_err();
        assert!(error.to_string().contains("more than 1 s to tell its time"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), CLOCK_TRIES_MAX);
        assert!(env.now() > Timestamp(1_000_000), "it goes on as it was set");
    }
}
