//! `tenure __app`: the application that `up` and the tests put behind a gate. It counts per key, in memory.
//!
//! Each shard has a journal in a directory that all share: every change is a line there before it is answered, and a load
//! reads it. It serves nothing of a shard that its hooks have not loaded, so that a gate that lets in too much, or too early,
//! is seen.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use tenure_exec::boot_now;
use tenure_server::{Body, BodyError, ServeLimits, Server, Service, bind, headers};
use tokio::io::AsyncWriteExt;

use crate::cmd::exec::Signals;
use crate::config::duration;
use crate::exit::Exit;

/// What `__app` is called with.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoAppArgs {
    /// Where to listen.
    listen: String,
    /// Where the journals are.
    dir: PathBuf,
    /// How long a load takes.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    load: Duration,
    /// A hook that fails.
    #[arg(long)]
    fail: Option<String>,
    /// A hook that does not answer.
    #[arg(long)]
    hang: Option<String>,
    /// Hooks that it does not have.
    #[arg(long)]
    without: Vec<String>,
}

/// One shard that is here.
#[derive(Debug)]
struct Shard {
    epoch: u64,
    counts: HashMap<String, u64>,
    journal: File,
}

struct Counter {
    app: DemoAppArgs,
    shards: Mutex<BTreeMap<String, Shard>>,
}

impl DemoAppArgs {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        let failed = |e: io::Error| Exit::failed(e.to_string());
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        let listener = bind(&self.listen).await.map_err(failed)?;
        let counter = Arc::new(Counter {
            app: self,
            shards: Mutex::default(),
        });
        let server = Server::start(listener, ServeLimits::default(), counter).map_err(failed)?;
        signals.any().await;
        drop(server);
        Ok(ExitCode::SUCCESS)
    }
}

impl Service for Counter {
    async fn answer(self: Arc<Self>, request: Request<Incoming>, _: SocketAddr) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let answered = match path.strip_prefix("/hooks/") {
            Some(hook) => self.hook(hook, request).await,
            None => self.work(&path, request).await,
        };
        answered.unwrap_or_else(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }
}

type Answered = Result<Response<Body>, BodyError>;

