//! How objects of any kind are scaled: asked of the server through their scale subresource, and remembered.
//!
//! ```text
//!   planner ──asks──► known? ──yes──► answer
//!                       │ no: it waits, the server is asked, the plan is made once more
//!                       ▼
//!        discovery (the kind) ──► watch of the kind's metadata ──► its scale
//! ```
//!
//! An answer holds until the watch sees that its object has changed; then whoever asked looks again. So a reconcile
//! that changes nothing asks the server nothing, and the objects themselves, of whatever size, are not cached. When
//! nobody asks any more, the watch ends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use http::{Method, StatusCode};
use k8s_openapi::{api::autoscaling::v1::Scale, apimachinery::pkg::apis::meta::v1::APIResourceList};
use moorline_plan::Failure;
use serde::{Deserialize, Serialize};

use crate::{
    cache::{Cache, Collection, Event, Listening, Selection},
    kind::{Kind, Scope},
    object::{Key, Object, Target},
    request,
};

/// How long the first list of a kind may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// An object of whatever kind, as owners are referred to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// Group and version.
    pub api_version: String,
    /// The kind's name.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            api_version,
            kind,
            namespace,
            name,
        } = self;
        write!(f, "{kind} {namespace}/{name} ({api_version})")
    }
}

/// The scales that one controller has asked for.
pub(crate) struct Scales {
    cache: Cache,
    /// Whether each namespace is watched by itself.
    by_namespace: bool,
    wake: Box<dyn Fn(Key) + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By group and version, and name.
    kinds: HashMap<(String, String), Kind>,
    watches: HashMap<Selection, Watch>,
    known: HashMap<Reference, Known>,
    /// Who asked for what when it was last looked at.
    asked: HashMap<Key, BTreeSet<Reference>>,
}

struct Watch {
    collection: Arc<Collection>,
    _listening: Listening,
}

#[derive(Default)]
struct Known {
    askers: BTreeSet<Key>,
    answer: Option<Answer>,
}

struct Answer {
    /// `None` if there is no such object.
    scale: Option<Object>,
    /// The version of the object at which it is true.
    version: u64,
}

impl Answer {
    /// Whether nothing has been seen that could have changed it.
    fn holds(&self, collection: &Collection, reference: &Reference) -> bool {
        let there = collection.get(&reference.namespace, &reference.name);
        match (&self.scale, there) {
            (None, there) => there.is_none(),
            (Some(scale), Some(there)) => scale.uid() == there.uid() && there.version() <= self.version,
            // Either the watch is behind, or the object is gone.
            (Some(_), None) => collection.progress().version < self.version,
        }
    }
}

