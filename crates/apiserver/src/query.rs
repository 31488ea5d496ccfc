//! The options that a request carries in its query.

use std::{borrow::Cow, num::NonZeroUsize, time::Duration};

use moorline_machinery::{
    field::{FieldError, Path},
    gvk::GroupKind,
    selector::{FieldSelector, LabelSelector},
    status::ApiError,
};

/// The query of a request, as pairs in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Takes a query string apart.
    pub(crate) fn parse(query: &str) -> Self {
        Self(
            form_urlencoded::parse(query.as_bytes())
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// The first value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Every value of a name.
    pub(crate) fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// A switch. As in Kubernetes, anything but a plain no means yes, an empty value too.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F"))
    }

    /// Whether the request is to be carried through without leaving a trace.
    pub(crate) fn dry_run(&self, options: &GroupKind) -> Result<bool, ApiError> {
        let asked: Vec<&str> = self.all("dryRun").filter(|value| !value.is_empty()).collect();
        if asked.iter().any(|value| *value != "All") {
            let error = FieldError::not_supported(&Path::root("dryRun"), asked, ["All"].as_slice());
            return Err(ApiError::invalid(options, "", &[error]));
        }
        Ok(!asked.is_empty())
    }

    /// Who writes, for the managed fields: as told, or the first part of the user agent.
    pub(crate) fn field_manager(&self, user_agent: Option<&str>) -> String {
        match self.get("fieldManager") {
            Some(manager) if !manager.is_empty() => manager.to_owned(),
            _ => default_manager(user_agent.unwrap_or_default()).into_owned(),
        }
    }
}

/// The program's name in a user agent, bounded as managers are.
fn default_manager(user_agent: &str) -> Cow<'_, str> {
    let program = user_agent.split('/').next().unwrap_or_default();
    let bounded = program
        .char_indices()
        .nth(128)
        .map_or(program, |(end, _)| &program[..end]);
    if bounded.chars().all(|c| !c.is_control()) {
        Cow::Borrowed(bounded)
    } else {
        Cow::Owned(bounded.chars().filter(|c| !c.is_control()).collect())
    }
}

/// What a list or a watch asks for.
#[derive(Clone, Debug)]
pub(crate) struct ListOptions {
    /// Which objects, by label.
    pub(crate) labels: LabelSelector,
    /// Which objects, by field.
    pub(crate) fields: FieldSelector,
    /// The most objects of a page.
    pub(crate) limit: Option<NonZeroUsize>,
    /// Where the page before ended.
    pub(crate) continue_token: Option<String>,
    /// The revision that is asked for; an empty one is none.
    pub(crate) resource_version: Option<u64>,
    /// How it is meant.
    pub(crate) version_match: Option<VersionMatch>,
    /// For a watch: begin with what is there.
    pub(crate) send_initial_events: Option<bool>,
    /// For a watch: bookmarks are welcome.
    pub(crate) bookmarks: bool,
    /// How long a watch may last.
    pub(crate) timeout: Option<Duration>,
}

/// How a revision in a list is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    /// Anything from there on.
    NotOlderThan,
    /// Just that one.
    Exact,
}

impl ListOptions {
    /// Reads the options of a list or a watch, and refuses combinations that mean nothing, as Kubernetes does.
    pub(crate) fn parse(query: &Query, watch: bool) -> Result<Self, ApiError> {
        let labels = query.get("labelSelector").unwrap_or_default();
        let fields = query.get("fieldSelector").unwrap_or_default();
        let options = Self {
            labels: labels
                .parse()
                .map_err(|error| ApiError::bad_request(format!("{error}")))?,
            fields: fields
                .parse()
                .map_err(|error| ApiError::bad_request(format!("{error}")))?,
            limit: number(query, "limit")?.and_then(|limit| NonZeroUsize::new(usize::try_from(limit).unwrap_or(0))),
            continue_token: query
                .get("continue")
                .filter(|token| !token.is_empty())
                .map(str::to_owned),
            resource_version: resource_version(query, watch)?,
            version_match: version_match(query)?,
            send_initial_events: query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents")),
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout: number(query, "timeoutSeconds")?
                .and_then(|s| u64::try_from(s).ok())
                .map(Duration::from_secs),
        };
        options.check(watch)?;
        Ok(options)
    }

    fn check(&self, watch: bool) -> Result<(), ApiError> {
        let forbidden = |field: &str, why: &str| Err(invalid(&[FieldError::forbidden(&Path::root(field), why)]));
        if watch {
            if self.send_initial_events.is_some() && self.version_match != Some(VersionMatch::NotOlderThan) {
                let at = Path::root("resourceVersionMatch");
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                let mut errors = vec![FieldError::forbidden(&at, why)];
                if self.version_match.is_some() {
                    errors.push(FieldError::not_supported(&at, "Exact", ["NotOlderThan"].as_slice()));
                }
                return Err(invalid(&errors));
            }
            if self.version_match.is_some() && self.send_initial_events.is_none() {
                return forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                );
            }
            return Ok(());
        }
        if self.send_initial_events.is_some() {
            return forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
        match self.version_match {
            Some(_) if self.resource_version.is_none() => forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            Some(_) if self.continue_token.is_some() => forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            ),
            Some(VersionMatch::Exact) if self.resource_version == Some(0) => forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
            _ => Ok(()),
        }
    }
}

fn number(query: &Query, name: &str) -> Result<Option<i64>, ApiError> {
    match query.get(name) {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
    }
}

fn resource_version(query: &Query, watch: bool) -> Result<Option<u64>, ApiError> {
    match query.get("resourceVersion") {
        None | Some("") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            let why = format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            );
            // A real server does not see that this, too, is the client's fault.
            if watch {
                ApiError::unknown(why)
            } else {
                ApiError::bad_request(format!("invalid resource version: {why}"))
            }
        }),
    }
}

fn version_match(query: &Query) -> Result<Option<VersionMatch>, ApiError> {
    match query.get("resourceVersionMatch") {
        None | Some("") => Ok(None),
        Some("Exact") => Ok(Some(VersionMatch::Exact)),
        Some("NotOlderThan") => Ok(Some(VersionMatch::NotOlderThan)),
        Some(other) => {
            let supported = ["Exact", "NotOlderThan", ""];
            Err(invalid(&[FieldError::not_supported(
                &Path::root("resourceVersionMatch"),
                other,
                supported.as_slice(),
            )]))
        }
    }
}

fn invalid(errors: &[FieldError]) -> ApiError {
    ApiError::invalid(&GroupKind::new("meta.k8s.io", "ListOptions"), "", errors)
}