impl Counter {
    fn shards(&self) -> MutexGuard<'_, BTreeMap<String, Shard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn hook(&self, hook: &str, request: Request<Incoming>) -> Answered {
        let body = request.into_body().collect().await?.to_bytes();
        let said: serde_json::Value = serde_json::from_slice(&body)?;
        let shard = format!("{}-{}", said["keyspace"], said["shard"]).replace('"', "");
        let epoch = said["epoch"].as_u64().unwrap_or_default();
        if self.app.without.iter().any(|w| w == hook) {
            return Ok(text(StatusCode::NOT_FOUND, String::new()));
        }
        if self.app.hang.as_deref() == Some(hook) {
            std::future::pending::<()>().await;
        }
        if self.app.fail.as_deref() == Some(hook) {
            let reason = format!("configured to fail at {hook}");
            return Ok(text(StatusCode::INTERNAL_SERVER_ERROR, reason));
        }
        match hook {
            "load" => {
                tokio::time::sleep(self.app.load).await;
                self.load(&shard, epoch)?;
            }
            "catch_up" => self.load(&shard, epoch)?,
            "seal" => {
                let length = match self.shards().get(&shard) {
                    Some(shard) => shard.journal.metadata()?.len(),
                    None => {
                        return Err(format!("shard {shard} is not loaded in this process").into());
                    }
                };
                return Ok(text(StatusCode::OK, length.to_string()));
            }
            "release" => {
                let mut shards = self.shards();
                if shards.get(&shard).is_some_and(|s| s.epoch <= epoch) {
                    shards.remove(&shard);
                }
            }
            _ => return Ok(text(StatusCode::NOT_FOUND, String::new())),
        }
        Ok(text(StatusCode::OK, String::new()))
    }

    fn load(&self, shard: &str, epoch: u64) -> io::Result<()> {
        let path = self.app.dir.join(format!("{shard}.log"));
        let mut options = OpenOptions::new();
        let journal = options.create(true).append(true).read(true).open(&path)?;
        let mut counts = HashMap::new();
        for line in std::fs::read_to_string(&path)?.lines() {
            if let Some(key) = line.split(' ').nth(2) {
                *counts.entry(key.to_owned()).or_default() += 1;
            }
        }
        let loaded = Shard {
            epoch,
            counts,
            journal,
        };
        self.shards().insert(shard.to_owned(), loaded);
        Ok(())
    }

    async fn work(&self, path: &str, request: Request<Incoming>) -> Answered {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let number = query.split('=').nth(1).and_then(|n| n.parse().ok());
        let number: u64 = number.unwrap_or_default();
        match path {
            "/slow" => {
                let (head, body) = request.into_parts();
                tokio::time::sleep(Duration::from_millis(number)).await;
                self.count(Request::from_parts(head, body)).await
            }
            "/sink" => {
                let taken = request.into_body().collect().await?.to_bytes();
                Ok(text(StatusCode::OK, taken.len().to_string()))
            }
            "/big" => Ok(Response::new(Body::other(pieces(number)))),
            "/headers" => {
                let lines = request.headers().iter();
                let lines =
                    lines.map(|(n, v)| format!("{n}: {}", String::from_utf8_lossy(v.as_bytes())));
                Ok(text(StatusCode::OK, lines.collect::<Vec<_>>().join("\n")))
            }
            "/refuses" => {
                // An application's own 421 is an answer like any other, whatever it says.
                let mut answer = text(StatusCode::MISDIRECTED_REQUEST, "mine".to_owned());
                let word = hyper::header::HeaderValue::from_static("elsewhere");
                answer.headers_mut().insert(headers::REFUSED, word);
                Ok(answer)
            }
            "/events" => {
                let mut answer = Response::new(Body::other(events()));
                let kind = hyper::header::HeaderValue::from_static("text/event-stream");
                answer
                    .headers_mut()
                    .insert(hyper::header::CONTENT_TYPE, kind);
                Ok(answer)
            }
            "/socket" => Ok(socket(request)),
            _ => self.count(request).await,
        }
    }

    /// A POST counts its key up and writes down what it was sent; the answer is the count, and who gave it.
    async fn count(&self, request: Request<Incoming>) -> Answered {
        let (head, body) = request.into_parts();
        let said = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
        let value = |name| head.headers.get(name).and_then(|v| v.to_str().ok());
        let (shard, key) = (value(headers::SHARD), value(headers::KEY).unwrap_or("-"));
        let shard = shard.unwrap_or_default().replacen('/', "-", 1);
        let epoch = headers::epoch_of(&head.headers).unwrap_or_default().0;
        let mut shards = self.shards();
        let Some(here) = shards.get_mut(&shard) else {
            return Err(format!("shard {shard} is not loaded in this process").into());
        };
        if head.method == Method::POST {
            let (now, pid) = (boot_now().0, std::process::id());
            let line = format!("{now} {epoch} {key} {} {pid}\n", said.trim());
            here.journal.write_all(line.as_bytes())?;
            *here.counts.entry(key.to_owned()).or_default() += 1;
        }
        let count = here.counts.get(key).copied().unwrap_or_default();
        Ok(text(StatusCode::OK, count.to_string()))
    }
}

fn text(status: StatusCode, text: String) -> Response<Body> {
    let mut answer = Response::new(Body::of(text));
    *answer.status_mut() = status;
    answer
}

type Pieces = StreamBody<
    std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<Frame<Bytes>, BodyError>> + Send>>,
>;

fn pieces(bytes: u64) -> Pieces {
    const PIECE: u64 = 64 * 1024;
    let whole = (0..bytes / PIECE).map(|_| PIECE);
    let sizes = whole.chain(Some(bytes % PIECE).filter(|rest| *rest > 0));
    let frames = sizes.map(|n| Ok(Frame::data(Bytes::from(vec![b'x'; n as usize]))));
    StreamBody::new(Box::pin(tokio_stream::iter(frames)))
}

fn events() -> Pieces {
    let (send, events) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for n in 0.. {
            let event = Frame::data(Bytes::from(format!("data: {n}\n\n")));
            if send.send(Ok(event)).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    StreamBody::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(
        events,
    )))
}

/// A WebSocket that says a word every few milliseconds until its client is gone.
fn socket(mut request: Request<Incoming>) -> Response<Body> {
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(stream) = upgrading.await else { return };
        let (mut from, mut to) = tokio::io::split(hyper_util::rt::TokioIo::new(stream));
        let words = async {
            loop {
                to.write_all(&[0x81, 2, b'h', b'i']).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let mut nowhere = tokio::io::sink();
        let farewell = tokio::io::copy(&mut from, &mut nowhere);
        let _: io::Result<()> = tokio::select! {
            ended = words => ended,
            _ = farewell => Ok(()),
        };
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(
        "connection",
        hyper::header::HeaderValue::from_static("upgrade"),
    );
    headers.insert(
        "upgrade",
        hyper::header::HeaderValue::from_static("websocket"),
    );
    answer
}
