//! A real PostgreSQL server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Gid, Uid};
use rustix::process::Signal;
use tempfile::TempDir;

use super::{Server, await_ready, binary, free_port, is_root, listens};

/// Where `.ci/servers` puts them unless told otherwise, and where Debian and others do.
const PLACES: [&str; 6] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/servers"),
    "/usr/lib/postgresql",
    "/usr/pgsql",
    "/usr/local/pgsql",
    "/usr",
    "/usr/local",
];

/// The releases that we run on, newest first.
const RELEASES: [&str; 6] = ["18", "17", "16", "15", "14", "13"];

/// The user that the server runs as where the tests run as root, which it refuses to be.
const USER: &str = "postgres";

/// A PostgreSQL server with a data directory of its own. The superuser is `postgres`; whoever connects is believed.
#[derive(Debug)]
pub struct Postgres {
    server: Option<Server>,
    dir: TempDir,
    port: u16,
    settings: Vec<String>,
}

impl Postgres {
    /// Starts a server.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with settings such as `max_connections=10`.
    pub fn start_with(settings: &[&str]) -> Self {
        let mut postgres = Self::prepare(settings);
        copy(&template(), &postgres.data());
        postgres.restart();
        postgres
    }

    /// Starts a standby that follows `primary`.
    pub fn standby_of(primary: &Self) -> Self {
        let mut postgres = Self::prepare(&[]);
        let data = postgres.data();
        let args = [
            "--host=127.0.0.1".to_owned(),
            format!("--port={}", primary.port),
            "--username=postgres".to_owned(),
            format!("--pgdata={}", data.display()),
            "--write-recovery-conf".to_owned(),
            "--checkpoint=fast".to_owned(),
            "--no-sync".to_owned(),
        ];
        run(&program("pg_basebackup"), &args);
        postgres.restart();
        postgres
    }

    fn prepare(settings: &[&str]) -> Self {
        let dir = super::temporary_directory("tenure-postgres");
        give_away(dir.path());
        Self {
            server: None,
            dir,
            port: free_port(),
            settings: settings.iter().map(|s| (*s).to_owned()).collect(),
        }
    }

    /// Starts the server again, after [`Postgres::kill`] or [`Postgres::stop`], on the same port and data.
    pub fn restart(&mut self) {
        assert!(self.server.is_none(), "the server is still running");
        let mut args = vec![
            "-D".to_owned(),
            self.data().display().to_string(),
            format!("-p{}", self.port),
            format!("-k{}", self.dir.path().display()),
            "-clisten_addresses=127.0.0.1".to_owned(),
            // Tests kill the server, not the machine: what it wrote is never lost, and disks are slow.
            "-cfsync=off".to_owned(),
            "-cshared_buffers=16MB".to_owned(),
            // In the data directory, so that nothing is left behind by a server that is killed.
            "-cdynamic_shared_memory_type=mmap".to_owned(),
        ];
        args.extend(self.settings.iter().map(|s| format!("-c{s}")));
        let log = self.dir.path().join("log");
        let mut server = Server::start(&program("postgres"), &args, user(), &log);
        let ready = [
            format!("--host={}", self.dir.path().display()),
            format!("--port={}", self.port),
            "--quiet".to_owned(),
        ];
        let pg_isready = program("pg_isready");
        await_ready(&mut server, "PostgreSQL", || {
            let asked = Command::new(&pg_isready).args(&ready).status();
            asked.is_ok_and(|status| status.success())
        });
        self.server = Some(server);
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Where its sockets, its log and other files of a test are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The URL of the superuser's own database.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same through another port, such as that of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    /// The running server.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("the server is running")
    }

    /// Kills it as a power cut would, except that what the kernel has is kept.
    pub fn kill(&mut self) {
        drop(self.server.take());
    }

