//! Constant load: requests are due at fixed times, from which their durations count.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Outcome of the requests so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of requests with a response or an error.
    pub answered: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Durations of the successful requests, in microseconds.
    pub micros: Vec<u32>,
    /// Number of successful responses by node.
    pub by_node: BTreeMap<String, u64>,
    /// Numbers of the successful requests.
    pub good: AcknowledgedNumbers,
    /// Longest time between two successful responses for one key, beyond the pace.
    pub longest_gap: Duration,
    /// Error of the last failed request.
    pub last_failure: String,
}

/// Numbers that were acknowledged, by key, as runs of neighbours, so that a load of days does not fill the memory.
#[derive(Debug, Default)]
pub struct AcknowledgedNumbers(BTreeMap<usize, Vec<(u64, u64)>>);

impl AcknowledgedNumbers {
    fn push(&mut self, key: usize, number: u64) {
        let runs = self.0.entry(key).or_default();
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }

    /// Every number, with its key.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.0.iter().flat_map(|(key, runs)| {
            let numbers = runs.iter().flat_map(|(first, last)| *first..=*last);
            numbers.map(|number| (*key, number))
        })
    }
}

/// Running load, which ends when dropped.
pub struct Load {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts a load of one request per `pace` for each of `keys` keys, up to `most` requests per key.
    ///
    /// Requests of one key go through one router, one after the other.
    pub fn begin(routers: &[SocketAddr], keys: usize, pace: Duration, most: u64) -> Self {
        Self::begin_about("k", routers, keys, pace, most)
    }

    /// As [`Load::begin`], for keys of other names.
    pub fn begin_about(
        prefix: &'static str,
        routers: &[SocketAddr],
        keys: usize,
        pace: Duration,
        most: u64,
    ) -> Self {
        let (tally, stop) = (
            Arc::<Mutex<Tally>>::default(),
            Arc::new(AtomicBool::new(false)),
        );
        let start = Instant::now();
        let tasks = (0..keys).map(|key| {
            let routers: Vec<_> = (0..routers.len())
                .map(|n| routers[(key + n) % routers.len()])
                .collect();
            let (tally, stop) = (tally.clone(), stop.clone());
            let start = start + pace * key as u32 / keys as u32;
            let client = Client {
                prefix,
                routers,
                sender: None,
            };
            tokio::spawn(one_key(key, client, start, pace, most, tally, stop))
        });
        Self {
            tasks: tasks.collect(),
            tally,
            stop,
        }
    }

    /// Outcome so far.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// Returns whether all requests have ended.
    pub fn is_over(&self) -> bool {
        self.tasks.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the end of all requests, or only of the started ones if `now`.
    pub async fn end(mut self, now: bool) -> Tally {
        if now {
            self.stop.store(true, Ordering::Relaxed);
        }
        for task in std::mem::take(&mut self.tasks) {
            let _ = task.await;
        }
        std::mem::take(&mut *self.tally())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Tally {
    /// Durations of the successful requests at the given thousandths.
    pub fn percentiles<const N: usize>(&self, permille: [usize; N]) -> [Duration; N] {
        let mut sorted = self.micros.clone();
        sorted.sort_unstable();
        permille.map(|p| match sorted.len() {
            0 => Duration::ZERO,
            n => Duration::from_micros(u64::from(sorted[(n - 1) * p / 1000])),
        })
    }
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn one_key(
    key: usize,
    mut client: Client,
    start: Instant,
    pace: Duration,
    most: u64,
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
) {
    let mut last_good: Option<Instant> = None;
    for number in 1..=most {
        let due = start + pace.mul_f64((number - 1) as f64);
        tokio::time::sleep_until(due.into()).await;
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let answer = client.send(key, number).await;
        let now = Instant::now();
        let mut tally = lock(&tally);
        tally.answered += 1;
        match answer {
            Ok(node) => {
                let took = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
                tally.micros.push(took);
                tally.good.push(key, number);
                *tally.by_node.entry(node).or_default() += 1;
                let gap = last_good.map_or(Duration::ZERO, |last| now - last);
                tally.longest_gap = tally.longest_gap.max(gap.saturating_sub(pace));
                last_good = Some(now);
            }
            Err(reason) => {
                tally.failed += 1;
                tally.last_failure = reason;
            }
        }
    }
}

/// A client with one connection, that goes to the next router if it gets none.
struct Client {
    prefix: &'static str,
    routers: Vec<SocketAddr>,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Sends one; says which node answered, or why it failed.
    async fn send(&mut self, key: usize, number: u64) -> Result<String, String> {
        let name = format!("{}{key}", self.prefix);
        let request = |host: SocketAddr| {
            Request::post("/count")
                .header("host", host.to_string())
                .header("x-key", &name)
                .body(Full::from(number.to_string()))
                .map_err(|e| e.to_string())
        };
        let mut kept = self.sender.take();
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None;
        }
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let host = self.routers[0];
        let mut answer = sender.try_send_request(request(host)?).await;
        if answer
            .as_mut()
            .err()
            .is_some_and(|e| e.take_message().is_some())
        {
            // The connection was gone before anything was sent.
            sender = self.connect().await?;
            answer = sender.try_send_request(request(self.routers[0])?).await;
        }
        let answer = answer.map_err(|e| e.into_error().to_string())?;
        let (head, body) = answer.into_parts();
        let text = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
        self.sender = Some(sender);
        if !head.status.is_success() {
            let text = String::from_utf8_lossy(&text);
            return Err(format!(
                "the router responded {}: {}",
                head.status,
                text.trim()
            ));
        }
        let node = head.headers.get(tenure_server::headers::NODE);
        Ok(node.and_then(|n| n.to_str().ok()).unwrap_or("?").to_owned())
    }

    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, String> {
        let mut reason = String::new();
        for _ in 0..self.routers.len() {
            match TcpStream::connect(self.routers[0]).await {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    let opened = handshake(TokioIo::new(stream)).await;
                    let (sender, connection) = opened.map_err(|e| e.to_string())?;
                    tokio::spawn(connection);
                    return Ok(sender);
                }
                Err(error) => {
                    reason = error.to_string();
                    self.routers.rotate_left(1);
                }
            }
        }
        Err(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::AcknowledgedNumbers;

    #[test]
    fn numbers_that_are_missing_stay_missing() {
        let mut good = AcknowledgedNumbers::default();
        for (key, number) in [(0, 1), (1, 1), (0, 2), (0, 4), (0, 5)] {
            good.push(key, number);
        }
        let all: Vec<_> = good.iter().collect();
        assert_eq!(all, [(0, 1), (0, 2), (0, 4), (0, 5), (1, 1)]);
    }
}
