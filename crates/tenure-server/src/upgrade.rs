//! Streams that were upgraded: bytes in both directions, until one side ends or they must be cut.

use std::future::Future;
use std::pin::pin;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};

/// What a server that goes away says: close, 1001.
const GOING_AWAY: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];
const PIECE: usize = 16 * 1024;

/// Joins both ends; returns when the stream is over.
pub(crate) async fn join(near: OnUpgrade, far: OnUpgrade, cut: impl Future<Output = ()>) {
    let Ok((near, far)) = tokio::try_join!(near, far) else {
        return;
    };
    let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        () = cut => {}
    }
}

/// Joins a client of a WebSocket with its application. When `close` resolves the client is told to close, between two
/// messages; returns when the stream is over, and says whether it had to be cut.
pub(crate) async fn join_websocket(
    client: OnUpgrade,
    application: OnUpgrade,
    close: impl Future<Output = ()>,
    cut: impl Future<Output = ()>,
) -> bool {
    let Ok((client, application)) = tokio::try_join!(client, application) else {
        return false;
    };
    let (from_client, to_client) = split(client);
    let (from_application, to_application) = split(application);
    let up = copy(from_client, to_application);
    let down = tell(from_application, to_client, close);
    tokio::select! {
        _ = async { tokio::join!(up, down) } => false,
        () = cut => true,
    }
}

type Io = TokioIo<Upgraded>;

fn split(stream: Upgraded) -> (tokio::io::ReadHalf<Io>, tokio::io::WriteHalf<Io>) {
    tokio::io::split(TokioIo::new(stream))
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let _ = tokio::io::copy(&mut from, &mut to).await;
    let _ = to.shutdown().await;
}

/// Copies whole messages, and once told so says that this is the end.
async fn tell(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    close: impl Future<Output = ()>,
) {
    let mut close = pin!(close);
    let (mut closing, mut told) = (false, false);
    let mut frames = Frames::default();
    let mut piece = vec![0; PIECE];
    loop {
        if closing && !told && frames.is_between() {
            told = true;
            if to.write_all(&GOING_AWAY).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
        let n = tokio::select! {
            biased;
            () = &mut close, if !closing => {
                closing = true;
                continue;
            }
            n = from.read(&mut piece) => n.unwrap_or(0),
        };
        if n == 0 {
            let _ = to.shutdown().await;
            return;
        }
        // After the client was told, the application's words end here: it hears the client's farewell and closes.
        if !told {
            let pass = frames.advance(&piece[..n], closing);
            if to.write_all(&piece[..pass]).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    }
}

/// Where in a stream of WebSocket frames we are.
#[derive(Debug, Default)]
struct Frames {
    head: [u8; 10],
    head_len: usize,
    payload: u64,
    /// The frame under way is part of a message that goes on.
    fragment: bool,
    in_message: bool,
}

impl Frames {
    /// Whether one message is over and the next has not begun.
    fn is_between(&self) -> bool {
        self.head_len == 0 && self.payload == 0 && !self.in_message
    }

    /// Reads on; returns how much of it was read: all, or if `stop` is set up to the first end of a message.
    fn advance(&mut self, bytes: &[u8], stop: bool) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.payload > 0 {
                let skip = self.payload.min((bytes.len() - at) as u64);
                self.payload -= skip;
                at += skip as usize;
            } else {
                self.head[self.head_len] = bytes[at];
                self.head_len += 1;
                at += 1;
                self.begin_payload();
            }
            if self.payload == 0 && self.head_len == 0 {
                self.in_message = self.fragment;
                if stop && self.is_between() {
                    return at;
                }
            }
        }
        at
    }

    /// Looks whether the head of a frame is complete.
    fn begin_payload(&mut self) {
        let [first, second, ..] = self.head;
        // Servers do not mask, so a head is 2, 4 or 10 bytes long.
        let (need, short) = match second & 0x7f {
            126 => (4, None),
            127 => (10, None),
            n => (2, Some(u64::from(n))),
        };
        if self.head_len < 2 || self.head_len < need {
            return;
        }
        self.payload = short.unwrap_or_else(|| {
            let digits = self.head[2..need].iter();
            digits.fold(0, |n, byte| n << 8 | u64::from(*byte))
        });
        // Control frames may stand between the fragments of a message and end none.
        if first & 0x08 == 0 {
            self.fragment = first & 0x80 == 0;
        }
        self.in_message = true;
        self.head_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_message_is_found_wherever_the_pieces_are_cut() {
        let mut stream = vec![0x81, 3, b'a', b'b', b'c'];
        let first = stream.len();
        stream.extend([0x01, 126, 0x01, 0x00]);
        stream.extend([7; 256]);
        stream.extend([0x89, 0]); // a ping between two fragments
        stream.extend([0x80, 127, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2]);
        let second = stream.len();
        stream.extend([0x82, 0]);
        for cut in 1..stream.len() {
            let mut frames = Frames::default();
            let (a, b) = stream.split_at(cut);
            assert_eq!(frames.advance(a, false), a.len());
            let between = [first, second].contains(&cut);
            assert_eq!(frames.is_between(), between, "after {cut}");
            let next = [first, second, stream.len()].into_iter().find(|e| *e > cut);
            assert_eq!(cut + frames.advance(b, true), next.unwrap());
            assert!(frames.is_between());
        }
    }
}
