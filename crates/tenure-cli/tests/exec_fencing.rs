//! The examples of `docs/fencing.md`, taken from it and run.

#[path = "exec_fencing/service.rs"]
mod service;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::{Connection, named_params};

const DOC: &str = include_str!("../../../docs/fencing.md");

/// The SQL of the page that begins with this comment.
fn sql(name: &str) -> &'static str {
    let begin = format!("```sql\n-- {name}\n");
    let (_, rest) = DOC
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no {name}"));
    rest.split_once("```").unwrap().0
}

#[test]
fn sqlite_refuses_older_epochs() {
    let database = Connection::open_in_memory().unwrap();
    database
        .execute_batch("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER); INSERT INTO account VALUES (1, 0)")
        .unwrap();
    database.execute_batch(sql("sqlite: the table")).unwrap();
    let fence = |epoch: i64| {
        let values = named_params! {":shard": "orders/1", ":epoch": epoch};
        database.execute(sql("sqlite: fence"), values).unwrap()
    };
    let add = |epoch: i64| {
        let values = named_params! {":shard": "orders/1", ":epoch": epoch, ":amount": 10, ":id": 1};
        database
            .execute(sql("sqlite: one statement"), values)
            .unwrap()
    };
    assert_eq!(add(1), 0, "nobody has fenced yet");
    assert_eq!((fence(1), fence(1), add(1)), (1, 1, 1));
    assert_eq!((fence(5), add(1), fence(4), add(5)), (1, 0, 0, 1));
    let read = "SELECT balance FROM account";
    let balance: i64 = database.query_row(read, [], |row| row.get(0)).unwrap();
    assert_eq!(balance, 20);
}

#[test]
fn an_http_service_refuses_older_epochs() {
    let code = include_str!("exec_fencing/service.rs");
    assert!(DOC.contains(code), "docs/fencing.md shows another service");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || service::serve(listener));
    let epoch = |epoch: u64| format!("Tenure-Shard: orders/1\r\nTenure-Epoch: {epoch}\r\n");
    assert!(put(address, "").starts_with("HTTP/1.1 428"));
    assert!(put(address, &epoch(1)).starts_with("HTTP/1.1 204"));
    assert!(put(address, &epoch(7)).starts_with("HTTP/1.1 204"));
    let refused = put(address, &epoch(6));
    assert!(
        refused.starts_with("HTTP/1.1 409") && refused.contains("Tenure-Epoch: 7"),
        "{refused}"
    );
    assert!(put(address, &epoch(7)).starts_with("HTTP/1.1 204"));
}

fn put(address: SocketAddr, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "PUT /total HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 2\r\n\r\n42"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn postgres_refuses_older_epochs() {
    let Some(server) = Postgres::start() else {
        tenure_store::servers::skipped(
            "no PostgreSQL server is installed, or it cannot be started",
        );
        return;
    };
    server.run(
        "CREATE TABLE account (id int PRIMARY KEY, balance int); INSERT INTO account VALUES (1, 0)",
    );
    server.run(sql("postgres: the table"));
    let with = |name: &str, epoch: u64| {
        let values = [(":shard", "'orders/1'"), (":amount", "10"), (":id", "1")];
        let text = sql(name).replace(":epoch", &epoch.to_string());
        let text = values
            .iter()
            .fold(text, |text, (from, to)| text.replace(from, to));
        server.run(&text)
    };
    let fence = |epoch| with("postgres: fence", epoch);
    let add = |epoch| with("postgres: change", epoch);
    assert_eq!(add(1), "UPDATE 0", "nobody has fenced yet");
    assert_eq!(
        [fence(1), fence(1), add(1)],
        ["INSERT 0 1", "INSERT 0 1", "UPDATE 1"]
    );
    assert_eq!(
        [fence(5), add(1), fence(4)],
        ["INSERT 0 1", "UPDATE 0", "INSERT 0 0"]
    );
    assert_eq!([add(5), add(6)], ["UPDATE 1", "UPDATE 0"]);
    assert_eq!(server.run("SELECT balance FROM account"), "20");
}

/// A PostgreSQL server of the test's own, reachable by a socket in its directory alone.
struct Postgres {
    dir: tempfile::TempDir,
    bin: PathBuf,
}

impl Postgres {
    fn start() -> Option<Self> {
        let bin = installed()?;
        let dir = tempfile::Builder::new().prefix("pg-").tempdir().ok()?;
        let server = Self { dir, bin };
        // The server refuses to run as root; its package brings a user for it.
        server.make_accessible()?;
        let data = server.path("data");
        server.tool(
            "initdb",
            &["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync"],
        )?;
        let options = format!(
            "-c listen_addresses= -c fsync=off -k {}",
            server.dir.path().display()
        );
        let log = server.path("log");
        server.tool(
            "pg_ctl",
            &["-D", &data, "-l", &log, "-w", "-o", &options, "start"],
        )?;
        Some(server)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn make_accessible(&self) -> Option<()> {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(self.dir.path(), open).ok()
    }

    fn tool(&self, name: &str, args: &[&str]) -> Option<String> {
        let path = self.bin.join(name);
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = Command::new("runuser");
                command.args(["-u", "postgres", "--"]).arg(path);
                command
            }
            false => Command::new(path),
        };
        // Not its output: the server would keep a pipe open.
        let log = std::fs::File::create(self.dir.path().join(format!("{name}.out"))).ok()?;
        let status = command
            .args(args)
            .current_dir(self.dir.path())
            .stdout(log.try_clone().ok()?)
            .stderr(log)
            .status();
        let said = std::fs::read_to_string(self.dir.path().join(format!("{name}.out"))).ok()?;
        status.ok()?.success().then_some(said)
    }

    /// What psql prints last.
    fn run(&self, sql: &str) -> String {
        let output = Command::new(self.bin.join("psql"))
            .args([
                "-h",
                self.dir.path().to_str().unwrap(),
                "-U",
                "postgres",
                "-At",
                "-c",
                sql,
            ])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {error}");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().last().unwrap_or_default().to_owned()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let data = self.path("data");
        self.tool("pg_ctl", &["-D", &data, "-m", "immediate", "-w", "stop"]);
    }
}

fn installed() -> Option<PathBuf> {
    let versions = std::fs::read_dir(Path::new("/usr/lib/postgresql")).ok()?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|v| v.path().join("bin")).collect();
    found.retain(|bin| bin.join("initdb").exists());
    found.sort();
    found.pop()
}
