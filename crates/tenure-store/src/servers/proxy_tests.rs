use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};

/// Answers each byte with itself, on as many connections as come.
fn echo() -> SocketAddr {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
    address
}

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(5);

struct Line(StdStream);

impl Line {
    fn open(proxy: &TcpProxy) -> Self {
        let stream = StdStream::connect(proxy.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    fn send(&mut self, byte: u8) {
        self.0.write_all(&[byte]).unwrap();
    }

    fn hear(&mut self, patience: Duration) -> io::Result<u8> {
        let mut byte = [0];
        self.0.set_read_timeout(Some(patience)).unwrap();
        self.0.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn answers(&mut self, byte: u8) {
        self.send(byte);
        assert_eq!(self.hear(LONG).unwrap(), byte);
    }

    fn hears_nothing(&mut self) {
        let e = self.hear(SHORT).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::WouldBlock, "{e}");
    }
}

#[test]
fn what_is_held_arrives_once_the_network_heals() {
    let proxy = TcpProxy::start(echo());
    let mut line = Line::open(&proxy);
    line.answers(1);
    for cut in [
        TcpProxy::to_server,
        TcpProxy::to_client,
        TcpProxy::both_ways,
    ] {
        cut(&proxy, TrafficMode::Hold);
        line.send(2);
        line.hears_nothing();
        proxy.heal();
        assert_eq!(line.hear(LONG).unwrap(), 2);
        line.answers(3);
    }
}

#[test]
fn what_is_lost_never_arrives_nor_does_anything_after_it() {
    let proxy = TcpProxy::start(echo());
    let mut line = Line::open(&proxy);
    line.answers(1);
    proxy.to_client(TrafficMode::Lose);
    line.send(2);
    line.hears_nothing();
    proxy.heal();
    line.send(3);
    line.hears_nothing();
    Line::open(&proxy).answers(4);
}

#[test]
fn a_delay_counts_once_per_direction() {
    let proxy = TcpProxy::start(echo());
    let mut line = Line::open(&proxy);
    let late = Duration::from_millis(60);
    proxy.both_ways(TrafficMode::Delay(late));
    let begun = std::time::Instant::now();
    line.answers(1);
    let took = begun.elapsed();
    assert!(took >= late * 2 && took < late * 6, "{took:?}");
}

#[test]
fn a_reset_is_told_and_a_half_open_connection_is_not() {
    let proxy = TcpProxy::start(echo());
    let (mut a, mut b) = (Line::open(&proxy), Line::open(&proxy));
    a.answers(1);
    proxy.half_open();
    a.send(2);
    a.hears_nothing();
    proxy.reset();
    let e = a.hear(LONG).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::ConnectionReset, "{e}");
    b.hear(LONG).unwrap_err();
    Line::open(&proxy).answers(3);
}

#[test]
fn refused_connections_are_refused_and_open_ones_stay() {
    let proxy = TcpProxy::start(echo());
    let mut line = Line::open(&proxy);
    line.answers(1);
    proxy.refuse();
    let begun = std::time::Instant::now();
    while let Ok(_early) = StdStream::connect(proxy.address()) {
        assert!(begun.elapsed() < LONG, "it should be refused soon");
    }
    line.answers(2);
    proxy.heal();
    let begun = std::time::Instant::now();
    while StdStream::connect(proxy.address()).is_err() {
        assert!(begun.elapsed() < LONG, "it should be accepted soon");
    }
    Line::open(&proxy).answers(3);
}
