//! One request of a scenario, and what is remembered of its answer for later ones.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use crate::client::{Answer, Client, ClientError};

/// A request with gaps `{like this}` that earlier answers fill, each server's with its own.
#[derive(Clone, Debug)]
pub struct Step {
    /// The verb.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Under which names which parts of the answer are remembered.
    pub keep: Vec<(String, String)>,
    /// Sent again until the answer is of this kind.
    pub until: Until,
}

/// When a step is done with asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The first answer counts.
    Answered,
    /// What a server does in its own time, such as serving a new kind, is waited for.
    Found,
    /// Gone, that is.
    NotFound,
    /// The answer itself does not count and is not compared: it prepares or clears away.
    Ignored,
}

/// A list of steps that belong together.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What replays it: the generator's name and the seed.
    pub name: String,
    /// What is sent, in order.
    pub steps: Vec<Step>,
}

/// What one server's answers have filled the gaps with.
pub type Memory = BTreeMap<String, String>;

impl Step {
    fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            headers: Vec::new(),
            body: Vec::new(),
            keep: Vec::new(),
            until: Until::Answered,
        }
    }

    /// Reads.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// Creates.
    pub fn post(path: impl Into<String>, object: &Value) -> Self {
        Self::new(Method::POST, path).json("application/json", object)
    }

    /// Replaces.
    pub fn put(path: impl Into<String>, object: &Value) -> Self {
        Self::new(Method::PUT, path).json("application/json", object)
    }

    /// Deletes.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Any verb.
    pub fn of(method: Method, path: impl Into<String>) -> Self {
        Self::new(method, path)
    }

    /// Patches; the kind is what stands before `-patch+json`.
    pub fn patch(path: impl Into<String>, kind: &str, change: &Value) -> Self {
        Self::new(Method::PATCH, path).json(&format!("application/{kind}-patch+json"), change)
    }

    /// Applies, server-side.
    pub fn apply(path: impl Into<String>, manager: &str, force: bool, object: &Value) -> Self {
        let path = path.into();
        let mark = if path.contains('?') { '&' } else { '?' };
        let force = if force { "&force=true" } else { "" };
        Self::new(Method::PATCH, format!("{path}{mark}fieldManager={manager}{force}"))
            .json("application/apply-patch+yaml", object)
    }

    /// With a JSON body of this content type.
    #[must_use]
    pub fn json(self, content_type: &str, body: &Value) -> Self {
        self.raw(content_type, body.to_string())
    }

    /// With any body.
    #[must_use]
    pub fn raw(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("content-type", content_type)
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// As another user.
    #[must_use]
    pub fn impersonate(self, user: &str) -> Self {
        self.header("impersonate-user", user)
    }

    /// Remembers what stands at a JSON pointer of the answer.
    #[must_use]
    pub fn keep(mut self, name: &str, pointer: &str) -> Self {
        self.keep.push((name.to_owned(), pointer.to_owned()));
        self
    }

    /// Waits for what a server does in its own time.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// The request as one server gets it.
    pub fn filled(&self, memory: &Memory) -> (String, Bytes) {
        let body = match std::str::from_utf8(&self.body) {
            Ok(text) => Bytes::from(fill(text, memory)),
            Err(_) => Bytes::copy_from_slice(&self.body),
        };
        (fill(&self.path, memory), body)
    }

    /// Sends it, as often as it wants to be sent.
    pub async fn send(&self, client: &Client, memory: &mut Memory) -> Result<Answer, ClientError> {
        let (path, body) = self.filled(memory);
        for attempt in 0.. {
            let answer = client
                .send(self.method.clone(), &path, &self.headers, body.clone())
                .await?;
            let satisfied = match self.until {
                Until::Answered | Until::Ignored => true,
                Until::Found => answer.status.is_success(),
                Until::NotFound => answer.status.as_u16() == 404,
            };
            if satisfied || attempt == ATTEMPTS {
                self.remember(&answer, memory);
                return Ok(answer);
            }
            tokio::time::sleep(PAUSE).await;
        }
        unreachable!("the last attempt returns")
    }

    fn remember(&self, answer: &Answer, memory: &mut Memory) {
        if self.keep.is_empty() {
            return;
        }
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        for (name, pointer) in &self.keep {
            let found = match body.pointer(pointer) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
            memory.insert(name.clone(), found);
        }
    }
}

const ATTEMPTS: u32 = 200;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

/// Fills the gaps that are known; other braces are left alone, since JSON is full of them.
fn fill(text: &str, memory: &Memory) -> String {
    let mut filled = text.to_owned();
    for (name, value) in memory {
        filled = filled.replace(&format!("{{{name}}}"), value);
    }
    filled
}
