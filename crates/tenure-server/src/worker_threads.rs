//! Threads that each serve their own connections, from the client to the owner and back.
//!
//! A request then crosses no thread: neither its wake-ups nor the connection that it goes on over. On a runtime that shares its
//! work among threads half of a proxy's time goes into waking the other one.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// More threads than this share what is kept per lane.
pub(crate) const MOST: usize = 64;

thread_local! {
    static LANE: Cell<usize> = const { Cell::new(0) };
}

/// The lane of this thread; those that are not one of ours share the first.
pub(crate) fn current() -> usize {
    LANE.get()
}

/// A few threads. What runs on them is dropped with the last of these.
#[derive(Clone, Debug)]
pub struct WorkerThreads(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handles: Vec<Handle>,
    next: AtomicUsize,
    stop: CancellationToken,
}

impl WorkerThreads {
    /// So many threads.
    pub fn new(count: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let mut handles = Vec::new();
        for lane in 1..=count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            handles.push(runtime.handle().clone());
            let stopped = stop.clone();
            let serve = move || {
                LANE.set(lane % MOST);
                runtime.block_on(stopped.cancelled());
            };
            thread::Builder::new()
                .name(format!("lane-{lane}"))
                .spawn(serve)?;
        }
        Ok(Self(Arc::new(Inner {
            handles,
            next: AtomicUsize::new(0),
            stop,
        })))
    }

    /// As many as there are processors.
    pub fn per_processor() -> io::Result<Self> {
        Self::new(thread::available_parallelism().map_or(1, usize::from))
    }

    /// Serves a connection on the next lane.
    pub(crate) fn spawn<F>(
        &self,
        (stream, client): (TcpStream, SocketAddr),
        serve: impl FnOnce(TcpStream, SocketAddr) -> F + Send + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Its readiness is to be told to the lane, and no longer to the thread that accepted it.
        let stream = stream.into_std()?;
        let next = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.handles[next % self.0.handles.len()].spawn(async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(stream, client).await;
            }
        });
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn connections_go_round_the_lanes_and_each_stays_on_its_own() {
        let lanes = WorkerThreads::new(2).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (told, mut heard) = mpsc::unbounded_channel();
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(TcpStream::connect(address).await.unwrap());
            let told = told.clone();
            let serve = |stream: TcpStream, _| async move {
                let before = current();
                stream.writable().await.unwrap();
                tokio::task::yield_now().await;
                told.send((before, current())).unwrap();
            };
            lanes
                .spawn(listener.accept().await.unwrap(), serve)
                .unwrap();
        }
        let mut seen = Vec::new();
        for _ in 0..4 {
            let (before, after) = heard.recv().await.unwrap();
            assert_eq!(before, after);
            seen.push(before);
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 1, 2, 2]);
        assert_eq!(current(), 0);
    }

    #[tokio::test]
    async fn what_runs_on_them_is_dropped_with_them() {
        let lanes = WorkerThreads::new(1).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).await.unwrap();
        let (held, mut dropped) = mpsc::channel::<()>(1);
        let serve = |_, _| async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        lanes
            .spawn(listener.accept().await.unwrap(), serve)
            .unwrap();
        drop(lanes);
        assert_eq!(dropped.recv().await, None);
    }
}
