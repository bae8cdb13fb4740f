use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

/// What the service keeps: the values, and beside them the greatest epoch seen of each shard.
#[derive(Default)]
struct Kept {
    values: BTreeMap<String, String>,
    newest: BTreeMap<String, u64>,
}

impl Kept {
    /// Takes a change unless its epoch is older than one that was seen.
    fn put(&mut self, key: String, value: String, shard: &str, epoch: u64) -> Result<(), u64> {
        let newest = self.newest.entry(shard.to_owned()).or_default();
        if epoch < *newest {
            return Err(*newest);
        }
        *newest = epoch;
        self.values.insert(key, value);
        Ok(())
    }
}

/// Answers `PUT /KEY` with the headers `Tenure-Shard` and `Tenure-Epoch`.
pub(crate) fn serve(listener: TcpListener) -> std::io::Result<()> {
    let mut kept = Kept::default();
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut lines = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let key = line.split_whitespace().nth(1).unwrap_or("/").to_owned();
        let mut headers = BTreeMap::new();
        loop {
            line.clear();
            lines.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let number = |name: &str| headers.get(name).and_then(|text| text.parse::<u64>().ok());
        let mut body = vec![0; number("content-length").unwrap_or(0) as usize];
        lines.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let answer = match (headers.get("tenure-shard"), number("tenure-epoch")) {
            (Some(shard), Some(epoch)) => match kept.put(key, body, shard, epoch) {
                Ok(()) => "204 No Content\r\n".to_owned(),
                Err(newest) => format!("409 Conflict\r\nTenure-Epoch: {newest}\r\n"),
            },
            // A writer that does not say under which epoch it writes cannot be told from a late one.
            _ => "428 Precondition Required\r\n".to_owned(),
        };
        write!(
            stream,
            "HTTP/1.1 {answer}Content-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
    }
    Ok(())
}
