//! A PostgreSQL server of one's own, for tests.
//!
//! Each [`Postgres`] is a fresh cluster in a temporary folder that listens on a Unix socket only.
//! It is stopped when dropped, and dies with the thread that started it should that be killed; so
//! start it on the test's own thread, once per test, and give each case a database.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{
    Database, StoreError,
    db::{Db, on},
    error::During,
};

/// `nobody`, whom the server runs as when the tests run as root: it refuses root.
const NOBODY: u32 = 65_534;
const MISSING: &str = "PostgreSQL's programs initdb and postgres are needed for this test: \
    install the Debian package postgresql-15 (any version from 13 on will do)";

/// A running server.
pub struct Postgres {
    folder: PathBuf,
    server: Child,
    fsync: &'static str,
}

impl Postgres {
    /// Starts a server; `name` tells it from others of this process.
    ///
    /// # Panics
    /// When PostgreSQL is not installed, or does not start.
    pub fn start(name: &str) -> Self {
        Self::launch(name, "off")
    }

    /// The same with every commit on the disk, for measurements.
    ///
    /// # Panics
    /// When PostgreSQL is not installed, or does not start.
    pub fn start_durable(name: &str) -> Self {
        Self::launch(name, "on")
    }

    fn launch(name: &str, fsync: &'static str) -> Self {
        let folder = env::temp_dir().join(format!("shunt-pg-{}-{name}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).expect("the folder of temporary files is writable");
        if is_root() {
            chown(&folder, Some(NOBODY), Some(NOBODY)).expect("root may give folders away");
        }
        let data = folder.join("data");
        let made = program("initdb")
            .args(["-U", "shunt", "-A", "trust", "-N", "--locale=C", "-E", "UTF8", "-D"])
            .arg(&data)
            .output()
            .expect(MISSING);
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let server = serve(&folder, fsync);
        let mut postgres = Self { folder, server, fsync };
        postgres.wait_until_ready();
        postgres
    }

    /// Breaks every connection and every transaction, and starts the server again with its data.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn restart(&mut self) {
        self.quit();
        self.server = serve(&self.folder, self.fsync);
        self.wait_until_ready();
    }

    /// Ends it at once, together with its children.
    fn quit(&mut self) {
        let pid = self.server.id().to_string();
        let asked = Command::new("kill").args(["-QUIT", &pid]).status();
        if !asked.is_ok_and(|status| status.success()) {
            drop(self.server.kill());
        }
        drop(self.server.wait());
    }

    /// Makes an empty database and returns its URL.
    ///
    /// # Panics
    /// When the server does not answer.
    pub async fn database(&self, name: &str) -> String {
        let mut connection = PgConnection::connect(&self.url("postgres"))
            .await
            .expect("the server was ready when it started");
        sqlx::query(AssertSqlSafe(format!("create database \"{name}\"")))
            .execute(&mut connection)
            .await
            .expect("the name is not taken");
        self.url(name)
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://shunt@localhost/{database}?host={}", self.folder.display())
    }

    fn wait_until_ready(&mut self) {
        let log = self.server.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let mut seen = Vec::new();
        let ready = lines.by_ref().any(|line| {
            let ready = line.contains("ready to accept connections");
            seen.push(line);
            ready
        });
        assert!(ready, "postgres did not start:\n{}", seen.join("\n"));
        // Somebody must read on, or the server would block.
        thread::spawn(move || lines.for_each(drop));
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.quit();
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Rows that the database alone takes per second: durable, five columns, 500 a commit. The PostgreSQL
/// server at `url`, or a `SQLite` file of its own in `folder`.
///
/// # Errors
/// When the database does not answer.
pub async fn rows_per_s(url: Option<&str>, folder: &Path) -> Result<f64, StoreError> {
    const ROWS: i64 = 500;
    const COMMITS: i64 = 100;
    let database = match url {
        Some(url) => Database::Postgres(url.to_owned()),
        None => Database::Sqlite(folder.join("limit.db")),
    };
    let db = Db::open(&database).await?;
    let during = "measure the database";
    let mut tx = db.begin().await?;
    let table = "create table limit_of_rows (a bigint, b bigint, c bigint, d text, e text)";
    on!(&mut tx, Db, c => sqlx::query(table).execute(c).await.map(drop)).during(during)?;
    tx.commit().await?;
    #[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
    let start = std::time::Instant::now();
    for commit in 0..COMMITS {
        let mut tx = db.begin().await?;
        on!(&mut tx, Db, c => {
            let mut q = sqlx::QueryBuilder::<Db>::new("insert into limit_of_rows (a, b, c, d, e) ");
            q.push_values(0..ROWS, |mut row, i| {
                row.push_bind(commit).push_bind(i).push_bind(i * 7);
                row.push_bind("a text of some length, as rows have them");
                row.push_bind("another text, about as long as an id is when it is written");
            });
            q.build().execute(c).await.map(drop)
        })
        .during(during)?;
        tx.commit().await?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of rows")]
    let rate = (ROWS * COMMITS) as f64 / start.elapsed().as_secs_f64();
    db.close().await;
    Ok(rate)
}

fn serve(folder: &Path, fsync: &str) -> Child {
    program("postgres")
        .arg("-D")
        .arg(folder.join("data"))
        .arg("-k")
        .arg(folder)
        .args(["-c", "listen_addresses=", "-c", "max_connections=200", "-c"])
        .arg(format!("fsync={fsync}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect(MISSING)
}

/// A PostgreSQL program as a user that it accepts, which dies with this thread.
fn program(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.args(["--pdeathsig", "QUIT"]).arg(find(name)).current_dir("/");
    command
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// A program on the path, or where Debian puts the servers.
fn find(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = env::split_paths(&path)
        .chain(debian.map(|version| version.path().join("bin")))
        .map(|folder| folder.join(name))
        .find(|program: &PathBuf| Path::is_file(program));
    found.expect(MISSING)
}
