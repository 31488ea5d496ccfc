//! Reading a list ahead: other cores read its objects while this one takes in those before.

use std::{collections::VecDeque, panic::resume_unwind, sync::Arc};

use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::{
    kind::Kind,
    object::{DecodeError, Object},
};

/// How many lines are read in one go: enough to be worth the handing over.
const BATCH: usize = 32;
/// How many batches are read at once or wait to be taken in. With [`BATCH`] it bounds what a list needs beside the cache.
const AHEAD: usize = 4;

/// Reads the objects of one selection.
pub(super) struct Reader {
    pub(super) kind: Kind,
    pub(super) cluster: Option<Arc<str>>,
    /// The field owners whose ownership is remembered.
    pub(super) keep: Arc<[Arc<str>]>,
}

impl Reader {
    pub(super) fn read(&self, json: &[u8]) -> Result<Object, DecodeError> {
        Ok(Object::read(&self.kind, json, &self.keep)?.placed_in(self.cluster.clone()))
    }

    /// The object that a line puts, or the line if something about it is unusual.
    fn read_put(&self, line: Bytes) -> Result<Object, Bytes> {
        let object = usual_put(&line).and_then(|json| self.read(json).ok());
        object.ok_or(line)
    }
}

/// The object of a line as servers write most of them. Whether it really is one shows when it is read: that is one pass
/// over the bytes instead of two.
pub(super) fn usual_put(line: &[u8]) -> Option<&[u8]> {
    let put = [&br#"{"type":"ADDED","object":"#[..], br#"{"type":"MODIFIED","object":"#];
    let rest = put.iter().find_map(|start| line.strip_prefix(*start))?;
    rest.trim_ascii_end().strip_suffix(b"}")
}

/// What was read of some lines, in their order.
pub(super) type Read = Vec<Result<Object, Bytes>>;

/// Takes lines and gives what was read of them, in the same order.
pub(super) struct ReadAhead {
    reader: Arc<Reader>,
    batch: Vec<Bytes>,
    under_way: VecDeque<JoinHandle<Read>>,
}

impl ReadAhead {
    pub(super) fn new(reader: Arc<Reader>) -> Self {
        Self {
            reader,
            batch: Vec::new(),
            under_way: VecDeque::new(),
        }
    }

    /// Takes one more line. Gives what was read of earlier ones once enough are under way.
    pub(super) async fn push(&mut self, line: Bytes) -> Read {
        self.batch.push(line);
        if self.batch.len() < BATCH {
            return Read::new();
        }
        let (reader, batch) = (Arc::clone(&self.reader), std::mem::take(&mut self.batch));
        self.under_way.push_back(tokio::spawn(async move {
            batch.into_iter().map(|line| reader.read_put(line)).collect()
        }));
        if self.under_way.len() < AHEAD {
            return Read::new();
        }
        self.first().await
    }

    /// Gives what was read of all lines that are left.
    pub(super) async fn rest(&mut self) -> Read {
        let mut read = Read::new();
        while !self.under_way.is_empty() {
            read.extend(self.first().await);
        }
        read.extend(self.batch.drain(..).map(|line| self.reader.read_put(line)));
        read
    }

    async fn first(&mut self) -> Read {
        match self.under_way.pop_front() {
            None => Read::new(),
            Some(reading) => match reading.await {
                Ok(read) => read,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime is shutting down, and with it whoever waits for this.
                    Err(_) => std::future::pending().await,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[tokio::test]
    async fn lines_come_back_in_their_order_however_many_there_are() {
        let reader = Arc::new(Reader {
            kind: Kind::of::<Pod>(),
            cluster: None,
            keep: Arc::default(),
        });
        for count in [0, 1, BATCH - 1, BATCH, BATCH * AHEAD, BATCH * AHEAD * 2 + 7] {
            let mut ahead = ReadAhead::new(Arc::clone(&reader));
            let mut read = Read::new();
            for nth in 0..count {
                let line = if nth == 5 {
                    "{\"type\":\"ADDED\",\"object\":{]}}".to_owned()
                } else {
                    format!(r#"{{"type":"ADDED","object":{{"metadata":{{"name":"{nth}"}}}}}}"#)
                };
                read.extend(ahead.push(Bytes::from(line)).await);
            }
            read.extend(ahead.rest().await);
            assert_eq!(read.len(), count);
            for (nth, read) in read.iter().enumerate() {
                match read {
                    Ok(object) => assert_eq!(object.name(), nth.to_string()),
                    Err(line) => assert!(nth == 5 && line.starts_with(b"{\"type\"")),
                }
            }
        }
    }
}