impl Scales {
    pub(crate) fn new(cache: Cache, by_namespace: bool, wake: impl Fn(Key) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            cache,
            by_namespace,
            wake: Box::new(wake),
            state: Mutex::default(),
        })
    }

    /// The scale, or nothing if there is no such object, where that is known and still holds. From now on a change of the object wakes the key.
    fn known(&self, key: &Key, reference: &Reference) -> Option<Vec<Object>> {
        let mut state = self.state();
        state.asked.entry(key.clone()).or_default().insert(reference.clone());
        let known = state.known.entry(reference.clone()).or_default();
        known.askers.insert(key.clone());
        let state = &*state;
        let answer = state.known[reference].answer.as_ref()?;
        let kind = state.kinds.get(&of_kind(reference))?;
        let watch = state.watches.get(&self.selection(kind, reference))?;
        answer
            .holds(&watch.collection, reference)
            .then(|| answer.scale.iter().cloned().collect())
    }

    /// Asks the server, and remembers the answer.
    async fn find(self: &Arc<Self>, reference: &Reference) -> Result<Vec<Object>, Failure> {
        let remembered = self.state().kinds.get(&of_kind(reference)).cloned();
        let kind = match remembered {
            Some(kind) => kind,
            None => self.discover(reference).await?,
        };
        let collection = self.watch(&kind, reference);
        if tokio::time::timeout(PATIENCE, collection.synced()).await.is_err() {
            return Err(Failure::retry(format!(
                "the scale of {reference} is not known: {kind:?} were not listed within {PATIENCE:?}"
            )));
        }
        let target = Target {
            kind,
            namespace: reference.namespace.as_str().into(),
            name: reference.name.as_str().into(),
            cluster: None,
        };
        let path = format!("{}/scale", request::path_of(&target));
        let scale = match request::send(self.cache.client(), Method::GET, &path, None).await {
            Ok(bytes) => {
                let scale = request::read(&Kind::of::<Scale>(), &bytes);
                Some(scale.map_err(|error| unknown(reference, &error))?)
            }
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
                // Either the object is not there, or its kind is no longer what it was.
                self.discover(reference).await?;
                None
            }
            Err(error) => return Err(unknown(reference, &error)),
        };
        let answer = Answer {
            version: scale.as_ref().map_or(0, Object::version),
            scale: scale.clone(),
        };
        if let Some(known) = self.state().known.get_mut(reference) {
            known.answer = Some(answer);
        }
        Ok(scale.into_iter().collect())
    }

    /// Finds out where the API serves a kind, and that it has scales.
    async fn discover(&self, reference: &Reference) -> Result<Kind, Failure> {
        let of_kind = of_kind(reference);
        self.state().kinds.remove(&of_kind);
        let Reference { api_version, kind, .. } = reference;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        // It was written by whoever made the object that refers, and becomes part of a path.
        let is_name = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.bytes().all(allowed)
        };
        if !is_name(version) || !(group.is_empty() || is_name(group)) {
            return Err(Failure::retry(format!("{reference} has no valid apiVersion")));
        }
        let path = if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{group}/{version}")
        };
        let list = match request::send(self.cache.client(), Method::GET, &path, None).await {
            Ok(bytes) => {
                serde_json::from_slice::<APIResourceList>(&bytes).map_err(|error| unknown(reference, &error))?
            }
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
                return Err(Failure::retry(format!("no kind of {api_version} is served")));
            }
            Err(error) => return Err(unknown(reference, &error)),
        };
        let mut resources = list.resources.iter();
        let resource = resources
            .find(|resource| resource.kind == *kind && !resource.name.contains('/'))
            .ok_or_else(|| Failure::retry(format!("no kind {kind} is served in {api_version}")))?;
        let subresource = format!("{}/scale", resource.name);
        let has_scale = list
            .resources
            .iter()
            .any(|resource| resource.name == subresource && resource.kind == "Scale");
        if !has_scale || !resource.namespaced {
            let dot = if group.is_empty() { "" } else { "." };
            return Err(Failure::retry(format!(
                "{}{dot}{group} does not implement the scale subresource",
                resource.name
            )));
        }
        let found = Kind::new(group, version, kind, &resource.name, Scope::Namespaced);
        self.state().kinds.insert(of_kind, found.clone());
        Ok(found)
    }

    fn watch(self: &Arc<Self>, kind: &Kind, reference: &Reference) -> Arc<Collection> {
        let selection = self.selection(kind, reference);
        if let Some(watch) = self.state().watches.get(&selection) {
            return Arc::clone(&watch.collection);
        }
        let collection = self.cache.borrowed(&selection);
        let scales: Weak<Self> = Arc::downgrade(self);
        // It is told at once of what is there, so nothing may be locked.
        let listening = collection.listen(move |event| {
            if let Some(scales) = scales.upgrade() {
                scales.take(event);
            }
        });
        let watch = Watch {
            collection: Arc::clone(&collection),
            _listening: listening,
        };
        self.state().watches.entry(selection).or_insert(watch);
        collection
    }

    fn take(&self, event: &Event<'_>) {
        let object = event.object();
        let reference = Reference {
            api_version: object.kind().api_version(),
            kind: object.kind().name().to_owned(),
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
        };
        let mut state = self.state();
        let Some(known) = state.known.get_mut(&reference) else {
            return;
        };
        // What leaves the generation as it is leaves the scale as it is.
        if let (Some(old), Some(new), Some(answer)) = (event.old, event.new, &mut known.answer)
            && new.generation() > 0
            && new.generation() == old.generation()
            && new.uid() == old.uid()
            && answer.version >= old.version()
        {
            answer.version = answer.version.max(new.version());
            return;
        }
        for key in &known.askers {
            (self.wake)(key.clone());
        }
    }

    /// A key has been looked at, and this is all that it asked for.
    pub(crate) fn settle(&self, key: &Key, asks: &BTreeSet<Reference>) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(asked) = state.asked.get_mut(key) else { return };
        let dropped: Vec<Reference> = asked.difference(asks).cloned().collect();
        asked.retain(|reference| asks.contains(reference));
        if asked.is_empty() {
            state.asked.remove(key);
        }
        if dropped.is_empty() {
            return;
        }
        for reference in dropped {
            if let Some(known) = state.known.get_mut(&reference) {
                known.askers.remove(key);
                if known.askers.is_empty() {
                    state.known.remove(&reference);
                }
            }
        }
        let State {
            kinds, watches, known, ..
        } = state;
        let needed: BTreeSet<(String, String)> = known.keys().map(of_kind).collect();
        kinds.retain(|kind, _| needed.contains(kind));
        let used: Vec<Selection> = known
            .keys()
            .filter_map(|reference| Some(self.selection(kinds.get(&of_kind(reference))?, reference)))
            .collect();
        let unused: Vec<Watch> = watches
            .extract_if(|selection, _| !used.contains(selection))
            .map(|(_, watch)| watch)
            .collect();
        drop(guard);
        for watch in unused {
            self.cache.let_go(watch.collection);
        }
    }

    fn selection(&self, kind: &Kind, reference: &Reference) -> Selection {
        let all = Selection::all(kind.clone()).metadata();
        if self.by_namespace {
            all.within(&*reference.namespace)
        } else {
            all
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this")
    }
}