    /// Stops it at once, which rolls back what is under way and closes all connections.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.stop(Signal::INT);
        }
    }

    /// Runs statements as the superuser and gives what they print, without headings; panics if they fail.
    pub fn sql(&self, sql: &str) -> String {
        self.psql(&self.url(), sql)
            .unwrap_or_else(|e| panic!("{sql}\n{e}"))
    }

    /// Runs statements over a connection of one's choice.
    pub fn psql(&self, url: &str, sql: &str) -> Result<String, String> {
        let args = ["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql];
        let output = Command::new(program("psql")).args(args).output();
        let output = output.map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Takes a dump of a schema, drops the schema, and loads the dump, as a restore from a backup does.
    pub fn dump_and_load(&self, schema: &str) {
        let (url, file) = (self.url(), self.dir.path().join("dump.sql"));
        let file = file.display().to_string();
        let done = |program: &str, args: &[&str]| {
            let output = Command::new(self::program(program)).args(args).output();
            let output = output.expect("the program can be run");
            assert!(output.status.success(), "{output:?}");
        };
        done("pg_dump", &["-d", &url, "-n", schema, "-f", &file]);
        self.sql(&format!("DROP SCHEMA {schema} CASCADE"));
        done(
            "psql",
            &["-Xq", "-v", "ON_ERROR_STOP=1", "-d", &url, "-f", &file],
        );
    }

    /// Replaces the rules of who may connect, and makes them count.
    pub fn set_access(&self, rules: &str) {
        self.write("pg_hba.conf", rules, 0o600);
        self.sql("SELECT pg_reload_conf()");
    }

    /// Writes a file into the data directory.
    pub fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.data().join(name);
        fs::write(&path, text).expect("the data directory can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("modes can be set");
        give_away(&path);
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

/// A real PgBouncer in front of a server.
#[derive(Debug)]
pub struct PgBouncer {
    _server: Server,
    _dir: TempDir,
    port: u16,
}

impl PgBouncer {
    /// Starts one whose pools work by `mode`: `session`, `transaction` or `statement`.
    pub fn start(postgres: &Postgres, mode: &str) -> Self {
        let dir = super::temporary_directory("tenure-pgbouncer");
        let port = free_port();
        let config = dir.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\n",
            postgres.port
        );
        // With this kind of authentication everybody is who the database line says, so it must.
        let text = text.replace("host=", "user=postgres host=");
        fs::write(&config, text).expect("a file can be written");
        give_away(dir.path());
        give_away(&config);
        let program = binary(
            &["pgbouncer/usr/sbin/pgbouncer", "pgbouncer"],
            &[PLACES[0], "/usr/sbin"],
        );
        let args = [config.display().to_string()];
        let log = dir.path().join("log");
        let mut server = Server::start(&program, &args, user(), &log);
        await_ready(&mut server, "PgBouncer", || listens(port));
        Self {
            _server: server,
            _dir: dir,
            port,
        }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // One that is asked to go gives back the memory that it shares among its processes; the kernel does not.
        if let Some(mut server) = self.server.take() {
            server.stop(Signal::QUIT);
        }
    }
}

fn program(name: &str) -> PathBuf {
    let mut names = Vec::new();
    for release in RELEASES {
        names.push(format!("{release}/bin/{name}"));
        names.push(format!("postgres/usr/lib/postgresql/{release}/bin/{name}"));
    }
    names.push(format!("bin/{name}"));
    names.push(name.to_owned());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    binary(&names, &PLACES)
}

fn user() -> Option<&'static str> {
    is_root().then_some(USER)
}

/// A data directory to copy: making one takes longer than everything else together.
///
/// Kept in the directory for temporary files under a name of this user's and this version's own.
fn template() -> PathBuf {
    let initdb = program("initdb");
    let version = initdb.to_string_lossy().replace('/', "-");
    let uid = rustix::process::geteuid().as_raw();
    let place = std::env::temp_dir().join(format!("tenure-postgres-template-{uid}{version}"));
    if place.join("ready").exists() {
        return place.join("data");
    }
    let unique = SystemTime::now().duration_since(UNIX_EPOCH);
    let unique = unique.map_or(0, |age| age.as_nanos());
    let draft = place.with_extension(format!("{}-{unique}", std::process::id()));
    fs::create_dir(&draft).expect("a temporary directory can be made");
    give_away(&draft);
    let data = draft.join("data");
    let args = [
        format!("--pgdata={}", data.display()),
        "--auth=trust".to_owned(),
        "--username=postgres".to_owned(),
        "--encoding=UTF8".to_owned(),
        "--locale=C".to_owned(),
        "--no-sync".to_owned(),
        "--wal-segsize=1".to_owned(),
    ];
    run(&initdb, &args);
    fs::write(draft.join("ready"), "").expect("the draft can be finished");
    if fs::rename(&draft, &place).is_err() {
        // Another test was quicker; its template is as good.
        let _ = fs::remove_dir_all(&draft);
    }
    place.join("data")
}

/// Copies a directory with owners and modes.
fn copy(from: &Path, to: &Path) {
    let args = ["-a", "--reflink=auto", "--"].map(str::to_owned);
    let paths = [from, to].map(|path| path.display().to_string());
    let all: Vec<String> = args.into_iter().chain(paths).collect();
    let output = Command::new("cp").args(&all).output();
    let output = output.expect("cp can be run");
    assert!(output.status.success(), "{output:?}");
}

/// Runs a program of the server to its end, as the server's user.
fn run(program: &Path, args: &[String]) {
    let mut command = match user() {
        Some(user) => {
            let mut command = Command::new("setpriv");
            let ids = [format!("--reuid={user}"), format!("--regid={user}")];
            command.args(ids).args(["--init-groups", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    };
    // The server's user may not be allowed to be where this process is.
    command.current_dir(std::env::temp_dir());
    let output = command.args(args).output();
    let output = output.unwrap_or_else(|e| panic!("{} cannot be run: {e}", program.display()));
    assert!(
        output.status.success(),
        "{} failed:\n{}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Gives a file to the server's user.
fn give_away(path: &Path) {
    let Some(user) = user() else {
        return;
    };
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let ids = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        (fields.first() == Some(&user)).then_some(ids)
    });
    let (uid, gid) = ids.unwrap_or_else(|| panic!("there is no user {user}; ./test makes one"));
    let owned = rustix::fs::chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    owned.unwrap_or_else(|e| panic!("{} cannot be given away: {e}", path.display()));
}