fn of_kind(reference: &Reference) -> (String, String) {
    (reference.api_version.clone(), reference.kind.clone())
}

fn unknown(reference: &Reference, error: &dyn fmt::Display) -> Failure {
    Failure::retry(format!("the scale of {reference} is not known: {error}"))
}

/// What one reconcile asks for.
pub(crate) struct Asking {
    scales: Arc<Scales>,
    key: Key,
    questions: Mutex<Questions>,
}

#[derive(Default)]
struct Questions {
    asked: BTreeSet<Reference>,
    unanswered: BTreeSet<Reference>,
    /// What the server said since the reconcile began.
    answers: BTreeMap<Reference, Result<Vec<Object>, Failure>>,
}

impl Asking {
    pub(crate) fn new(scales: Arc<Scales>, key: Key) -> Self {
        Self {
            scales,
            key,
            questions: Mutex::default(),
        }
    }

    /// The scale, nothing if there is no such object, or that the answer is not there yet.
    pub(crate) fn ask(&self, reference: &Reference) -> Result<Vec<Object>, Failure> {
        let mut questions = self.questions();
        questions.asked.insert(reference.clone());
        if let Some(answer) = questions.answers.get(reference) {
            return answer.clone();
        }
        if let Some(known) = self.scales.known(&self.key, reference) {
            return Ok(known);
        }
        questions.unanswered.insert(reference.clone());
        Err(Failure::waiting(format!("the scale of {reference} is being asked for")))
    }

    /// Asks the server what was not known. Tells whether there was anything, so that it is worth planning once more.
    pub(crate) async fn resolve(&self) -> bool {
        let unanswered = std::mem::take(&mut self.questions().unanswered);
        if unanswered.is_empty() {
            self.scales.settle(&self.key, &self.questions().asked);
            return false;
        }
        for reference in unanswered {
            let answer = self.scales.find(&reference).await;
            self.questions().answers.insert(reference, answer);
        }
        // What the plan asks for once it knows more is what counts.
        self.questions().asked.clear();
        true
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().expect("nothing panics while it holds this")
    }
}
